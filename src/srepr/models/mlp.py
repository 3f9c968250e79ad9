"""Multilayer perceptron for tables: `depth` times linear, BatchNorm, ReLU and dropout, then the classifier."""

from torch import Tensor, nn


class MLP(nn.Module):
    """`features` [B, width] of rows [B, inputs] (other shapes are flattened), and the linear classifier `fc`.

    >>> import torch
    >>> net = MLP(3, inputs=20, width=32, depth=2, dropout=0.1)
    >>> net.features(torch.zeros(4, 20)).shape, net(torch.zeros(4, 20)).shape
    (torch.Size([4, 32]), torch.Size([4, 3]))
    """

    def __init__(self, classes: int, *, inputs: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in in [inputs, *[width] * (depth - 1)]:
            layers += [nn.Linear(fan_in, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*layers)
        self.fc = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, width], the input of the classifier."""
        hidden: Tensor = self.hidden(x.flatten(1))
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def mlp(classes: int, *, inputs: int, width: int = 256, depth: int = 2, dropout: float = 0.2) -> MLP:
    """Multilayer perceptron for rows of `inputs` numbers.

    >>> mlp(3, inputs=20).fc
    Linear(in_features=256, out_features=3, bias=True)
    """
    return MLP(classes, inputs=inputs, width=width, depth=depth, dropout=dropout)

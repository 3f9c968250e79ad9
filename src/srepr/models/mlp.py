"""Multilayer perceptron for tables: `depth` times linear, BatchNorm, ReLU and dropout, then the classifier."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """`features` of rows [B, inputs] (other shapes are flattened), and the linear classifier `fc`.

    With `skip`, the features are the hidden layer and the inputs side by side. A classifier of these can be a straight
    line, so re-training it cannot lose to one.

    >>> net = MLP(3, inputs=20, width=32, depth=2, dropout=0.1, skip=True)
    >>> net.features(torch.zeros(4, 20)).shape, net(torch.zeros(4, 20)).shape
    (torch.Size([4, 52]), torch.Size([4, 3]))
    """

    def __init__(self, classes: int, *, inputs: int, width: int, depth: int, dropout: float, skip: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in in [inputs, *[width] * (depth - 1)]:
            layers += [nn.Linear(fan_in, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*layers)
        self.skip = skip
        self.fc = nn.Linear(width + inputs if skip else width, classes)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, L], the input of the classifier."""
        rows = x.flatten(1)
        hidden: Tensor = self.hidden(rows)
        return torch.cat([hidden, rows], 1) if self.skip else hidden

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def mlp(
    classes: int, *, inputs: int, width: int = 256, depth: int = 2, dropout: float = 0.2, skip: bool = False
) -> MLP:
    """Multilayer perceptron for rows of `inputs` numbers.

    >>> mlp(3, inputs=20).fc
    Linear(in_features=256, out_features=3, bias=True)
    """
    return MLP(classes, inputs=inputs, width=width, depth=depth, dropout=dropout, skip=skip)

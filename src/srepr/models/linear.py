"""The linear classifier alone, for vectors that are features already: embeddings of a foundation model."""

from torch import Tensor, nn


class Linear(nn.Module):
    """Vectors [B, inputs] are the features; `fc` makes logits of them."""

    def __init__(self, classes: int, inputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        """The vectors themselves."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def linear(classes: int, *, inputs: int) -> Linear:
    """A linear classifier of vectors of `inputs` numbers.

    >>> linear(3, inputs=384).fc
    Linear(in_features=384, out_features=3, bias=True)
    """
    return Linear(classes, inputs)

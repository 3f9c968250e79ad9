"""Networks for tables: columns in pieces, and several small perceptrons in one module.

What is known to matter for small networks on tables (Gorishniy et al. 2022 and 2025, Holzmüller et al. 2024): numbers
enter both as they are, with outliers drawn in, and in pieces, so that a threshold is easy to learn; inputs have a
trained scale; several members are averaged.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Array = npt.NDArray[np.float64]
REACH = 3.0  # standard deviations: further outliers are drawn in to this distance


class Pieces(nn.Module):
    """Piecewise-linear encoding of the columns: `columns` [J], and the `left` end and the `length` [J] of each piece.

    A value beyond a piece is encoded as 1, one before it as -1, and one inside by where it lies. A linear model of the
    pieces is a broken line in each column.

    >>> pieces = Pieces(torch.tensor([0, 0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]))
    >>> pieces(torch.tensor([[0.5], [2.0]]))
    tensor([[ 0.0000, -1.0000],
            [ 1.0000, -0.5000]])
    """

    columns: Tensor
    left: Tensor
    length: Tensor

    def __init__(self, columns: Tensor, left: Tensor, length: Tensor) -> None:
        super().__init__()
        self.register_buffer("columns", columns)
        self.register_buffer("left", left)
        self.register_buffer("length", length)

    def forward(self, x: Tensor) -> Tensor:
        """The pieces [B, J] of rows [B, D]."""
        return 2 * ((x[:, self.columns] - self.left) / self.length).clamp(0, 1) - 1


def cut(x: Array, weights: Array, count: int) -> Pieces:
    """Up to `count` pieces of each column [N, D], each with the same weight of rows; none of two values or fewer.

    >>> cut(np.array([[0.0, 7], [1, 7], [2, 7], [9, 8]]), np.ones(4), 2).left
    tensor([0., 1.], dtype=torch.float64)
    """
    columns, left, length = [], [], []
    for column in range(x.shape[1]):
        order = np.argsort(x[:, column], kind="stable")
        values, below = x[order, column], np.cumsum(weights[order])
        inner = np.searchsorted(below / below[-1], np.arange(1, count) / count - 1e-9)
        ends = np.unique([values[0], *values[inner], values[-1]])
        if len(ends) > 2:
            columns += [column] * (len(ends) - 1)
            left += ends[:-1].tolist()
            length += np.diff(ends).tolist()
    return Pieces(
        torch.tensor(columns, dtype=torch.long),
        torch.tensor(left, dtype=torch.float64),
        torch.tensor(length, dtype=torch.float64),
    )


class Members(nn.Module):
    """Perceptrons side by side on the same rows of standardized numbers; their averaged logits are the prediction.

    >>> rows = torch.randn(7, 4)
    >>> pieces = cut(rows.double().numpy(), np.ones(7), 3).float()
    >>> net = Members(3, inputs=4, pieces=pieces, members=5, width=16, depth=2, dropout=0.1)
    >>> net.members(rows).shape, net(rows).shape
    (torch.Size([5, 7, 3]), torch.Size([7, 3]))
    """

    def __init__(
        self, classes: int, *, inputs: int, pieces: Pieces, members: int, width: int, depth: int, dropout: float
    ) -> None:
        super().__init__()
        self.pieces, self.dropout = pieces, dropout
        sizes = [inputs + len(pieces.columns), *[width] * depth, classes]
        self.scale = nn.Parameter(torch.ones(members, 1, sizes[0]))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
            self.weights.append(torch.randn(members, fan_in, fan_out) / math.sqrt(fan_in))
            self.biases.append(torch.zeros(members, 1, fan_out))
        nn.init.normal_(self.biases[0], std=0.5)  # members have their kinks in different places
        nn.init.zeros_(self.weights[-1])

    def members(self, x: Tensor) -> Tensor:
        """Logits [M, B, K] of every member for rows [B, D]."""
        numbers = x / (1 + (x / REACH).square()).sqrt()
        hidden = torch.cat([numbers, self.pieces(x)], 1) * self.scale
        *layers, last = zip(self.biases, self.weights, strict=True)
        for bias, weight in layers:
            hidden = F.dropout(F.selu(torch.baddbmm(bias, hidden, weight)), self.dropout, self.training)
        return torch.baddbmm(last[0], hidden, last[1])

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        return self.members(x).mean(0)

"""Members against perceptrons of torch.nn one by one, pieces against numpy's interpolation."""

import numpy as np
import pytest
import torch
from torch import nn

from srepr.models.members import REACH, Members, cut

ROWS = np.random.default_rng(0).normal(size=(200, 3)) * [1.0, 10.0, 0.1]


def test_a_sum_of_pieces_is_any_broken_line_between_their_ends():
    """numpy's interpolation, through random heights at the ends."""
    pieces = cut(ROWS[:, :1], np.ones(200), 5)
    ends = np.append(pieces.left.numpy(), (pieces.left + pieces.length).numpy()[-1])
    heights = np.random.default_rng(1).normal(size=len(ends))
    encoded = pieces(torch.from_numpy(ROWS[:, :1])).numpy()
    sums = heights[0] + (encoded + 1) / 2 @ np.diff(heights)
    np.testing.assert_allclose(sums, np.interp(ROWS[:, 0], ends, heights), atol=1e-12)


def test_pieces_share_the_weight_of_the_rows():
    """A quarter each, counted by numpy; a row that weighs nothing does not count."""
    weights = np.random.default_rng(1).uniform(size=200) * (ROWS[:, 0] > -1)
    pieces = cut(ROWS, weights, 4)
    assert pieces.columns.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for column, left, length in zip(pieces.columns, pieces.left, pieces.length, strict=True):
        values = ROWS[:, column]
        share = weights[(values > left.item()) & (values <= left.item() + length.item())].sum() / weights.sum()
        assert share == pytest.approx(0.25, abs=2 * weights.max() / weights.sum())


def test_a_column_of_two_values_has_no_pieces():
    assert len(cut(np.array([[0.0], [1.0], [1.0]]), np.ones(3), 8).columns) == 0


def test_each_member_is_a_perceptron_of_its_own_and_the_prediction_is_their_mean():
    pieces = cut(ROWS, np.ones(200), 4).float()
    torch.manual_seed(0)
    net = Members(5, inputs=3, pieces=pieces, members=4, width=7, depth=2, dropout=0.5).eval()
    nn.init.normal_(net.weights[-1])
    x = torch.from_numpy(ROWS).float()
    inputs = torch.cat([x / (1 + (x / REACH) ** 2).sqrt(), pieces(x)], 1)
    outputs = []
    for m in range(4):
        alone = nn.Sequential(nn.Linear(15, 7), nn.SELU(), nn.Linear(7, 7), nn.SELU(), nn.Linear(7, 5))
        for layer, weight, bias in zip(alone[::2], net.weights, net.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[m].T, bias[m, 0]
        outputs.append(alone(inputs * net.scale[m]))
        torch.testing.assert_close(net.members(x)[m], outputs[-1])
    torch.testing.assert_close(net(x), torch.stack(outputs).mean(0))


def test_an_outlier_is_drawn_in():
    pieces = cut(np.zeros((1, 1)), np.ones(1), 4).float()
    net = Members(2, inputs=1, pieces=pieces, members=2, width=3, depth=1, dropout=0.0)
    nn.init.normal_(net.weights[-1])
    far, further = net(torch.tensor([[1e4], [1e8]]))
    torch.testing.assert_close(far, further)

"""Features of words: against their definition in numpy, and what must not matter."""

import numpy as np
import pytest
import torch

from srepr.models.words import PAIRS, Words, pairs

TEXTS = torch.tensor([[2, 5, 5, 7], [2, 6, -1, -1], [2, 5, 8, -1]])


def counted(features=16):
    words = Words(vocabulary=12, features=features)
    words.count([TEXTS[:2], TEXTS[2:]])
    return words


def expected(words, text):
    """The sum over the tokens, in float64."""
    sums = np.zeros(words.features)
    for token in text:
        having = sum(token in row for row in TEXTS.tolist())
        sums[words.place[token]] += float(words.sign[token]) * np.log(4 / (having + 1)) if having else 0
    return 1.5 * sums / max(np.linalg.norm(sums), 1e-12)


def test_the_features_are_those_of_the_definition():
    words = counted()
    for text in ([2, 5, 5, 7], [6], [2, 8, 11], [7, 6, 5, 8, 8]):
        np.testing.assert_allclose(words(torch.tensor([text]))[0], expected(words, text), atol=1e-6)


def test_neither_padding_nor_the_order_nor_a_word_that_nobody_or_everybody_has_matters():
    words = counted()
    plain = words(torch.tensor([[5, 7, 6]]))
    for text in ([7, 6, 5], [5, 7, 6, -1, -1], [5, 7, 6, 11, 10], [2, 5, 7, 6, 2]):
        torch.testing.assert_close(words(torch.tensor([text])), plain)


def test_a_text_without_a_known_word_is_zero_and_not_nan():
    assert torch.equal(counted()(torch.tensor([[11, 2], [-1, -1]])), torch.zeros(2, 16))


def test_inner_products_are_those_of_the_weighted_counts():
    words = counted(features=4096)  # without two words at one place
    assert len(set(words.place[5:9].tolist())) == 4
    a, b = words(torch.tensor([[5, 7, 6], [5, 8, 8]])) / 1.5
    common, once = np.log(4 / 3), np.log(2)
    lengths = np.hypot(common, np.sqrt(2) * once), np.hypot(common, 2 * once)
    assert float(a @ b) == pytest.approx(common**2 / np.prod(lengths), rel=1e-5)


def test_the_last_count_holds_and_is_part_of_the_network():
    words, other = Words(12, 16), Words(12, 16)
    words.count([torch.tensor([[9, 10], [9, 11]])])
    words.count([TEXTS])
    assert torch.equal(words.rarity, counted().rarity)
    other.load_state_dict(words.state_dict())
    assert torch.equal(other(TEXTS), words(TEXTS))


def test_pairs_are_numbers_of_neighbours_in_their_order():
    """Against a loop over the definition; the numbers of a large vocabulary neither overflow nor leave the table."""
    rows = np.random.default_rng(0).integers(0, 250_000, (20, 9))
    rows[3, 4:] = rows[5, 1:] = rows[7] = -1
    found = pairs(torch.tensor(rows)).tolist()
    for row, numbers in zip(rows.tolist(), found, strict=True):
        after = [*row[1:], -1]
        assert numbers == [(a * 30_011 + b) % PAIRS if b >= 0 else -1 for a, b in zip(row, after, strict=True)]
    assert pairs(torch.tensor([[5, 6]])).tolist() != pairs(torch.tensor([[6, 5]])).tolist()


def test_different_pairs_share_a_number_about_as_often_as_by_chance():
    words = np.random.default_rng(1).integers(0, 30_000, (20_000, 2))
    different = len(pairs(torch.tensor(words))[:, 0].unique())
    assert different == pytest.approx(PAIRS * (1 - (1 - 1 / PAIRS) ** 20_000), rel=0.01)

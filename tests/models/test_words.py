"""Features of words: against their definition in numpy, and what must not matter."""

import numpy as np
import pytest
import torch

from srepr.models.words import Words

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

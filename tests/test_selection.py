"""The choice of method, penalty and temperature on held-out data: what it chooses, and on what it does not depend."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import srepr
from srepr.calibration import best_temperature
from srepr.config import Retrain
from srepr.errors import InputError
from srepr.features import Given
from srepr.methods import METHODS, choices
from srepr.retraining import retrain_head, train_head
from srepr.selection import (
    FOLDS,
    PENALTIES,
    best_on_path,
    candidates,
    choose,
    cross_validation,
    deal_folds,
    pose,
    validation,
)

CHANCE = np.random.default_rng(0)
COUNTS = [60, 25, 9, 4]
LABELS = np.repeat(np.arange(4), COUNTS)
CENTRES = CHANCE.normal(size=(4, 6))
FEATURES = (CHANCE.normal(size=(98, 6)) + 1.2 * CENTRES[LABELS]).astype(np.float32)
STACK = (FEATURES + 0.3 * CHANCE.normal(size=(4, 98, 6))).astype(np.float32)
HELD_LABELS = np.repeat(np.arange(4), 50)
HELD = (CHANCE.normal(size=(200, 6)) + 1.2 * CENTRES[HELD_LABELS]).astype(np.float32)


def chosen(features, labels, **change):
    return srepr.retrain(nn.Linear(features.shape[-1], 4), (features, labels), **change)


# The held-out data


def test_folds_are_stratified_and_hold_out_every_example_once():
    fold = deal_folds(FEATURES, LABELS)
    for k, count in enumerate(COUNTS):
        in_folds = np.bincount(fold[k == LABELS], minlength=FOLDS)
        assert in_folds.sum() == count
        assert in_folds.max() - in_folds.min() <= 1


def test_copies_of_an_example_stay_together_and_order_and_scale_do_not_matter():
    fold = deal_folds(FEATURES, LABELS)
    order = np.random.default_rng(1).permutation(len(LABELS))
    np.testing.assert_array_equal(deal_folds(FEATURES[order], LABELS[order]), fold[order])
    np.testing.assert_array_equal(deal_folds(FEATURES * 1000 + 7, LABELS), fold)
    np.testing.assert_array_equal(deal_folds(FEATURES.repeat(2, 0), LABELS.repeat(2)), fold.repeat(2))


def test_a_class_of_one_example_is_always_trained_on_and_the_note_says_so():
    labels = np.append(LABELS[:-1], 4)
    folds, note = cross_validation(Given(FEATURES, labels).epoch(0), 5)
    assert all(97 in fold.rows for fold in folds)
    assert note == "10-fold cross-validation; 1 of 5 classes have too few examples to hold one out"


def test_without_anything_to_hold_out_there_is_no_choice():
    assert cross_validation(Given(np.eye(3, dtype=np.float32), np.arange(3)).epoch(0), 3)[0] == []
    model = srepr.retrain(nn.Linear(3, 3), (np.eye(3, dtype=np.float32), np.arange(3)))
    assert model.choice is None
    assert model(torch.eye(3)).argmax(1).tolist() == [0, 1, 2]


def test_a_validation_set_names_the_classes_that_it_lacks():
    _, note = validation(Given(FEATURES, LABELS).epoch(0), Given(HELD[:120], HELD_LABELS[:120]).epoch(0), 4)
    assert note == "120 validation examples; 1 of 4 classes have no example in it"


# The score


def test_a_path_ends_at_its_best_penalty():
    """The same as trying all penalties: the score has one minimum along the path."""
    splits, note = validation(Given(FEATURES, LABELS).epoch(0), Given(HELD, HELD_LABELS).epoch(0), 4)
    every = [choose(splits, note, {"la": METHODS["la"]}, 4, Retrain(penalty=penalty)).score for penalty in PENALTIES]
    found = choose(splits, note, {"la": METHODS["la"]}, 4, Retrain()).score
    assert found.mean == pytest.approx(min(score.mean for score in every), abs=2e-3)


def test_the_simplest_method_within_one_standard_error_wins():
    splits, note = validation(Given(STACK, LABELS).epoch(0), Given(HELD, HELD_LABELS).epoch(0), 4)
    choice = choose(splits, note, choices("auto"), 4, Retrain())
    assert [row["method"] for row in choice.table] == ["la", "crt", "srepr"]
    simplest = next(
        row["method"]
        for place, row in enumerate(choice.table)
        if row["excess"] <= row["standard_error"]
        and all(row["excess"] <= simpler["excess"] for simpler in choice.table[:place])
    )
    (winner,) = (row["method"] for row in choice.table if row["chosen"])
    assert winner == simplest == choice.score.candidate.name
    assert min(row["excess"] for row in choice.table) == 0


def test_a_clearly_better_method_is_not_given_up_for_a_simpler_one():
    """Noise that only the stochastic representations show: srepr must win, against all simplicity."""
    noise = np.random.default_rng(2).normal(size=(30, 98, 1)).astype(np.float32)
    leak = np.eye(4, dtype=np.float32)[LABELS][:, :1] * 9 + LABELS[:, None].astype(np.float32)
    given = np.concatenate([np.broadcast_to(FEATURES, (30, 98, 6)), leak + 30 * noise], axis=2)
    features = Given(given, LABELS).epoch(0)
    held = np.concatenate([HELD, 30 * np.random.default_rng(3).normal(size=(200, 1))], axis=1).astype(np.float32)
    splits, note = validation(features, Given(held, HELD_LABELS).epoch(0), 4)
    assert choose(splits, note, choices("auto"), 4, Retrain()).score.candidate.name == "srepr"


def test_a_penalty_that_is_set_is_kept():
    made = retrain_head(
        Given(FEATURES, LABELS),
        nn.Linear(6, 4),
        COUNTS,
        choices("auto", draws=False),
        Retrain(penalty=0.2),
        unseen=True,
    )
    assert made.settings.penalty == 0.2
    assert made.choice is not None
    assert {row["penalty"] for row in made.choice.table} == {0.2}


def test_joined_examples_are_trained_on_after_the_choice_and_judged_by_heads_without_them():
    """The head is that of all examples, with the penalty and the calibration of the choice without the joined ones."""
    held, joining = Given(HELD, HELD_LABELS), Given(HELD + 0.5, HELD_LABELS)
    given = (Given(FEATURES, LABELS), nn.Linear(6, 4), COUNTS, choices("auto", draws=False), Retrain())
    apart = retrain_head(*given, held=held.epoch(0))
    joined = retrain_head(*given, held=held.epoch(0), joining=joining)
    assert joined.choice.table == apart.choice.table
    everything = Given(np.concatenate([FEATURES, HELD + 0.5]), np.concatenate([LABELS, HELD_LABELS]))
    counts = (np.array(COUNTS) + np.bincount(HELD_LABELS)).tolist()
    alone = train_head(
        everything, nn.Linear(6, 4), counts, joined.method, joined.settings, calibration=apart.choice.score.calibration
    )
    for name, tensor in joined.head.state_dict().items():
        torch.testing.assert_close(tensor, alone.state_dict()[name])
    assert not torch.allclose(joined.head.weight, apart.head.weight, atol=1e-2)
    said, expected = joined.held.logits.float().softmax(1), apart.held.logits.softmax(1)
    torch.testing.assert_close(said, expected, atol=0.01, rtol=0)  # the search solves less exactly
    assert (joined.head(torch.from_numpy(HELD)).softmax(1) - expected).abs().max() > 0.05
    torch.testing.assert_close(joined.held.labels, torch.tensor(HELD_LABELS))


@pytest.mark.parametrize("begin", [1e-9, 0.0003, 0.1, 3.0, 1e9])
def test_wherever_the_search_begins_it_ends_at_the_same_penalty(begin):
    """The best of all, as the score has one minimum here."""
    splits, _ = validation(Given(FEATURES, LABELS).epoch(0), Given(HELD, HELD_LABELS).epoch(0), 4)
    (path,) = candidates({"la": METHODS["la"]}, Retrain())
    assert [candidate.penalty for candidate in path] == sorted(PENALTIES, reverse=True)
    problems = [pose(split, METHODS["la"], 4, 1.0) for split in splits]
    every = [best_on_path([candidate], 1.0, problems, splits) for candidate in path]
    best = min(every, key=lambda score: score.mean)
    found = best_on_path(path, begin, problems, splits)
    assert found.candidate == best.candidate
    assert found.mean == pytest.approx(best.mean, abs=2e-3)


def test_a_few_right_answers_do_not_make_it_sure():
    """Separable classes: the confidence is that of the rule of succession, (n + 1) / (n + 2)."""
    labels = torch.arange(2).repeat(10)
    logits = F.one_hot(labels, 2) * 5.0
    confidence = (logits / best_temperature(logits, labels, 1 / 22)).softmax(1).amax(1)
    torch.testing.assert_close(confidence, torch.full((20,), 1 - 0.5 / 22), atol=1e-3, rtol=0)


# In `srepr.retrain`


def test_auto_does_not_depend_on_scale_order_repetition_or_the_layer():
    expected = chosen(FEATURES, LABELS)(torch.from_numpy(HELD)).softmax(1)
    order = np.random.default_rng(4).permutation(len(LABELS))
    moved = chosen(FEATURES * 1000 + 3, LABELS)(torch.from_numpy(HELD * 1000 + 3)).softmax(1)
    shuffled = chosen(FEATURES[order], LABELS[order])(torch.from_numpy(HELD)).softmax(1)
    twice = chosen(FEATURES.repeat(2, 0), LABELS.repeat(2))(torch.from_numpy(HELD)).softmax(1)
    for other in (moved, shuffled, twice):
        torch.testing.assert_close(other, expected, atol=2e-3, rtol=0)


def test_auto_tells_what_it_compared():
    table = chosen(FEATURES, LABELS).choice
    assert [row["method"] for row in table] == ["la", "crt"]
    assert sum(row["chosen"] for row in table) == 1
    assert [row["method"] for row in chosen(STACK, LABELS).choice] == ["la", "crt", "srepr"]
    assert chosen(FEATURES, LABELS, method="la").choice is None


def test_auto_on_validation_data_is_the_best_of_its_candidates_there():
    model = chosen(FEATURES, LABELS, validation=(HELD, HELD_LABELS))
    nll = F.cross_entropy(model(torch.from_numpy(HELD)), torch.from_numpy(HELD_LABELS)).item()
    default = chosen(FEATURES, LABELS, method="crt", penalty=PENALTIES[-1])
    assert nll < F.cross_entropy(default(torch.from_numpy(HELD)), torch.from_numpy(HELD_LABELS)).item()


def test_auto_takes_no_changes_of_a_method():
    with pytest.raises(InputError, match="`balance` changes a named method"):
        chosen(FEATURES, LABELS, balance="grw")


def test_an_untrained_classifier_is_chosen_by_cross_validation_and_a_trained_one_is_not():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
    fresh = nn.Sequential(*body, nn.Linear(16, 4))
    assert srepr.retrain(fresh, (FEATURES, LABELS)).choice is not None
    trained = nn.Sequential(*body, nn.Linear(16, 4))
    sgd = torch.optim.Adam(trained.parameters(), 0.02)
    for _ in range(200):
        sgd.zero_grad()
        F.cross_entropy(trained(torch.from_numpy(FEATURES)), torch.from_numpy(LABELS)).backward()
        sgd.step()
    assert srepr.retrain(trained, (FEATURES, LABELS)).choice is None
    assert srepr.retrain(trained, (FEATURES, LABELS), validation=(HELD, HELD_LABELS)).choice is not None

"""Index batches of an epoch: one global sequence per (seed, epoch), cut into batches, then split by rank.

The sequence is a permutation of the data or, if `balanced`, N draws with P(x, y) = 1 / (K n_y): first a class, then an
example of it. Batch b is its b-th slice. Each process takes its share of every batch, so the global batches do not
depend on the number of processes.
"""

from __future__ import annotations

import numpy as np

from srepr.data.longtail import Indices, Labels
from srepr.data.randomness import Stream, uniforms
from srepr.errors import InputError


def epoch_batches(
    labels: Labels,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    balanced: bool = False,
    rank: int = 0,
    world_size: int = 1,
    drop_last: bool = True,
) -> list[Indices]:
    """Index batches of one epoch for process `rank` of `world_size`; `batch_size` is the global batch size.

    An incomplete last batch is dropped, unless it is the only one or `drop_last` is off.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> [len(batch) for batch in epoch_batches(labels, batch_size=4, seed=0, epoch=0, drop_last=False)]
    [4, 2]
    >>> halves = [epoch_batches(labels, batch_size=4, seed=0, epoch=0, rank=r, world_size=2)[0] for r in (0, 1)]
    >>> bool((np.concatenate(halves) == epoch_batches(labels, batch_size=4, seed=0, epoch=0)[0]).all())
    True
    """
    if batch_size < world_size:
        raise InputError(f"a batch of {batch_size} is too small for {world_size} processes. Increase it")
    if balanced:
        sequence = _balanced_sequence(labels, seed, epoch)
    else:
        chance = uniforms(seed, epoch, np.arange(len(labels)), 1, stream=Stream.PERMUTATION)[:, 0]
        sequence = np.argsort(chance, kind="stable")
    end = len(sequence)
    if drop_last and end > batch_size:
        end -= end % batch_size
    starts = range(0, end, batch_size)
    return [np.array_split(sequence[start : min(start + batch_size, end)], world_size)[rank] for start in starts]


def chunks(length: int, size: int = 1024) -> list[Indices]:
    """The indices 0 .. length - 1 in order, in chunks of at most `size`.

    >>> [len(chunk) for chunk in chunks(5, size=2)]
    [2, 2, 1]
    """
    return np.array_split(np.arange(length), -(-length // size)) if length else []


def _balanced_sequence(labels: Labels, seed: int, epoch: int) -> Indices:
    """N draws: a uniformly random class, then the next example of its shuffled deck, reshuffled when empty."""
    total = len(labels)
    members = np.bincount(labels)
    present = np.flatnonzero(members)
    choice = uniforms(seed, epoch, np.arange(total), 1, stream=Stream.CLASS)[:, 0]
    drawn = present[(choice * len(present)).astype(np.int64)]
    wanted = np.bincount(drawn, minlength=len(members))

    # One row per card: each example once per deck of its class, ordered by class, deck, chance.
    decks = -(-wanted // np.maximum(members, 1))
    card = np.repeat(np.arange(total), decks[labels])
    deck = np.arange(len(card)) - np.repeat(np.cumsum(decks[labels]) - decks[labels], decks[labels])
    chance = uniforms(seed, epoch, np.arange(len(card)), 1, stream=Stream.EXAMPLE)[:, 0]
    card = card[np.lexsort((chance, deck, labels[card]))]

    dealt = np.arange(len(card)) - np.repeat(np.cumsum(decks * members) - decks * members, decks * members)
    sequence = np.empty(total, dtype=np.int64)
    sequence[np.argsort(drawn, kind="stable")] = card[dealt < wanted[labels[card]]]
    return sequence

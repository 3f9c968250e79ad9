"""The class prior of a deployment, as people write it down."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from srepr.data.about import About
from srepr.decisions.prior import PriorEstimate
from srepr.errors import InputError, check
from srepr.storage.outside import parse_json, read_text

LARGEST = 1 << 22
"""Bytes of a file."""
SHOWN = 5
"""Classes in the line about an estimate."""


def read_prior(words: str, about: About) -> list[float]:
    """The shares of the K classes that `uniform`, `train`, a list `0.7,0.2,0.1` or a file stand for.

    A file holds the numbers in the order of the classes, or is a JSON object from class names to numbers, or the
    estimate of an earlier prediction.

    >>> about = About(network="mlp", options={}, class_names=("a", "b"), counts=(9, 3), shape=(), mean=(), std=())
    >>> read_prior("uniform", about), read_prior("train", about), read_prior("0.9,0.1", about)
    ([1.0, 1.0], [9.0, 3.0], [0.9, 0.1])
    """
    names = about.class_names
    if words == "uniform":
        return [1.0] * len(names)
    if words == "train":
        return [float(count) for count in about.counts]
    # Not is_file of a Path, which fails on a list that is longer than a name may be.
    text = read_text(Path(words), LARGEST) if os.path.isfile(words) else words  # noqa: PTH113
    if text.lstrip().startswith("{"):
        shares = parse_json(text, f"`prior` is {words[:60]!r}, which is")
        if isinstance(shares.get("prior"), dict):  # as `srepr predict --prior estimate -o FILE` writes it
            shares = shares["prior"].get("shares") or {}
        missing = next((name for name in names if name not in shares), None)
        check(missing is None, f"`prior` has no number for the class {missing!r}. Give one for each class.")
        found = [shares[name] for name in names]
    else:
        found = text.strip("[] \r\n").replace(",", " ").split()
    try:
        numbers = [float(share) for share in found]
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"`prior` is {words[:60]!r}: use uniform, train, a file, or a list of numbers like 0.7,0.2,0.1."
        ) from None
    if len(numbers) != len(names):
        raise InputError(f"`prior` has {len(numbers)} numbers for {len(names)} classes. Give one for each.")
    return numbers


def in_words(estimate: PriorEstimate, class_names: Sequence[str]) -> str:
    """The estimated shares of the most frequent classes in one line.

    >>> estimate = PriorEstimate("em", (0.25, 0.75), (0.2, 0.6), (0.4, 0.8), 100, None, "Few inputs.")
    >>> print(in_words(estimate, ["a", "b"]))
    class prior estimated from 100 inputs: b 75.0 % (60.0 to 80.0), a 25.0 % (20.0 to 40.0). Few inputs.
    """
    told = zip(estimate.shares, estimate.low, estimate.high, class_names, strict=True)
    order = sorted(told, key=lambda one: -one[0])
    shares = [f"{name} {100 * q:.1f} % ({100 * low:.1f} to {100 * high:.1f})" for q, low, high, name in order[:SHOWN]]
    more = f", and {len(order) - SHOWN:,} others" if len(order) > SHOWN else ""
    return f"class prior estimated from {estimate.inputs:,} inputs: {', '.join(shares)}{more}. {estimate.note}"

"""The class prior of a deployment, as people write it down."""

from __future__ import annotations

import json
from pathlib import Path

from srepr.data.about import About
from srepr.errors import InputError


def read_prior(words: str, about: About) -> list[float]:
    """The shares of the K classes that `uniform`, `train`, a list `0.7,0.2,0.1` or a file stand for.

    A file holds the numbers in the order of the classes, or is a JSON object from class names to numbers.

    >>> about = About(network="mlp", options={}, class_names=("a", "b"), counts=(9, 3), shape=(), mean=(), std=())
    >>> read_prior("uniform", about), read_prior("train", about), read_prior("0.9,0.1", about)
    ([1.0, 1.0], [9.0, 3.0], [0.9, 0.1])
    """
    names = about.class_names
    if words == "uniform":
        return [1.0] * len(names)
    if words == "train":
        return [float(count) for count in about.counts]
    text = Path(words).read_text(encoding="utf-8") if Path(words).is_file() else words
    try:
        if text.lstrip().startswith("{"):
            shares = json.loads(text)
            numbers = [float(shares[name]) for name in names]
        else:
            numbers = [float(number) for number in text.strip("[] \n").replace(",", " ").split()]
    except KeyError as missing:
        raise InputError(f"`prior` has no number for the class {missing}. Give one for each class.") from None
    except (ValueError, TypeError):
        raise InputError(
            f"`prior` is {words[:60]!r}: use uniform, train, a file, or a list of numbers like 0.7,0.2,0.1."
        ) from None
    if len(numbers) != len(names):
        raise InputError(f"`prior` has {len(numbers)} numbers for {len(names)} classes. Give one for each.")
    return numbers

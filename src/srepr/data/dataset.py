"""A data set: its training, validation and test set, and their summary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from srepr.data.longtail import groups, stratified_holdout

if TYPE_CHECKING:
    from srepr.data.about import About
    from srepr.data.examples import Examples

TEST_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class LongTailData:
    """Training, validation and test set. `validation`, for tuning, exists only under the protocol "holdout".

    >>> from srepr.data import load
    >>> data = load("digits-lt")
    >>> len(data.train), len(data.test), data.validation, data.counts
    (331, 597, None, array([120,  77,  50,  32,  21,  13,   8,   5,   3,   2]))
    """

    name: str
    train: Examples
    validation: Examples | None = None
    test: Examples | None = None
    protocol: str = "paper"
    skipped: tuple[str, ...] = ()
    """Unreadable image files, left out with `skip_bad_images`."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the K classes."""
        return self.train.class_names

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Training examples per class, [K]."""
        return self.train.counts

    @property
    def parts(self) -> dict[str, Examples]:
        """The sets that exist, by name."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    def prepared(self, about: About) -> LongTailData:
        """The same sets with inputs as that network takes them."""
        return replace(self, **{name: part.prepared(about) for name, part in self.parts.items()})  # type: ignore[arg-type]

    def scaled_to(self, side: int) -> LongTailData:
        """The same sets with images scaled to side x side."""
        return replace(self, **{name: replace(part, scaled=side) for name, part in self.parts.items()})  # type: ignore

    def fingerprint(self) -> str:
        """SHA-256 of all sets. Runs on data with equal fingerprints are identical."""
        prints = [f"{name} {part.fingerprint()}" for name, part in self.parts.items()]
        return hashlib.sha256("\n".join(prints).encode()).hexdigest()

    def describe(self) -> dict[str, object]:
        """Sizes, imbalance, class groups and fingerprint, ready for JSON."""
        counts = self.counts
        return {
            "name": self.name,
            "protocol": self.protocol,
            "classes": len(self.class_names),
            "shape": list(self.train.shape),
            "sizes": {name: len(part) for name, part in self.parts.items()},
            "largest_class": int(counts.max()),
            "smallest_class": int(counts.min()),
            "imbalance": float(counts.max() / counts.min()),
            "groups": {name: int(members.sum()) for name, members in groups(counts).items()},
            "skipped": len(self.skipped),
            "fingerprint": self.fingerprint(),
        }


def held_out_test(data: LongTailData, *, seed: int) -> LongTailData:
    """Without a test set, hold out 20 % of each class as one. A class with a single example keeps it.

    Copies of an image or a text stay together, so no test example has been seen in training.

    >>> from srepr.data import ArrayExamples
    >>> part = ArrayExamples(np.zeros((10, 2), dtype=np.float32), np.array([0] * 9 + [1]), ("crow", "wren"))
    >>> held_out_test(LongTailData(name="birds", train=part), seed=0).test.counts
    array([2, 0])
    """
    if data.test is not None:
        return data
    kept, held = stratified_holdout(data.train.labels, TEST_FRACTION, seed=seed, identities=data.train.identities())
    return replace(data, train=data.train.subset(kept), test=data.train.subset(held) if len(held) else None)

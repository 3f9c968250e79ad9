"""Metadata saved with a trained network: how to build it, its classes, and its input preprocessing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srepr.data.dataset import LongTailData


@dataclass(frozen=True, kw_only=True)
class About:
    """Metadata saved with the weights of a network.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> about.classifier
    'fc'
    """

    network: str
    """Key of `srepr.models.NETWORKS`, or a function that builds it, as package.module:function."""
    options: dict[str, Any]
    """Keyword arguments for building it."""
    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    """Training examples per class."""
    shape: tuple[int, ...]
    """Shape of one input: (C, H, W), (D,), or (T,) with the largest number of tokens."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Mean and standard deviation used to normalise inputs."""
    given: tuple[int, ...] = ()
    """Shape of an input before it is scaled to `shape`; empty if it is not scaled."""
    classifier: str = "fc"
    """Name of the layer that computes the logits."""
    tokenizer: str = ""
    """JSON text of the tokenizer, if the network reads texts."""

    @classmethod
    def of(cls, data: LongTailData, network: str, options: dict[str, Any], classifier: str = "fc") -> About:
        """Metadata of a network trained on `data`."""
        part = data.train
        return cls(
            network=network,
            options=options,
            class_names=data.class_names,
            counts=tuple(int(count) for count in data.counts),
            shape=part.shape,
            mean=part.mean,
            std=part.std,
            given=part.given,
            classifier=classifier,
        )

    def to_json(self) -> str:
        """JSON text, stored in the header of a weights file (`srepr.run.checkpoints.read_about` reads it)."""
        return json.dumps(asdict(self))

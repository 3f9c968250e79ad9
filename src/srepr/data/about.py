"""What using a trained network needs beside its weights: how to build it, its classes, and how inputs are prepared."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srepr.data.dataset import LongTailData


@dataclass(frozen=True, kw_only=True)
class About:
    """The description of a network that is stored with its weights.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> About.from_json(about.to_json()) == about
    True
    """

    network: str
    """A name of `srepr.models.NETWORKS`."""
    options: dict[str, Any]
    """Its keyword arguments."""
    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    """Training examples of each class."""
    shape: tuple[int, ...]
    """The shape of one input: (C, H, W), or (D,)."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The mean and standard deviation that inputs are normalised with."""

    @classmethod
    def of(cls, data: LongTailData, network: str, options: dict[str, Any]) -> About:
        """The description of a network for these data."""
        part = data.train
        return cls(
            network=network,
            options=options,
            class_names=data.class_names,
            counts=tuple(int(count) for count in data.counts),
            shape=part.shape,
            mean=part.mean,
            std=part.std,
        )

    def on(self, data: LongTailData) -> About:
        """The same network on other data."""
        return replace(About.of(data, self.network, self.options), shape=self.shape)

    @classmethod
    def from_json(cls, text: str) -> About:
        """What `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **lists})

    def to_json(self) -> str:
        """The description as text, for the metadata of a file of weights."""
        return json.dumps(asdict(self))

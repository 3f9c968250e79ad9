"""One set (training, validation or test) of a data set: labels in memory, inputs as normalised float32 batches.

`ArrayExamples` keeps small images or vectors in memory; `FileExamples` decodes image files on demand; `TextExamples`
(`srepr.data.tokens`) turns texts into token numbers. A `view` (seed, epoch) selects augmented inputs. They depend only
on the view and the index, so any process can compute any of them at any time. Without a view, inputs are prepared as
for evaluation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from srepr.data.about import About
from srepr.data.augment import (
    CROP_DRAWS,
    Box,
    central_box,
    decode,
    normalise,
    pad_crop_flip,
    random_resized_crop_box,
)
from srepr.data.identity import file_sizes, grouped, sha256
from srepr.data.longtail import Indices, Labels
from srepr.data.randomness import Stream, uniforms
from srepr.errors import InputError
from srepr.storage.checksums import of_bytes, of_file

View = tuple[int, int]

VALUES = 12
"""Numbers of a vector that a report shows."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Examples(ABC):
    """A training, validation or test set.

    >>> part: Examples = ArrayExamples(np.eye(3, dtype=np.float32), np.array([0, 1, 1]), ("cat", "dog"))
    >>> part.counts, part.shape, len(part.subset(np.array([0, 2])))
    (array([1, 2]), (3,), 2)
    """

    labels: Labels
    """Class of each example, int64 [N]."""
    class_names: tuple[str, ...]
    """Names of the K classes, including those without examples."""
    mean: tuple[float, ...]
    """Mean, subtracted from each channel or vector entry."""
    std: tuple[float, ...]
    """Standard deviation, by which each channel or vector entry is divided."""
    scaled: int | None
    """Side of the square to which images are scaled for the network; None if they keep their size."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Examples per class, [K]."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def noun(self) -> str:
        """What to call the examples: images, rows of a table, or just examples."""
        return {3: "images", 1: "rows"}.get(len(self.shape), "examples")

    @property
    @abstractmethod
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one input before it is scaled."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W), or (D,) for vectors."""
        return self.raw_shape if self.scaled is None else (self.raw_shape[0], self.scaled, self.scaled)

    @property
    def given(self) -> tuple[int, ...]:
        """`raw_shape` if the inputs are scaled, else empty."""
        return () if self.scaled is None else self.raw_shape

    @property
    def representations(self) -> int | None:
        """Number of different views of an example; None if there is no limit."""
        return None

    @abstractmethod
    def prepared(self, about: About) -> Examples:
        """The same examples with inputs as that network takes them: their size and normalisation."""

    @property
    @abstractmethod
    def preprocessing(self) -> dict[str, object]:
        """Preprocessing settings that change the inputs."""

    @abstractmethod
    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """Normalised float32 inputs at `indices`; augmented if `view` is set."""

    @abstractmethod
    def subset(self, indices: Indices) -> Examples:
        """The examples at `indices`, in that order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of everything that affects training."""

    def identities(self) -> Labels:
        """A number for each example [N], the same for copies. Rows of a table are all different."""
        return np.arange(len(self))

    @abstractmethod
    def thumbnail(self, index: int) -> Image.Image | None:
        """The example as a picture for a report, or None if it is not an image."""

    def excerpt(self, index: int) -> str | None:
        """The beginning of the example for a report, or None if it is not a text."""
        return None

    def values(self, index: int) -> str | None:
        """The first numbers of the example for a report, or None if it is not a vector."""
        return None


@dataclass(frozen=True, eq=False)
class ArrayExamples(Examples):
    """Examples in an array: images uint8 [N, C, H, W], vectors [N, D], or several vectors for each [N, M, D].

    Images are augmented under a view. Vectors are not; if there are several for each example, a view takes one of
    them, and without a view the example is their mean.

    >>> images = np.zeros((4, 3, 32, 32), dtype=np.uint8)
    >>> part = ArrayExamples(images, np.arange(4), ("a", "b", "c", "d"), (0.5,) * 3, (0.25,) * 3, padding=4, flip=True)
    >>> part.load(np.array([0, 3]), view=(0, 1)).shape
    torch.Size([2, 3, 32, 32])
    """

    inputs: npt.NDArray[Any]
    labels: Labels
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    """Per channel, with pixels scaled to [0, 1], or per vector entry."""
    std: tuple[float, ...] = (1.0,)
    padding: int = 0
    flip: bool = False
    scaled: int | None = None

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one input before it is scaled: (C, H, W), or (D,) for vectors."""
        return self.inputs.shape[1:] if self.inputs.ndim == 4 else self.inputs.shape[-1:]

    @property
    def representations(self) -> int | None:
        """Number of vectors for each example; None for images."""
        return None if self.inputs.ndim == 4 else self.inputs.shape[1] if self.inputs.ndim == 3 else 1

    def prepared(self, about: About) -> ArrayExamples:
        """The same arrays, scaled and normalised for that network."""
        wanted = about.given or about.shape
        if self.raw_shape != wanted:
            raise InputError(f"the inputs have the shape {self.raw_shape}, and the network takes {wanted}.")
        return replace(self, mean=about.mean, std=about.std, scaled=about.shape[1] if about.given else None)

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """Normalised float32 inputs at `indices`; augmented if `view` is set."""
        images = self.inputs.ndim == 4
        inputs = torch.from_numpy(np.asarray(self.inputs[indices], dtype=np.uint8 if images else np.float32))
        if inputs.ndim == 3:
            inputs = inputs.mean(1) if view is None else inputs[:, view[1] % inputs.shape[1]]
        if inputs.ndim == 2:
            return (inputs - torch.tensor(self.mean)) / torch.tensor(self.std)
        if view is not None:
            draws = uniforms(*view, indices, 3, stream=Stream.AUGMENT)
            inputs = pad_crop_flip(inputs, draws, padding=self.padding, flip=self.flip)
        return scale(normalise(inputs, self.mean, self.std), self.scaled)

    def subset(self, indices: Indices) -> ArrayExamples:
        """The examples at `indices`, in that order."""
        return replace(self, inputs=self.inputs[indices], labels=self.labels[indices])

    @property
    def preprocessing(self) -> dict[str, object]:
        """Preprocessing settings that change the inputs."""
        settings = {"mean": self.mean, "std": self.std, "padding": self.padding, "flip": self.flip}
        return settings if self.scaled is None else {**settings, "scaled": self.scaled}

    def fingerprint(self) -> str:
        """SHA-256 of everything that affects training."""
        about = [len(self.class_names), self.inputs.shape, str(self.inputs.dtype), self.preprocessing]
        return sha256(about, self.labels, self.inputs)

    def identities(self) -> Labels:
        """A number for each example [N], the same for images with equal pixels."""
        return (
            grouped([of_bytes(image.tobytes()) for image in self.inputs])
            if self.inputs.ndim == 4
            else super().identities()
        )

    def thumbnail(self, index: int) -> Image.Image | None:
        """The example as a picture, or None for a vector."""
        if self.inputs.ndim < 4:
            return None
        pixels = self.inputs[index].transpose(1, 2, 0)
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])

    def values(self, index: int) -> str | None:
        """The first numbers of a vector, of the mean of several, or None for an image."""
        if self.inputs.ndim == 4:
            return None
        vector = np.asarray(self.inputs[index]).reshape(-1, self.inputs.shape[-1]).mean(0)
        shown = ", ".join(f"{number:.4g}" for number in vector[:VALUES])
        return shown if len(vector) <= VALUES else f"{shown}, … ({len(vector):,} numbers)"


@dataclass(frozen=True, eq=False)
class FileExamples(Examples):
    """Examples in image files: random resized crop and flip for training, central crop for evaluation.

    >>> part = FileExamples(Path("birds"), ("wren/1.jpg", "wren/2.jpg"), np.array([0, 0]), ("wren",), size=64)
    >>> part.shape, part.counts
    ((3, 64, 64), array([2]))
    """

    root: Path
    names: tuple[str, ...]
    """File paths relative to `root`."""
    labels: Labels
    class_names: tuple[str, ...]
    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    channels: int = 3
    """3 for colour, 1 for grey."""
    fraction: float = 224 / 256
    """Central part of the shorter side that evaluation sees."""
    skip_bad: bool = False
    """Return NaN for an unreadable image instead of raising."""
    scaled: int | None = None

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one input before it is scaled, (C, size, size)."""
        return self.channels, self.size, self.size

    def prepared(self, about: About) -> FileExamples:
        """The same files, decoded, scaled and normalised for that network."""
        raw = about.given or about.shape
        return replace(
            self,
            size=raw[1],
            channels=raw[0],
            mean=about.mean,
            std=about.std,
            scaled=about.shape[1] if about.given else None,
        )

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """Normalised float32 inputs at `indices`; augmented if `view` is set."""
        pixels = np.zeros((len(indices), self.size, self.size, self.channels), dtype=np.uint8)
        bad = np.zeros(len(indices), dtype=np.bool_)
        draws = None if view is None else uniforms(*view, indices, CROP_DRAWS + 1, stream=Stream.AUGMENT)
        box: Callable[[int, int], Box] = partial(central_box, fraction=self.fraction)
        for place, index in enumerate(indices):
            if draws is not None:
                box = partial(random_resized_crop_box, draws=draws[place, :-1])
            try:
                image = decode(self.root / self.names[index], self.size, box)
            except InputError:
                if not self.skip_bad:
                    raise
                bad[place] = True
                continue
            row = np.asarray(image.convert("L") if self.channels == 1 else image).reshape(pixels.shape[1:])
            pixels[place] = row[:, ::-1] if draws is not None and draws[place, -1] < 0.5 else row
        inputs = normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), self.mean, self.std)
        inputs[torch.from_numpy(bad)] = torch.nan
        return scale(inputs, self.scaled)

    def subset(self, indices: Indices) -> FileExamples:
        """The examples at `indices`, in that order."""
        return replace(self, names=tuple(self.names[i] for i in indices), labels=self.labels[indices])

    @property
    def preprocessing(self) -> dict[str, object]:
        """Preprocessing settings that change the inputs."""
        settings = {"size": self.size, "mean": self.mean, "std": self.std}
        return settings if self.scaled is None else {**settings, "scaled": self.scaled}

    def fingerprint(self) -> str:
        """SHA-256 of everything that affects training; of the files, only names and sizes."""
        about = [len(self.class_names), self.names, self.preprocessing]
        return sha256(about, self.labels, file_sizes(self.root, self.names))

    def identities(self) -> Labels:
        """A number for each example [N], the same for files with equal bytes; only files of equal size are read."""
        sizes = file_sizes(self.root, self.names)
        _, group, members = np.unique(sizes, return_inverse=True, return_counts=True)
        alone = members[group] == 1
        return grouped(
            [
                str(size) if single else of_file(self.root / name)
                for name, size, single in zip(self.names, sizes.tolist(), alone, strict=True)
            ]
        )

    def thumbnail(self, index: int) -> Image.Image:
        """The example as a small picture."""
        return decode(self.root / self.names[index], 96, partial(central_box, fraction=1.0))


def scale(images: Tensor, side: int | None) -> Tensor:
    """Scale images [B, C, H, W] to side x side, bilinearly; None leaves them as they are.

    >>> scale(torch.zeros(1, 3, 32, 32), 128).shape
    torch.Size([1, 3, 128, 128])
    """
    return images if side is None else F.interpolate(images, (side, side), mode="bilinear", antialias=True)

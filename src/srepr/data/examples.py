"""One part (train, validation or test) of a data set: labels in memory, inputs handed out as ready float32 batches.

Two kinds: arrays in memory (small images, feature vectors) and image files that are decoded when asked for. A `view`
(seed, epoch) asks for the augmented inputs of that epoch; they depend on it and on the index within the part alone,
so any process can compute any of them at any time. Without a view the inputs are those for evaluation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from srepr.data.augment import CROP_DRAWS, central_box, decode, normalise, pad_crop_flip, random_resized_crop_box
from srepr.data.longtail import Indices, Labels
from srepr.data.randomness import Stream, uniforms
from srepr.errors import InputError

View = tuple[int, int]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Examples(Protocol):
    """What training and evaluation ask of a part of a data set.

    >>> part: Examples = ArrayExamples(np.eye(3, dtype=np.float32), np.array([0, 1, 1]), ("cat", "dog"))
    >>> part.counts, part.shape, len(part.subset(np.array([0, 2])))
    (array([1, 2]), (3,), 2)
    """

    @property
    def labels(self) -> Labels:
        """The class of each example, int64 [N]."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The K names, whether or not the part has examples of each."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of examples of each class, [K]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W), or (D,) for vectors."""

    @property
    def mean(self) -> tuple[float, ...]:
        """What is subtracted from each channel, or from each entry of a vector."""

    @property
    def std(self) -> tuple[float, ...]:
        """What each channel, or each entry of a vector, is divided by."""

    @property
    def preprocessing(self) -> dict[str, object]:
        """What happens to an input on its way to the network."""

    def __len__(self) -> int: ...

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """The inputs at the indices, float32 and normalised; augmented where a view is given."""

    def subset(self, indices: Indices) -> Examples:
        """The part that has these examples alone, in this order."""

    def fingerprint(self) -> str:
        """A SHA-256 of everything in here that training depends on."""

    def thumbnail(self, index: int) -> Image.Image | None:
        """The example as a picture for a report, where it is one."""


@dataclass(frozen=True, eq=False)
class ArrayExamples:
    """Examples in memory: images uint8 [N, C, H, W], or vectors float32 [N, D], which are never augmented.

    >>> images = np.zeros((4, 3, 32, 32), dtype=np.uint8)
    >>> part = ArrayExamples(images, np.arange(4), ("a", "b", "c", "d"), (0.5,) * 3, (0.25,) * 3, padding=4, flip=True)
    >>> part.load(np.array([0, 3]), view=(0, 1)).shape
    torch.Size([2, 3, 32, 32])
    """

    inputs: npt.NDArray[Any]
    labels: Labels
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    """Of each channel, pixels counted from 0 to 1; or of each entry of a vector."""
    std: tuple[float, ...] = (1.0,)
    padding: int = 0
    flip: bool = False

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of examples of each class, [K]."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W), or (D,) for vectors."""
        return self.inputs.shape[1:]

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """The inputs at the indices, float32 and normalised; augmented where a view is given."""
        inputs = torch.from_numpy(self.inputs[indices])
        if inputs.ndim == 2:
            return (inputs - torch.tensor(self.mean)) / torch.tensor(self.std)
        if view is not None:
            draws = uniforms(*view, indices, 3, stream=Stream.AUGMENT)
            inputs = pad_crop_flip(inputs, draws, padding=self.padding, flip=self.flip)
        return normalise(inputs, self.mean, self.std)

    def subset(self, indices: Indices) -> ArrayExamples:
        """The part that has these examples alone, in this order."""
        return replace(self, inputs=self.inputs[indices], labels=self.labels[indices])

    @property
    def preprocessing(self) -> dict[str, object]:
        """What happens to an input on its way to the network."""
        return {"mean": self.mean, "std": self.std, "padding": self.padding, "flip": self.flip}

    def fingerprint(self) -> str:
        """A SHA-256 of everything in here that training depends on."""
        about = [len(self.class_names), self.inputs.shape, str(self.inputs.dtype), self.preprocessing]
        return _sha256(about, self.labels, self.inputs)

    def thumbnail(self, index: int) -> Image.Image | None:
        """The example as a picture, or None for a vector."""
        if self.inputs.ndim == 2:
            return None
        pixels = self.inputs[index].transpose(1, 2, 0)
        return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])


@dataclass(frozen=True, eq=False)
class FileExamples:
    """Examples in image files: a random resized crop and mirroring for training, a central crop for evaluation.

    >>> part = FileExamples(Path("birds"), ("wren/1.jpg", "wren/2.jpg"), np.array([0, 0]), ("wren",), size=64)
    >>> part.shape, part.counts
    ((3, 64, 64), array([2]))
    """

    root: Path
    names: tuple[str, ...]
    """The files, relative to `root`."""
    labels: Labels
    class_names: tuple[str, ...]
    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of examples of each class, [K]."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, (3, size, size)."""
        return 3, self.size, self.size

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """The inputs at the indices, float32 and normalised; augmented where a view is given."""
        pixels = np.empty((len(indices), self.size, self.size, 3), dtype=np.uint8)
        paths = [self.root / self.names[i] for i in indices]
        if view is None:
            for row, path in zip(pixels, paths, strict=True):
                row[:] = np.asarray(decode(path, self.size, central_box))
        else:
            draws = uniforms(*view, indices, CROP_DRAWS + 1, stream=Stream.AUGMENT)
            for row, path, chance in zip(pixels, paths, draws, strict=True):
                crop = np.asarray(decode(path, self.size, partial(random_resized_crop_box, draws=chance[:-1])))
                row[:] = crop[:, ::-1] if chance[-1] < 0.5 else crop
        return normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), self.mean, self.std)

    def subset(self, indices: Indices) -> FileExamples:
        """The part that has these examples alone, in this order."""
        return replace(self, names=tuple(self.names[i] for i in indices), labels=self.labels[indices])

    @property
    def preprocessing(self) -> dict[str, object]:
        """What happens to an input on its way to the network."""
        return {"size": self.size, "mean": self.mean, "std": self.std}

    def fingerprint(self) -> str:
        """A SHA-256 of what training depends on; the files count with their names and sizes."""
        about = [len(self.class_names), self.names, self.preprocessing]
        return _sha256(about, self.labels, file_sizes(self.root, self.names))

    def thumbnail(self, index: int) -> Image.Image:
        """The example as a small picture."""
        return decode(self.root / self.names[index], 96, partial(central_box, fraction=1.0))


def file_sizes(root: Path, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """The size of each file in bytes; a missing one is an InputError that names it.

    >>> file_sizes(Path("nowhere"), ["1.jpg"])
    Traceback (most recent call last):
    srepr.errors.InputError: nowhere/1.jpg does not exist. Put it there, or go on without it with --skip-bad-images
    """
    try:
        return np.array([(root / name).stat().st_size for name in names], dtype=np.int64)
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename} does not exist. Put it there, or go on without it with --skip-bad-images"
        ) from None


def _sha256(about: Sequence[object], *arrays: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(json.dumps(about).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

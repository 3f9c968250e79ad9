"""Read an .npz file with x_train, y_train, x_test, y_test, or x, y; x holds images (uint8) or feature vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.dataset import TEST_FRACTION, LongTailData
from srepr.data.examples import ArrayExamples
from srepr.data.longtail import stratified_holdout
from srepr.data.numpy_files import Archive
from srepr.errors import InputError, reading

Arrays = dict[str, npt.NDArray[Any]]
_CHECKED = 1 << 22
"""Numbers that are looked at together."""

_SUFFIXES = {"train": "_train", "validation": "_val", "test": "_test"}


def read(path: Path, *, seed: int = 0) -> LongTailData:
    """Read an .npz file; inputs are standardised with the statistics of the training set.

    Images are uint8, [N, H, W], [N, H, W, C] or [N, C, H, W] with C = 1 or 3. Training pads them by 1/8, crops at
    random and flips RGB images. Vectors are [N, D], or [N, M, D] if there are M representations of each example, such
    as embeddings of augmented inputs. Labels are 0..K-1 or class names. Without a test set, 20 % of each class is held
    out as one, drawn with `seed`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/birds.npz", x=np.random.rand(10, 4), y=np.array(["wren", "crow"] * 5))
    ...     data = read(Path(folder, "birds.npz"))
    >>> data.train.shape, data.class_names, len(data.train), len(data.test)
    ((4,), ('crow', 'wren'), 8, 2)
    """
    x, y = _by_part(path)
    x = {part: as_float32(checked_inputs(f"x{_SUFFIXES[part]} in {path}", values)) for part, values in x.items()}
    y, class_names = _labels(path, y)
    for part in x:
        if len(x[part]) != len(y[part]) or x[part].shape[1:] != x["train"].shape[1:]:
            raise InputError(
                f"{path}: {part} has inputs {x[part].shape} and {len(y[part]):,} labels, train has inputs "
                f"{x['train'].shape}. Every set needs one label per input, and all inputs must have the same shape"
            )
    if "test" not in x:
        copies = ArrayExamples(x["train"], y["train"], class_names).identities()
        kept, held = stratified_holdout(y["train"], TEST_FRACTION, seed=seed, identities=copies)
        for array in (x, y):
            array["train"], array["test"] = array["train"][kept], array["train"][held]
    mean, std = _statistics(x["train"])
    padding, flip = (x["train"].shape[-1] // 8, x["train"].shape[1] == 3) if x["train"].ndim == 4 else (0, False)
    parts = {p: ArrayExamples(x[p], y[p], class_names, mean, std, padding, flip) for p in x if len(x[p])}
    return LongTailData(
        name=path.stem, train=parts["train"], validation=parts.get("validation"), test=parts.get("test")
    )


def read_labelled(path: Path, class_names: tuple[str, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Inputs and labels to evaluate a network with these classes: x_test and y_test, or x and y."""
    arrays = Archive(path)
    suffix = "_test" if "x_test" in arrays else ""
    if f"x{suffix}" not in arrays or f"y{suffix}" not in arrays:
        raise InputError(f"{path} holds {arrays}. It must hold x and y, or x_test and y_test")
    x, y = checked_inputs(f"x{suffix} in {path}", arrays[f"x{suffix}"]), arrays[f"y{suffix}"]
    if y.dtype.kind == "U" and y.ndim == 1:
        numbers = {name: number for number, name in enumerate(class_names)}
        with reading(path):  # words may hold what is no character
            y = np.array([numbers.get(name, -1) for name in y.tolist()], dtype=np.int64)
    if (
        not len(x)
        or y.shape != (len(x),)
        or y.dtype.kind not in "iu"
        or not 0 <= y.min() <= y.max() < len(class_names)
    ):
        raise InputError(f"the labels in {path} are not those of {len(class_names)} classes, one for each input")
    return x, y.astype(np.int64)


def _by_part(path: Path) -> tuple[Arrays, Arrays]:
    arrays = Archive(path)
    whole = "x" in arrays and "y" in arrays
    suffixes = {"train": ""} if whole else _SUFFIXES
    parts = {part: suffix for part, suffix in suffixes.items() if "x" + suffix in arrays and "y" + suffix in arrays}
    if "train" not in parts:
        raise InputError(f"{path} holds {arrays}. It must hold x and y, or x_train, y_train, x_test and y_test")
    return {p: arrays["x" + s] for p, s in parts.items()}, {p: arrays["y" + s] for p, s in parts.items()}


def checked_inputs(what: str, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Images as uint8 [N, C, H, W], and vectors [N, D] or [N, M, D] of finite numbers; `what` names the array."""
    # An array of more representations than dimensions is more likely one of images that are not uint8.
    several = x.ndim == 3 and x.dtype.kind == "f" and 0 < x.shape[1] < x.shape[2]
    if (x.ndim == 2 and x.dtype.kind in "fiub") or several:
        rows = max(1, _CHECKED // x[:1].size) if len(x) else 1
        for start in range(0, len(x), rows):
            values = as_float32(x[start : start + rows])
            broken = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, x.ndim))))
            if len(broken):
                row = start + broken[0]
                raise InputError(f"{what}: row {row} has a NaN or infinite value. Replace it, or drop the row")
        return x
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3):
        return np.moveaxis(x, 3, 1)
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    raise InputError(
        f"{what} is {x.dtype} {x.shape}. Give images as uint8 [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 "
        "channels, vectors as numbers [N, D], or M < D of them for each example as float [N, M, D]"
    )


def as_float32(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Vectors as float32, in the order of C; images stay as they are. Numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, dtype=x.dtype if x.ndim == 4 else np.float32)


def _labels(path: Path, y: Arrays) -> tuple[Arrays, tuple[str, ...]]:
    for labels in y.values():
        numbers = labels.dtype.kind in "iu" and y["train"].dtype.kind in "iu"
        words = labels.dtype.kind == y["train"].dtype.kind == "U"
        if labels.ndim != 1 or not len(y["train"]) or not (numbers or words) or (numbers and (labels < 0).any()):
            raise InputError(
                f"the labels in {path} are {labels.dtype} {labels.shape}. "
                "Pass class numbers 0..K-1 or class names, [N]"
            )
    if y["train"].dtype.kind != "U":
        largest = max(int(labels.max()) for labels in y.values() if len(labels))
        if largest >= len(y["train"]):  # so at least one class is empty
            there = np.unique(y["train"])
            missing = np.flatnonzero(there != np.arange(len(there), dtype=there.dtype))
            raise InputError(
                f"empty class: '{missing[0] if len(missing) else len(there)}' has no training example in {path}, "
                f"which has the label {largest}. Number the classes 0..K-1"
            )
        return {p: labels.astype(np.int64) for p, labels in y.items()}, tuple(map(str, range(largest + 1)))
    every = np.concatenate(list(y.values()))
    names = np.unique(every)
    return {p: np.searchsorted(names, labels) for p, labels in y.items()}, tuple(names.tolist())


def _statistics(inputs: npt.NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if inputs.ndim == 4:
        mean, std = inputs.mean((0, 2, 3)) / 255, inputs.std((0, 2, 3)) / 255
    else:
        rows = inputs.reshape(-1, inputs.shape[-1])
        mean, std = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())

"""Inputs for prediction, without labels: image files, folders of them, a table, an array or texts.

Inputs are prepared as for evaluation. Images are decoded on demand, so any number of them fits into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from srepr.data.about import About
from srepr.data.arrays import checked_inputs
from srepr.data.examples import ArrayExamples, Examples, FileExamples
from srepr.data.files import IMAGE_SUFFIXES, SMALL, images_in
from srepr.data.image import absence
from srepr.data.numpy_files import Archive, map_array
from srepr.data.table import csv_cells, csv_rows
from srepr.data.texts import read_texts
from srepr.data.tokens import TextExamples
from srepr.data.workers import batches
from srepr.errors import InputError, check, reading, tell
from srepr.progress import Progress


class Unlabelled(NamedTuple):
    """Inputs, and the name of each in the predictions."""

    names: Sequence[str]
    examples: Examples


def read_unlabelled(paths: Sequence[Path], about: About, *, skip_bad_images: bool = False) -> Unlabelled:
    """Read the inputs at `paths`, prepared for the network that `about` describes.

    Images, folders (searched recursively, sorted) and CSV files with a column `path` may be mixed. An .npy or .npz
    file, or a CSV file of numbers for a network that takes vectors, must be the only path. A network that reads texts
    takes .csv, .jsonl and .txt files.

    >>> about = About(network="mlp", options={}, class_names=("a", "b"), counts=(9, 3), shape=(2,), mean=(0.0, 0.0),
    ...               std=(1.0, 1.0))
    >>> path = getfixture("tmp_path") / "x.npy"
    >>> np.save(path, np.eye(2))
    >>> list(read_unlabelled([path], about).names)
    ['0', '1']
    """
    for path in paths:
        # A broken link to an image is a bad image. (Not those of Path, which fail on names that no file can have.)
        linked = os.path.islink(path) and path.suffix.lower() in IMAGE_SUFFIXES  # noqa: PTH114
        if not os.path.exists(path) and not linked:  # noqa: PTH110
            wanted = "a .csv, .jsonl or .txt file" if about.tokenizer else "images, folders, a CSV file or arrays"
            raise InputError(f"{path} {absence(path)}. Pass {wanted}.")
    with reading(paths[0] if len(paths) == 1 else "one of the inputs"):
        return _read(paths, about, skip_bad_images)


def _read(paths: Sequence[Path], about: About, skip_bad_images: bool) -> Unlabelled:
    if about.tokenizer:
        return _from_texts([text for path in paths for text in read_texts(path)], about)
    kinds = (".npy", ".npz", *((".csv",) if _vectors(about) else ()))
    arrays = [path for path in paths if path.suffix.lower() in kinds]
    if arrays:
        if len(paths) > 1:
            raise InputError(f"{arrays[0]} must be the only input. Predict the others separately.")
        return _from_array(arrays[0], about)
    if _vectors(about):
        raise InputError(
            f"{paths[0]}: this network takes vectors of {about.shape[0]} numbers. Pass a .csv or .npz file."
        )
    if len({*about.shape[1:]}) > 1:
        raise InputError(f"{paths[0]}: this network takes inputs of shape {about.shape}. Pass them as arrays (.npz).")
    found = [pair for path in paths for pair in _files(path)]
    names, files = [name for name, _ in found], tuple(str(file) for _, file in found)
    examples = FileExamples(
        Path(),
        files,
        np.zeros(len(found), dtype=np.int64),
        about.class_names,
        # Small images are used whole, as in training.
        fraction=1.0 if (about.given or about.shape)[1] <= SMALL else 224 / 256,
        skip_bad=skip_bad_images,
    )
    # Lists in two folders may use the same names for different files.
    return Unlabelled(names if len({*names}) == len({*files}) else files, examples.prepared(about))


def unlabelled_texts(texts: Sequence[str], about: About) -> Unlabelled:
    """Texts as a user passes them, for a network that reads texts; a text is its own name in the predictions.

    The path of a file is refused: it is not clear whether it is meant as a text.
    """
    for text in texts:
        if not text.strip():
            raise InputError("a text is empty. Leave it out.")
        if os.path.exists(text):  # noqa: PTH110 (that of a Path fails on long texts)
            raise InputError(f"{text} is a file, and strings are texts. Pass Path({text!r}) to read the texts in it.")
    return _from_texts(texts, about)


def _from_texts(texts: Sequence[str], about: About) -> Unlabelled:
    labels = np.zeros(len(texts), dtype=np.int64)
    return Unlabelled(texts, TextExamples(tuple(texts), labels, about.class_names).prepared(about))


def unlabelled_batches(
    inputs: Unlabelled,
    rows: npt.NDArray[np.int64],
    batch_size: int,
    workers: int,
    quiet: bool = True,
    *,
    silent: bool = False,
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
    """These rows of the inputs in batches, with their indices.

    Images that were skipped are reported at the end, unless `silent`.
    """
    check(batch_size >= 1, f"`batch_size` is {batch_size}: at least 1 is needed.")
    parts = [rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size)]
    # A single batch is read sooner than other processes start.
    return _good(inputs, parts, workers if len(parts) > 1 else 0, quiet, silent)


def _good(
    inputs: Unlabelled, parts: Sequence[npt.NDArray[np.int64]], workers: int, quiet: bool, silent: bool
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
    """The inputs of each part that can be read."""
    skipped: list[str] = []
    with Progress("predict", total=sum(map(len, parts)), quiet=quiet) as progress:
        for loaded, _, indices in batches(inputs.examples, parts, workers=workers):
            good = ~loaded.flatten(1)[:, 0].isnan()
            skipped += [inputs.names[index] for index in indices[~good.numpy()]]
            if good.any():
                yield indices[good.numpy()], loaded[good]
            progress.advance(len(indices))
    if skipped and not silent:
        which = f"{skipped[0]} is the first" if len(skipped) > 1 else skipped[0]
        tell(f"skipped {len(skipped):,} bad images ({which})")


def _vectors(about: About) -> bool:
    return len(about.shape) == 1


def _files(path: Path) -> list[tuple[str, Path]]:
    """Image files at a path, each with its name in the predictions."""
    if path.is_dir():
        found = sorted(images_in(path))
        if not found:
            raise InputError(f"{path} has no images. Pass a folder that contains images.")
        return [(str(file), file) for file in found]
    if path.suffix.lower() != ".csv":
        return [(str(path), path)]
    columns, rows = csv_rows(path)
    if "path" not in columns:
        raise InputError(f"{path} has no column 'path'. It must hold image paths relative to the file.")
    names = [cells.get("path", "").strip() for _, cells in rows]
    if "" in names:
        raise InputError(f"{path}, row {names.index('') + 1}: the path is empty. Fill it in, or remove the row.")
    return [(name, path.parent / name) for name in names]


def _from_array(path: Path, about: About) -> Unlabelled:
    found = _table(path, about.shape[0]) if path.suffix.lower() == ".csv" else _array(path)
    inputs = checked_inputs(f"x in {path}", found)
    labels = np.zeros(len(inputs), dtype=np.int64)
    try:
        examples = ArrayExamples(inputs, labels, about.class_names).prepared(about)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return Unlabelled([str(index) for index in range(len(inputs))], examples)


def _array(path: Path) -> npt.NDArray[Any]:
    if path.suffix.lower() == ".npy":
        return map_array(path)
    arrays = Archive(path)
    for name in ("x", "x_test"):
        if name in arrays:
            return arrays[name]
    raise InputError(f"{path} holds {arrays}. It must hold x.")


def _table(path: Path, columns: int) -> npt.NDArray[np.float64]:
    """Numbers of a CSV file with a header line; a column `label` is ignored."""
    rows = csv_cells(path)
    _, header = next(rows, (1, []))
    kept = [place for place, name in enumerate(header) if name.strip() != "label"]
    if len(kept) != columns:
        raise InputError(f"{path} has {len(kept)} columns beside `label`, the network takes {columns} numbers.")
    numbers = []
    for line, cells in rows:
        try:
            numbers.append([float(cells[place]) for place in kept])
        except (ValueError, IndexError):
            raise InputError(f"{path}, line {line}: not {columns} numbers. Complete the line, or remove it.") from None
    return np.array(numbers, dtype=np.float64).reshape(-1, columns)

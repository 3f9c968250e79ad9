"""All data sources by name or path, and how each becomes a long-tailed data set.

read the source -> subsample the training set -> hold out a validation set, under the protocol "holdout"
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.dataset import LongTailData, held_out_test
from srepr.data.longtail import exponential_counts, step_counts, stratified_holdout, subsample
from srepr.errors import InputError, check_seed, reading, unknown

Counts = npt.NDArray[np.int64]

PROFILES = {"exponential": exponential_counts, "step": step_counts}
PROTOCOLS = ("paper", "holdout")


@dataclass(frozen=True)
class Entry:
    """A data source: a row of `srepr data list`.

    >>> NAMED["cifar10-lt"].how_to_get
    'srepr data get cifar10-lt --data-dir DIR'
    """

    name: str
    classes: int | None
    """None if it depends on the data."""
    what: str
    how_to_get: str
    reader: str
    """Module of `srepr.data` with a function `read(path)`, which gets the options that it has keywords for."""
    imbalance: float | None = None
    """Default imbalance of the training set; None if it is long-tailed already."""
    embedded: bool = False
    """Whether it needs no files."""


_GET = "srepr data get {} --data-dir DIR"
NAMED: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("cifar10-lt", 10, "CIFAR-10, 32x32, long-tailed", _GET.format("cifar10-lt"), "cifar", 0.01),
        Entry("cifar100-lt", 100, "CIFAR-100, 32x32, long-tailed", _GET.format("cifar100-lt"), "cifar", 0.01),
        Entry(
            "imagenet-lt",
            1000,
            "115,846 images of ImageNet-2012, long-tailed",
            "ImageNet's train/ and val/ (image-net.org) and the lists ImageNet_LT_{train,val,test}.txt",
            "imagenet_lt",
        ),
        Entry(
            "inaturalist18",
            8142,
            "437,513 photographs of species",
            "train_val2018/ with train2018.json and val2018.json (github.com/visipedia/inat_comp)",
            "inaturalist",
        ),
        Entry(
            "digits-lt", 10, "8x8 digits, 331 for training", "comes with scikit-learn", "digits", 0.02, embedded=True
        ),
    )
}
"""Benchmarks by name. To add one, write a reader and add a row."""
OWN: dict[str, Entry] = {
    "": Entry(
        "FOLDER",
        None,
        "images in class folders",
        "FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/* and FOLDER/test/CLASS/*",
        "folder",
    ),
    ".csv": Entry(
        "FILE.csv",
        None,
        "images or texts in a table",
        "columns path,label or text,label; perhaps split",
        "table",
    ),
    ".jsonl": Entry("FILE.jsonl", None, "a text in each line", "objects with text, label and perhaps split", "texts"),
    ".npz": Entry(
        "FILE.npz", None, "arrays of images or vectors", "x and y, or x_train, y_train, x_test and y_test", "arrays"
    ),
}
"""Formats of your own data by path suffix; a folder has none."""


def catalogue() -> list[Entry]:
    """All sources: the named benchmarks, then the formats of your own data.

    >>> [entry.name for entry in catalogue() if entry.classes is None]
    ['FOLDER', 'FILE.csv', 'FILE.jsonl', 'FILE.npz']
    """
    return [*NAMED.values(), *OWN.values()]


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    imbalance: float | None = None,
    profile: str = "exponential",
    counts: Sequence[int] | Counts | None = None,
    protocol: str | None = None,
    holdout: float = 0.1,
    image_size: int | None = None,
    skip_bad_images: bool = False,
) -> LongTailData:
    """Load a named benchmark from `data_dir`, or your own folder, .csv, .jsonl or .npz file by path.

    `imbalance` with `profile`, or `counts` per class, subsamples the training set. By default the CIFARs are
    subsampled to 0.01, the digits to 0.02, and other data not at all. The protocol "paper", the default for
    benchmarks, trains on the full training set. "holdout", the default for your own data, adds a validation set: the
    data's own, or the fraction `holdout` of each class. `image_size` is the side of the images that the network sees;
    `skip_bad_images` applies to image files.

    >>> data = load("digits-lt", imbalance=0.1, protocol="holdout")
    >>> data.describe()["sizes"]
    {'train': 438, 'validation': 48, 'test': 597}
    """
    check_seed(seed)
    entry = NAMED.get(str(source))
    protocol = protocol or ("paper" if entry else "holdout")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if counts is not None and imbalance is not None:
        raise InputError("`counts` and `imbalance` exclude each other. Set only one")
    options = {"image_size": image_size, "skip_bad_images": skip_bad_images, "seed": seed}
    data = held_out_test(_read(entry, source, data_dir, options), seed=seed)
    if image_size is not None and data.train.shape[1:] != (image_size, image_size):
        if len(data.train.shape) != 3:
            raise InputError(f"{source} holds no images. Leave out `image_size`")
        data = data.scaled_to(image_size)

    if imbalance is None and entry:
        imbalance = entry.imbalance
    if counts is None:
        counts = _profile_counts(data.counts, imbalance, profile)
    train = data.train.subset(subsample(data.train.labels, counts, seed=seed))
    empty = np.flatnonzero(train.counts == 0)
    if len(empty):
        raise InputError(
            f"empty class: {data.class_names[empty[0]]!r} has no training example. Add some, or remove the class"
        )
    validation = data.validation
    if protocol == "holdout" and validation is None:
        kept, held = stratified_holdout(train.labels, holdout, seed=seed, identities=train.identities())
        train, validation = train.subset(kept), train.subset(held) if len(held) else None
    return replace(data, train=train, validation=validation if protocol == "holdout" else None, protocol=protocol)


def _read(
    entry: Entry | None, source: str | Path, data_dir: str | Path | None, options: dict[str, Any]
) -> LongTailData:
    path = Path(source)
    if entry is None:
        kind = "" if os.path.isdir(path) else path.suffix.lower() or "no suffix"  # noqa: PTH112
        if not os.path.exists(path):  # noqa: PTH110 (that of a Path fails on names that no file can have)
            raise unknown("data set", source, NAMED, hint=", or the path of a folder, .csv, .jsonl or .npz")
        if kind not in OWN:
            raise InputError(f"{path} is not a folder, .csv, .jsonl or .npz file. Use one of these formats")
        entry = OWN[kind]
    elif entry.embedded:
        path = Path()
    elif data_dir is None:
        raise InputError(f"{entry.name} needs `data_dir`, the folder with its files. To get them: {entry.how_to_get}")
    else:
        path = Path(data_dir)
    # Imported here: `srepr data list` and --help need no reader, and readers need torch.
    read = import_module(f"srepr.data.{entry.reader}").read
    takes = inspect.signature(read).parameters
    known = {**options, "name": entry.name}
    with reading(path):
        data: LongTailData = read(path, **{name: value for name, value in known.items() if name in takes})
    return data


def _profile_counts(available: Counts, imbalance: float | None, profile: str) -> Counts:
    """Counts of the profile, applied from the largest class to the smallest and capped at the available examples."""
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    if imbalance is None:
        return available
    wanted = np.empty_like(available)
    by_size = np.argsort(-available, kind="stable")
    wanted[by_size] = PROFILES[profile](int(available.max()), len(available), imbalance)
    return np.minimum(wanted, available)

"""Every source of data by name or path, and the one way from it to a long-tailed data set.

read the source -> long-tail the training part -> hold a validation part out, where the protocol says so
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srepr.data.dataset import LongTailData, held_out_test
from srepr.data.longtail import exponential_counts, step_counts, stratified_holdout, subsample
from srepr.errors import InputError

Counts = npt.NDArray[np.int64]

PROFILES = {"exponential": exponential_counts, "step": step_counts}
PROTOCOLS = ("paper", "holdout")


@dataclass(frozen=True)
class Entry:
    """A line of `srepr data list`.

    >>> catalogue()[4].name, catalogue()[4].imbalance
    ('digits-lt', 0.02)
    """

    name: str
    classes: int | None
    """None where the data decides."""
    what: str
    how_to_get: str
    imbalance: float | None = None
    """To which the training part is cut by default; None where it comes long-tailed."""


_NAMED = (
    Entry("cifar10-lt", 10, "CIFAR-10, 32x32, cut to a long tail", "srepr data get cifar10-lt --data-dir DIR", 0.01),
    Entry(
        "cifar100-lt", 100, "CIFAR-100, 32x32, cut to a long tail", "srepr data get cifar100-lt --data-dir DIR", 0.01
    ),
    Entry(
        "imagenet-lt",
        1000,
        "115,846 images of ImageNet-2012 in a long tail",
        "ImageNet's train/ and val/ (image-net.org) and the lists ImageNet_LT_{train,val,test}.txt",
    ),
    Entry(
        "inaturalist18",
        8142,
        "437,513 photographs of species",
        "train_val2018/ with train2018.json and val2018.json (github.com/visipedia/inat_comp)",
    ),
    Entry("digits-lt", 10, "8x8 digits, 331 for training", "comes with scikit-learn: nothing to fetch", 0.02),
)
_OWN = (
    Entry(
        "FOLDER",
        None,
        "images in class folders",
        "FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/* and FOLDER/test/CLASS/*",
    ),
    Entry("FILE.csv", None, "images named in a table", "columns path,label and, optionally, split"),
    Entry("FILE.npz", None, "arrays of images or vectors", "x and y, or x_train, y_train, x_test and y_test"),
)


def catalogue() -> list[Entry]:
    """Every source: the named data sets, then the forms that people's own data may have.

    >>> [entry.name for entry in catalogue()]
    ['cifar10-lt', 'cifar100-lt', 'imagenet-lt', 'inaturalist18', 'digits-lt', 'FOLDER', 'FILE.csv', 'FILE.npz']
    """
    return [*_NAMED, *_OWN]


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
    """Load a named data set from `data_dir`, or a folder, .csv or .npz file by its path.

    `imbalance` with its `profile`, or `counts` for each class, cut the training part; without them the CIFARs are
    cut to 0.01, the digits to 0.02 and anything else is left as it is. Protocol "paper" (default of the names) trains
    on everything; "holdout" (default of paths) keeps a `holdout` share of each class for validation, or the data
    set's own validation part. `image_size` and `skip_bad_images` are for image files.

    >>> data = load("digits-lt", imbalance=0.1, protocol="holdout")
    >>> data.describe()["sizes"]
    {'train': 438, 'validation': 48, 'test': 597}
    """
    entry = next((entry for entry in _NAMED if entry.name == source), None)
    protocol = protocol or ("paper" if entry else "holdout")
    if protocol not in PROTOCOLS:
        raise InputError(f"no protocol is called {protocol!r}. Known: {', '.join(PROTOCOLS)}")
    if counts is not None and imbalance is not None:
        raise InputError("both class counts and an imbalance are given. Leave one of them out")
    files = {"image_size": image_size, "skip_bad_images": skip_bad_images}
    data = _read_named(entry, data_dir, **files) if entry else _read_own(Path(source), seed, **files)
    data = held_out_test(data, seed=seed)
    if image_size is not None and data.train.shape[1:] != (image_size, image_size):
        raise InputError(
            f"{source} has inputs of shape {data.train.shape}. Leave the image size out: it is for image files"
        )

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
        kept, held = stratified_holdout(train.labels, holdout, seed=seed)
        train, validation = train.subset(kept), train.subset(held) if len(held) else None
    return replace(data, train=train, validation=validation if protocol == "holdout" else None, protocol=protocol)


# The readers are imported where they are called: `srepr data list` and --help need none of them, and they need torch.


def _read_named(entry: Entry, data_dir: str | Path | None, **files: Any) -> LongTailData:
    if entry.name == "digits-lt":
        from srepr.data import digits

        return digits.read()
    if data_dir is None:
        raise InputError(f"{entry.name} needs --data-dir, the folder with its files. To get them: {entry.how_to_get}")
    if entry.name == "imagenet-lt":
        from srepr.data import imagenet_lt

        return imagenet_lt.read(Path(data_dir), **files)
    if entry.name == "inaturalist18":
        from srepr.data import inaturalist

        return inaturalist.read(Path(data_dir), **files)
    from srepr.data import cifar

    return cifar.read(entry.name, Path(data_dir))


def _read_own(path: Path, seed: int, **files: Any) -> LongTailData:
    if path.is_dir():
        from srepr.data import folder

        return folder.read(path, **files)
    if path.is_file() and path.suffix == ".csv":
        from srepr.data import table

        return table.read(path, **files)
    if path.is_file() and path.suffix == ".npz":
        from srepr.data import arrays

        return arrays.read(path, seed=seed)
    if path.is_file():
        raise InputError(
            f"{path} is neither a folder, nor a .csv, nor a .npz file. Give the data in one of these forms"
        )
    names = [entry.name for entry in _NAMED]
    near = difflib.get_close_matches(str(path), names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise InputError(f"no data set or file is called {str(path)!r}. {hint}Known: {', '.join(names)}, or a path")


def _profile_counts(available: Counts, imbalance: float | None, profile: str) -> Counts:
    """The profile laid over the classes from the largest to the smallest, as far as they have the examples."""
    if profile not in PROFILES:
        raise InputError(f"no profile is called {profile!r}. Known: {', '.join(PROFILES)}")
    if imbalance is None:
        return available
    wanted = np.empty_like(available)
    by_size = np.argsort(-available, kind="stable")
    wanted[by_size] = PROFILES[profile](int(available.max()), len(available), imbalance)
    return np.minimum(wanted, available)

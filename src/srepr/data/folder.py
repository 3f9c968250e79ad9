"""A folder of class folders: DIR/train/CLASS/*.jpg with DIR/test or DIR/val, or only DIR/CLASS/*.jpg."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from srepr.data.augment import absence
from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, image_data, images_in
from srepr.errors import InputError


def read(folder: Path, *, image_size: int | None = None, skip_bad_images: bool = False) -> LongTailData:
    """Read a folder of images. Classes are the sorted folder names; other files are ignored, broken links are not.

    Without `test/`, `val/` is the test set.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("wren", "crow"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (40, 30)).save(f"{folder}/{name}/1.png")
    ...     data = read(Path(folder), image_size=32)
    >>> data.class_names, data.train.shape
    (('crow', 'wren'), (3, 32, 32))
    """
    _folders_in(folder)  # `test` may be a broken link
    places = {part: name for part, name in _places(folder).items() if (folder / name).is_dir()}
    class_names = _folders_in(folder / places["train"])
    number = {name: k for k, name in enumerate(class_names)}
    if not class_names:
        raise InputError(
            f"{folder / places['train']} has no class folders. Arrange the images as {folder}/CLASS/*.jpg, or as "
            f"{folder}/train/CLASS/*.jpg and {folder}/test/CLASS/*.jpg"
        )
    parts = {part: _scan(folder, name, number) for part, name in places.items()}
    empty = np.flatnonzero(np.bincount(parts["train"].labels, minlength=len(class_names)) == 0)
    if len(empty):
        raise InputError(
            f"{folder / places['train'] / class_names[empty[0]]} has no images. Add some, or remove the folder"
        )
    return image_data(folder.name, folder, parts, class_names, image_size=image_size, skip_bad_images=skip_bad_images)


def _places(folder: Path) -> dict[str, str]:
    if not (folder / "train").is_dir():
        return {"train": "."}
    if (folder / "test").is_dir():
        return {"train": "train", "validation": "val", "test": "test"}
    return {"train": "train", "test": "val"}


def _folders_in(folder: Path) -> list[str]:
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    for entry in entries:
        if not entry.exists():  # it may have been a whole class
            raise InputError(f"{entry} {absence(entry)}. Restore it, or remove it")
    return [entry.name for entry in entries if entry.is_dir()]


def _scan(folder: Path, part: str, number: dict[str, int]) -> Listing:
    names: list[str] = []
    labels: list[int] = []
    for name in _folders_in(folder / part):
        if name not in number:
            raise InputError(f"{folder / part / name} has no training images. Add some, or remove the folder")
        found = sorted(path.relative_to(folder).as_posix() for path in images_in(folder / part / name))
        names += found
        labels += [number[name]] * len(found)
    return Listing(names, np.array(labels, dtype=np.int64))

"""A folder of class folders: DIR/train/CLASS/*.jpg with DIR/test or DIR/val, or only DIR/CLASS/*.jpg."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import Listing, Survey, images_in, surveyed
from srepr.data.image import absence


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
    return surveyed(folder.name, survey(folder), image_size=image_size, skip_bad_images=skip_bad_images)


def survey(folder: Path) -> Survey:
    """The images in the class folders, and what is wrong with these folders."""
    places = {part: name for part, name in _places(folder).items() if (folder / name).is_dir()}
    train = folder / places["train"]
    class_names = _folders_in(train)
    faults = [
        f"{link} {absence(link)}. Restore it, or remove it"  # it may have been a whole class, or the test set
        for place in sorted({folder, *(folder / name for name in places.values())})
        for link in sorted(place.iterdir())
        if not link.exists() and not link.name.startswith(".")
    ]
    if not class_names:
        faults.append(
            f"{train} has no class folders. Arrange the images as {folder}/CLASS/*.jpg, or as "
            f"{folder}/train/CLASS/*.jpg and {folder}/test/CLASS/*.jpg"
        )
    parts = {}
    for part, place in places.items():
        found = {name: _images(folder, folder / place / name) for name in _folders_in(folder / place)}
        parts[part] = _listing(found, class_names)
        faults += [
            f"{folder / place / name} has no training images. Add some, or remove the folder"
            for name in found
            if name not in class_names
        ]
    empty = set(range(len(class_names))) - set(parts["train"].labels.tolist())
    faults += [f"{train / class_names[k]} has no images. Add some, or remove the folder" for k in sorted(empty)]
    return Survey(folder, parts, class_names, faults)


def _places(folder: Path) -> dict[str, str]:
    if not (folder / "train").is_dir():
        return {"train": "."}
    if (folder / "test").is_dir():
        return {"train": "train", "validation": "val", "test": "test"}
    return {"train": "train", "test": "val"}


def _folders_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(root: Path, folder: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in images_in(folder))


def _listing(found: dict[str, list[str]], class_names: list[str]) -> Listing:
    names = [name for known in class_names for name in found.get(known, [])]
    sizes = [len(found.get(known, [])) for known in class_names]
    return Listing(names, np.repeat(np.arange(len(class_names)), sizes))

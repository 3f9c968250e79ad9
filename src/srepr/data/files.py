"""Data sets of image files: read file lists, find unreadable images, build the sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from srepr.data.augment import central_box, decode
from srepr.data.dataset import LongTailData
from srepr.data.examples import IMAGENET_MEAN, IMAGENET_STD, ArrayExamples, Examples, FileExamples
from srepr.data.identity import file_sizes
from srepr.data.image import absence, check_size, open_image
from srepr.data.longtail import Labels
from srepr.errors import InputError
from srepr.progress import Progress
from srepr.storage.outside import open_text

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SMALL = 64
"""Images up to this size are kept in memory and augmented by padding and cropping, not by resized crops."""
LARGEST = 224
LOOKED_AT = 200  # files, to learn how large the images are


class Listing(NamedTuple):
    """File paths relative to a folder, and the class of each."""

    names: list[str]
    labels: Labels


class Survey(NamedTuple):
    """The images that a folder or a table lists, before any of them is opened."""

    root: Path | None
    """The folder of the images; None for texts."""
    parts: dict[str, Listing]
    class_names: list[str]
    faults: list[str]
    """What is wrong with the list, one line each. Data with faults are not read."""


def read_list(path: Path, classes: int) -> Listing:
    r"""Read a file list with one line `relative/path label` per image.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "val.txt").write_text("val/a b.jpg 0\nval/c.jpg 1\n")
    ...     read_list(Path(folder, "val.txt"), classes=2)
    Listing(names=['val/a b.jpg', 'val/c.jpg'], labels=array([0, 1]))
    """
    names, labels = [], []
    numbers = {str(k): k for k in range(classes)}
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            name, _, label = line.strip().rpartition(" ")
            if not (name and label.isdecimal() and (label.lstrip("0") or "0") in numbers):
                raise InputError(
                    f"{path}, line {number}: {line.strip()[:80]!r} is not a path and a label from 0 to {classes - 1}. "
                    "Fix the line, or use the official list"
                )
            names.append(name)
            labels.append(numbers[label.lstrip("0") or "0"])
    return Listing(names, np.array(labels, dtype=np.int64))


def images_in(folder: Path) -> Iterator[Path]:
    """Image files below a folder, in any order. Broken links are among them: whoever reads them reports them."""
    for path in folder.rglob("*"):
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and not path.is_dir():
            yield path


def why_bad(path: Path) -> str | None:
    """Why an image file cannot be used, or None. A JPEG is decoded at 1/8 scale, for speed."""
    try:
        with open_image(path) as image:
            image.draft(image.mode, (1, 1))
            check_size(image)
            image.load()
    except FileNotFoundError:
        return absence(path)
    except Exception as error:  # decoders raise almost anything on broken bytes
        return f"cannot be decoded: {str(error).rstrip('.')}"
    return None


def image_data(
    name: str,
    root: Path,
    parts: Mapping[str, Listing],
    class_names: Sequence[str],
    *,
    image_size: int | None = None,
    skip_bad_images: bool = False,
    side: int | None = None,
) -> LongTailData:
    """Build a data set from listings for "train" and, optionally, "validation" and "test".

    `side` is how large the files are, by default that of most of them. Without `image_size`, images have that size: at
    most 224, and a multiple of 32 beyond 64.
    """
    side = usual_side(root, parts["train"].names) if side is None else side
    if image_size is not None and (image_size <= SMALL or side > SMALL):
        side = image_size
    elif side > SMALL:
        side = min(LARGEST, -(-side // 32) * 32)
    skipped: list[str] = []
    built: dict[str, Examples] = {}
    for part, listing in parts.items():
        if skip_bad_images:
            bad = np.array([reason is not None for reason in reasons(root, listing.names)], dtype=np.bool_)
            skipped += [str(root / listing.names[i]) for i in np.flatnonzero(bad)]
            listing = Listing([listing.names[i] for i in np.flatnonzero(~bad)], listing.labels[~bad])
        build = _in_memory if side <= SMALL else _on_disk
        built[part] = build(root, listing, tuple(class_names), side)
    return LongTailData(
        name=name,
        train=built["train"],
        validation=built.get("validation"),
        test=built.get("test"),
        skipped=tuple(skipped),
    )


def usual_side(root: Path, names: Sequence[str]) -> int:
    """The median of the shorter sides of some of the images, in pixels; 224 if none can be read.

    >>> usual_side(Path("nowhere"), ["1.jpg"])
    224
    """
    sides = []
    for name in names[:: max(1, len(names) // LOOKED_AT)]:
        # Decoders raise almost anything; a bad image is reported where it is decoded.
        with suppress(Exception), open_image(root / name) as image:
            sides.append(min(image.size))
    return max(8, int(np.median(sides))) if sides else LARGEST


def surveyed(name: str, survey: Survey, *, image_size: int | None, skip_bad_images: bool) -> LongTailData:
    """Build a data set from a survey without faults."""
    if survey.faults:
        raise InputError(survey.faults[0])
    root, parts, class_names, _ = survey
    assert root is not None
    return image_data(name, root, parts, class_names, image_size=image_size, skip_bad_images=skip_bad_images)


def reasons(root: Path, names: Sequence[str]) -> list[str | None]:
    """Why each image file cannot be used, or None."""
    found: list[str | None] = []
    with ThreadPool() as pool, Progress("check images", total=len(names)) as progress:
        for reason in pool.imap(why_bad, (root / name for name in names), chunksize=32):
            found.append(reason)
            progress.advance()
    return found


def _on_disk(root: Path, listing: Listing, class_names: tuple[str, ...], size: int) -> FileExamples:
    file_sizes(root, listing.names)  # report a missing file now, not during the first epoch
    return FileExamples(root, tuple(listing.names), listing.labels, class_names, size)


def _in_memory(root: Path, listing: Listing, class_names: tuple[str, ...], size: int) -> ArrayExamples:
    pixels = np.empty((len(listing.names), 3, size, size), dtype=np.uint8)
    whole = partial(central_box, fraction=1.0)
    for row, name in zip(pixels, listing.names, strict=True):
        row[:] = np.asarray(decode(root / name, size, whole)).transpose(2, 0, 1)
    return ArrayExamples(
        pixels, listing.labels, class_names, IMAGENET_MEAN, IMAGENET_STD, padding=size // 8, flip=True
    )

"""iNaturalist-2018 (Van Horn et al. 2018): 437,513 training and 24,426 test images of 8,142 species.

The literature uses the official validation set as the test set. Text files of `path label` lines or the official
annotation files list the images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import LARGEST, Listing, image_data, read_list
from srepr.errors import InputError
from srepr.storage.outside import parse_json, read_text

CLASSES = 8142
_FILES = {
    "train": ("iNaturalist18_train.txt", "train2018.json"),
    "test": ("iNaturalist18_val.txt", "val2018.json"),
}


def read(data_dir: Path, *, image_size: int | None = None, skip_bad_images: bool = False) -> LongTailData:
    """Read the text lists or, if missing, the annotations in `data_dir`; image paths are relative to `data_dir`."""
    parts = {}
    for part, (plain, official) in _FILES.items():
        if (data_dir / plain).is_file():
            parts[part] = read_list(data_dir / plain, CLASSES)
        elif (data_dir / official).is_file():
            parts[part] = read_annotations(data_dir / official, CLASSES)
        else:
            raise InputError(
                f"{data_dir} has neither {plain} nor {official}. Put one of them there, next to train_val2018/"
            )
    kingdom = dict(
        zip(parts["train"].labels.tolist(), (Path(n).parent.parent.name for n in parts["train"].names), strict=True)
    )
    class_names = [f"{kingdom.get(k, '')} {k}".strip() for k in range(CLASSES)]
    return image_data(
        "inaturalist18",
        data_dir,
        parts,
        class_names,
        image_size=image_size,
        skip_bad_images=skip_bad_images,
        side=LARGEST,
    )


def read_annotations(path: Path, classes: int) -> Listing:
    """Read a COCO-style annotation file: images[].file_name, annotations[].category_id.

    >>> path = getfixture("tmp_path") / "val2018.json"
    >>> text = '{"images": [{"id": 5, "file_name": "a.jpg"}], "annotations": [{"image_id": 5, "category_id": 1}]}'
    >>> _ = path.write_text(text)
    >>> read_annotations(path, classes=2)
    Listing(names=['a.jpg'], labels=array([1]))
    """
    content = parse_json(read_text(path), f"{path} is not an annotation file:")
    try:
        label_of = {entry["image_id"]: entry["category_id"] for entry in content["annotations"]}
        found = [(image["file_name"], label_of[image["id"]]) for image in content["images"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not an annotation file: {type(error).__name__} {error}. Download the official file"
        ) from error
    for name, label in found:
        if not isinstance(name, str) or type(label) is not int or not 0 <= label < classes:
            raise InputError(
                f"{path}: {name!s:.80} has label {label!s:.80}, not one from 0 to {classes - 1}. Use the official file"
            )
    return Listing([name for name, _ in found], np.array([label for _, label in found], dtype=np.int64))

"""iNaturalist-2018 (Van Horn et al. 2018): 437,513 training and 24,426 test images of 8,142 species.

The literature uses the official validation set as the test set. Text files of `path label` lines or the official
annotation files list the images.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from srepr.data.dataset import LongTailData
from srepr.data.files import LARGEST, Listing, image_data, read_list
from srepr.errors import InputError

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

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     content = {"images": [{"id": 5, "file_name": "a.jpg"}], "annotations": [{"image_id": 5, "category_id": 1}]}
    ...     _ = Path(folder, "val2018.json").write_text(json.dumps(content))
    ...     read_annotations(Path(folder, "val2018.json"), classes=2)
    Listing(names=['a.jpg'], labels=array([1]))
    """
    try:
        content = json.loads(path.read_text())
        label_of = {entry["image_id"]: entry["category_id"] for entry in content["annotations"]}
        names = [image["file_name"] for image in content["images"]]
        labels = np.array([label_of[image["id"]] for image in content["images"]], dtype=np.int64)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not an annotation file: {type(error).__name__} {error}. Download the official file"
        ) from error
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"{path}: {names[wrong[0]]} has label {labels[wrong[0]]}, not one from 0 to {classes - 1}. "
            "Use the official file"
        )
    return Listing(names, labels)

"""ImageNet-LT (Liu et al. 2019): 115,846 / 20,000 / 50,000 images of 1000 classes, listed in three text files."""

from __future__ import annotations

from pathlib import Path

from srepr.data.dataset import LongTailData
from srepr.data.files import LARGEST, image_data, read_list
from srepr.errors import InputError

CLASSES = 1000
LISTS = {"train": "ImageNet_LT_train.txt", "validation": "ImageNet_LT_val.txt", "test": "ImageNet_LT_test.txt"}


def read(data_dir: Path, *, image_size: int | None = None, skip_bad_images: bool = False) -> LongTailData:
    """Read the lists in `data_dir` or `data_dir/ImageNet_LT`; image paths are relative to `data_dir`."""
    folder = data_dir / "ImageNet_LT" if (data_dir / "ImageNet_LT").is_dir() else data_dir
    for name in (LISTS["train"], LISTS["test"]):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}. Put the lists ImageNet_LT_train.txt, ImageNet_LT_val.txt and "
                "ImageNet_LT_test.txt there, next to ImageNet's train/ and val/"
            )
    parts = {part: read_list(folder / name, CLASSES) for part, name in LISTS.items() if (folder / name).is_file()}
    synset = dict(
        zip(parts["train"].labels.tolist(), (Path(n).parent.name for n in parts["train"].names), strict=True)
    )
    class_names = [synset.get(k, str(k)) for k in range(CLASSES)]
    return image_data(
        "imagenet-lt",
        data_dir,
        parts,
        class_names,
        image_size=image_size,
        skip_bad_images=skip_bad_images,
        side=LARGEST,
    )

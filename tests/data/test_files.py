import json

import numpy as np
import pytest

from srepr.data import FileExamples, load
from srepr.data.files import Listing, image_data, read_list, why_bad
from srepr.data.inaturalist import read_annotations
from srepr.errors import InputError


def test_the_public_lists_are_read_whole(real_lists):
    validation = read_list(real_lists / "ImageNet_LT_val.txt", 1000)
    test = read_list(real_lists / "ImageNet_LT_test.txt", 1000)
    species = read_list(real_lists / "iNaturalist18_val.txt", 8142)
    assert (np.bincount(validation.labels) == 20).all()
    assert (np.bincount(test.labels) == 50).all()
    assert len(test.names) == len(set(test.names)) == 50_000
    assert np.bincount(species.labels).tolist() == [3] * 8142
    counts = json.loads((real_lists / "ImageNet_LT_train_class_counts.json").read_text())
    assert (sum(counts), len(counts)) == (115_846, 1000)


@pytest.mark.parametrize("line", ["a.jpg 3", "a.jpg -1", "a.jpg", "a.jpg x", " 1", ""])
def test_a_bad_line_is_named_with_its_number(tmp_path, line):
    (tmp_path / "list.txt").write_text(f"a.jpg 2\n{line}\na.jpg 0\n")
    with pytest.raises(InputError, match=r"list\.txt, line 2: .* is not a path and a label from 0 to 2"):
        read_list(tmp_path / "list.txt", 3)


def write_lists(root, lists, write_image):
    for file, rows in lists.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("".join(f"{name} {label}\n" for name, label in rows))
        for name, _ in rows:
            write_image(root / name)


@pytest.mark.parametrize("place", ["", "ImageNet_LT/"])
def test_imagenet_lt_from_its_lists(tmp_path, write_image, monkeypatch, place):
    monkeypatch.setattr("srepr.data.imagenet_lt.CLASSES", 2)
    lists = {
        f"{place}ImageNet_LT_train.txt": [("train/n01/a.jpg", 0), ("train/n01/b.jpg", 0), ("train/n02/c.jpg", 1)],
        f"{place}ImageNet_LT_val.txt": [("train/n01/v.jpg", 0)],
        f"{place}ImageNet_LT_test.txt": [("val/n01/t.jpg", 0), ("val/n02/u.jpg", 1)],
    }
    write_lists(tmp_path, lists, write_image)
    data = load("imagenet-lt", data_dir=tmp_path)
    assert (data.class_names, data.counts.tolist()) == (("n01", "n02"), [2, 1])
    assert data.train.shape == (3, 224, 224)
    assert data.validation is None
    assert len(load("imagenet-lt", data_dir=tmp_path, protocol="holdout").validation) == 1

    (tmp_path / "train/n02/c.jpg").unlink()
    with pytest.raises(InputError, match=r"train/n02/c\.jpg does not exist"):
        load("imagenet-lt", data_dir=tmp_path)


def test_inaturalist_from_lists_and_from_annotations_is_the_same(tmp_path, write_image, monkeypatch):
    monkeypatch.setattr("srepr.data.inaturalist.CLASSES", 3)
    rows = {
        "train": [
            ("train_val2018/Aves/0/a.jpg", 0),
            ("train_val2018/Aves/1/b.jpg", 1),
            ("train_val2018/Fungi/2/c.jpg", 2),
        ],
        "val": [("train_val2018/Fungi/2/d.jpg", 2)],
    }
    write_lists(tmp_path / "lists", {f"iNaturalist18_{part}.txt": r for part, r in rows.items()}, write_image)
    write_lists(tmp_path / "json", {f"ignored_{part}.txt": r for part, r in rows.items()}, write_image)
    for part, entries in rows.items():
        content = {
            "images": [{"id": 70 + i, "file_name": name} for i, (name, _) in enumerate(entries)],
            "annotations": [
                {"image_id": 70 + i, "category_id": k} for i, (_, k) in reversed(list(enumerate(entries)))
            ],
        }
        (tmp_path / "json" / f"{part}2018.json").write_text(json.dumps(content))
    from_lists, from_json = (load("inaturalist18", data_dir=tmp_path / kind) for kind in ("lists", "json"))
    assert from_lists.fingerprint() == from_json.fingerprint()
    assert from_json.class_names == ("Aves 0", "Aves 1", "Fungi 2")
    assert from_json.test.labels.tolist() == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not an annotation file"),
        ("{", "is not an annotation file"),
        ('{"images": [{"id": 1, "file_name": "a"}], "annotations": []}', "is not an annotation file: KeyError 1"),
        (
            '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "category_id": 9}]}',
            "a has label 9, not one from 0 to 2",
        ),
    ],
)
def test_a_bad_annotation_file_is_explained(tmp_path, content, message):
    (tmp_path / "val.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_annotations(tmp_path / "val.json", 3)


@pytest.fixture
def damaged(tmp_path, write_image):
    for i in range(6):
        write_image(tmp_path / f"{i}.jpg", i, size=(300, 200))
    (tmp_path / "1.jpg").write_bytes((tmp_path / "1.jpg").read_bytes()[:-400])
    (tmp_path / "3.jpg").write_bytes(b"")
    (tmp_path / "4.jpg").unlink()
    return tmp_path, {"train": Listing([f"{i}.jpg" for i in range(6)], np.array([0, 0, 0, 1, 1, 1]))}


def test_bad_files_are_found_and_named(damaged):
    root, _ = damaged
    reasons = [why_bad(root / f"{i}.jpg") for i in range(6)]
    assert [reason is None for reason in reasons] == [True, False, True, False, False, True]
    assert "truncated" in reasons[1]
    assert reasons[4] == "does not exist"


@pytest.mark.parametrize("image_size", [None, 32])
def test_bad_files_are_left_out_where_that_is_asked_for(damaged, image_size):
    root, parts = damaged
    with pytest.raises(InputError, match=r"[134]\.jpg (does not exist|cannot be decoded)"):
        image_data("birds", root, parts, ["crow", "wren"], image_size=image_size)
    data = image_data("birds", root, parts, ["crow", "wren"], image_size=image_size, skip_bad_images=True)
    assert data.skipped == tuple(str(root / f"{i}.jpg") for i in (1, 3, 4))
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.train.load(np.arange(3)).shape == (3, 3, image_size or 224, image_size or 224)
    assert isinstance(data.train, FileExamples) == (image_size is None)

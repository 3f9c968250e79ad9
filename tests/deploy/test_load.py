"""`srepr.load`: the classifier of a run or of a file, which says of images what the command line says."""

import json

import numpy as np
import pytest
from PIL import Image

import srepr as package
from srepr import data
from srepr.errors import InputError

TEST = data.load("digits-lt").test


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten digits as PNG files, two of them in a folder below."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    for index in range(10):
        place = folder / "more" if index > 7 else folder
        Image.fromarray(TEST.inputs[index, 0]).save(place / f"{index}.png")
    return folder


@pytest.fixture(params=["run", "file with a prior"])
def model(request, srepr, retrained, tmp_path):
    if request.param == "run":
        return retrained
    words = ["--format", "safetensors", "--head", "disalign", "--prior", "train", "-o", tmp_path / "model"]
    assert srepr("export", retrained, *words).code == 0
    return tmp_path / "model.safetensors"


def rows_of(answer):
    assert answer.code == 0, answer
    return [json.loads(line) for line in answer.out.splitlines()]


def test_it_knows_its_classes(model):
    assert package.load(model).class_names == tuple("0123456789")
    assert package.load(str(model)).about == package.load(model).about


def test_it_says_of_files_and_folders_what_the_command_line_says(srepr, model, photos):
    classifier = package.load(model)
    one, two = photos / "3.png", photos / "more" / "8.png"
    for given, typed, count in (
        (one, [one], 1),
        (str(one), [one], 1),
        ([one, str(two)], [one, two], 2),
        (photos, [photos], 10),
    ):
        expected = rows_of(srepr("predict", model, *typed, "--top", 3, "--format", "jsonl", "--workers", 0))
        assert len(expected) == count
        assert classifier.predict(given, top=3) == expected
    assert [*classifier.predict(one)[0]] == [*expected[0]][:4]


def test_the_head_of_a_run_is_chosen_by_name(srepr, retrained, photos):
    for head in ("sgd", "lws"):
        expected = rows_of(srepr("predict", retrained, photos, "--head", head, "--format", "jsonl"))
        assert package.load(retrained, head).predict(photos) == expected


def test_tensors_are_answered_with_tensors(model):
    """The rows are those numbers, shortened to six digits."""
    classifier = package.load(model)
    answer = classifier.predict(TEST.load(np.arange(10)))
    rows = classifier.rows(data.unlabelled.Unlabelled([str(k) for k in range(10)], TEST.subset(np.arange(10))))
    for row, label, shares, doubt in zip(rows, answer.label, answer.probabilities, answer.uncertainty, strict=True):
        assert row["label"] == str(int(label))
        assert row["probability"] == pytest.approx(float(shares.max()), rel=1e-5)
        assert row["uncertainty"] == pytest.approx(float(doubt), rel=1e-5)


def test_what_cannot_be_loaded_is_said(retrained, tmp_path):
    with pytest.raises(InputError, match=r"is not a folder\. Pass a run folder made by `srepr train`"):
        package.load(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"unknown head .*'disaling'.*; did you mean disalign\?"):
        package.load(retrained, "disaling")
    with pytest.raises(InputError, match=r"holds a single classifier\. Leave `head` out"):
        package.load(retrained / "sgd.safetensors", "sgd")
    (tmp_path / "model.onnx").touch()
    with pytest.raises(InputError, match=r"model\.onnx is not a run folder or a \.safetensors file\. Pass one"):
        package.load(tmp_path / "model.onnx")

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from srepr.data import ArrayExamples, catalogue, digits, exponential_counts, load, step_counts
from srepr.errors import InputError


def test_digits_lt_is_the_split_that_is_documented():
    data = load("digits-lt")
    assert data.counts.tolist() == exponential_counts(120, 10, 0.02)
    assert (len(data.train), len(data.test), data.validation) == (331, 597, None)
    assert data.train.shape == (1, 8, 8)
    everything = digits.read()
    pixels = np.concatenate([everything.train.inputs, everything.test.inputs]) / 255
    assert digits.MEAN[0] == pytest.approx(pixels.mean(), abs=1e-4)
    assert digits.STD[0] == pytest.approx(pixels.std(), abs=1e-4)
    assert len(np.unique(pixels)) == 17


def test_the_seed_draws_another_training_set_and_leaves_the_test_set():
    zero, again, one = (load("digits-lt", seed=seed) for seed in (0, 0, 1))
    assert zero.fingerprint() == again.fingerprint()
    assert zero.train.fingerprint() != one.train.fingerprint()
    assert zero.test.fingerprint() == one.test.fingerprint()


def test_imbalance_profile_and_counts_cut_the_training_part():
    assert load("digits-lt", imbalance=1.0).counts.tolist() == [120] * 10
    assert load("digits-lt", imbalance=0.1).counts.tolist() == exponential_counts(120, 10, 0.1)
    assert load("digits-lt", profile="step").counts.tolist() == step_counts(120, 10, 0.02)
    assert load("digits-lt", counts=list(range(1, 11))).counts.tolist() == list(range(1, 11))


def test_a_profile_is_laid_over_the_classes_by_their_size(tmp_path):
    y = np.repeat([0, 1, 2], [20, 100, 50])
    np.savez(tmp_path / "v.npz", x_train=np.zeros((170, 2)), y_train=y, x_test=np.zeros((3, 2)), y_test=np.arange(3))
    data = load(tmp_path / "v.npz", protocol="paper", imbalance=0.01)
    assert data.counts.tolist() == [1, 100, 10]
    assert load(tmp_path / "v.npz", protocol="paper", imbalance=0.9).counts.tolist() == [20, 100, 50]


def test_the_holdout_protocol_takes_validation_from_training_and_nothing_else():
    paper, held = load("digits-lt"), load("digits-lt", protocol="holdout", holdout=0.2)
    assert (held.counts + held.validation.counts == paper.counts).all()
    assert held.counts.min() >= 1
    assert held.validation.counts.min() >= 1
    assert held.test.fingerprint() == paper.test.fingerprint()
    together = np.concatenate([held.train.inputs, held.validation.inputs])
    assert sorted(image.tobytes() for image in together) == sorted(image.tobytes() for image in paper.train.inputs)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("cifar100", {}, r"^unknown data set 'cifar100'; did you mean cifar100-lt\? Known: .*, or the path"),
        ("nothing-like-it", {}, "^unknown data set 'nothing-like-it'. Known: cifar10-lt, "),
        ("cifar100-lt", {}, "needs `data_dir`, .* srepr data get cifar100-lt"),
        ("digits-lt", {"protocol": "best"}, "^unknown protocol 'best'. Known: paper, holdout$"),
        ("digits-lt", {"profile": "linear"}, "^unknown profile 'linear'. Known: exponential, step$"),
        ("digits-lt", {"imbalance": 0.0}, "imbalance of 0 must lie in"),
        ("digits-lt", {"imbalance": 0.1, "counts": [1] * 10}, "`counts` and `imbalance` exclude each other"),
        ("digits-lt", {"counts": [0] + [1] * 9}, "empty class: '0'"),
        ("digits-lt", {"counts": [121] * 10}, "class 0 has 120 examples, not 121"),
        ("digits-lt", {"counts": [5] * 9}, "9 class counts for 10 classes"),
    ],
)
def test_what_cannot_be_loaded_is_explained(source, options, message):
    with pytest.raises(InputError, match=message) as error:
        load(source, **options)
    assert "\n" not in str(error.value)


def test_vectors_have_no_image_size(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2)
    with pytest.raises(InputError, match=r"v\.npz holds no images\. Leave out `image_size`"):
        load(tmp_path / "v.npz", image_size=32)


def test_images_are_scaled_to_the_image_size():
    small, large = load("digits-lt").train, load("digits-lt", image_size=24).train
    assert (small.shape, large.shape, large.given) == ((1, 8, 8), (1, 24, 24), (1, 8, 8))
    some = np.arange(5)
    for view in (None, (0, 3)):
        wanted = torch.nn.functional.interpolate(small.load(some, view), (24, 24), mode="bilinear")
        torch.testing.assert_close(large.load(some, view), wanted)
    assert small.fingerprint() != large.fingerprint()


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "data.h5").touch()
    with pytest.raises(InputError, match=r"data\.h5 is not a folder, \.csv, \.jsonl or \.npz file"):
        load(tmp_path / "data.h5")


def test_a_description_is_json_and_counts_right():
    data = load("digits-lt", protocol="holdout")
    described = json.loads(json.dumps(data.describe()))
    assert described["sizes"] == {name: len(part) for name, part in data.parts.items()}
    assert sum(described["groups"].values()) == described["classes"] == 10
    assert described["imbalance"] == data.counts.max() / data.counts.min()
    assert described["fingerprint"] != load("digits-lt").describe()["fingerprint"]


def test_the_catalogue_says_how_to_get_every_source():
    assert len({entry.name for entry in catalogue()}) == 9
    assert all(entry.how_to_get and entry.what for entry in catalogue())


def test_listing_the_sources_does_not_import_torch():
    code = "import sys, srepr.data; srepr.data.catalogue(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", ["folder", "npz", "texts"])
def test_no_copy_of_a_training_example_is_held_out(tmp_path, kind):
    """A third of the examples are copies; the same examples as rows of a table are all different."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    pixels = np.concatenate([pixels, pixels[10:30]])
    labels = np.arange(60) % 2
    if kind == "folder":
        source = tmp_path
        for number, image in enumerate(pixels):
            (tmp_path / f"class {labels[number]}").mkdir(exist_ok=True)
            Image.fromarray(image).save(tmp_path / f"class {labels[number]}" / f"{number}.png")
    elif kind == "npz":
        np.savez(source := tmp_path / "images.npz", x=pixels, y=labels)
    else:
        source = tmp_path / "texts.csv"
        lines = (f"text {image.sum()} {image[0, 0]},{k}" for image, k in zip(pixels, labels, strict=True))
        source.write_text("\n".join(["text,label", *lines]))
    parts = load(source, protocol="holdout").parts
    seen = {}
    for name, part in parts.items():
        for index in range(len(part)):
            picture = part.thumbnail(index)
            content = part.excerpt(index) if picture is None else picture.tobytes()
            assert seen.setdefault(content, name) == name
    assert sum(map(len, parts.values())) == 60
    assert len(seen) == 40
    rows = ArrayExamples(pixels.reshape(60, -1), labels, ("a", "b"))
    assert len(np.unique(rows.identities())) == 60

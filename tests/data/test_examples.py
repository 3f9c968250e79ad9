from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from srepr.data.examples import ArrayExamples, FileExamples
from srepr.data.identity import file_sizes
from srepr.errors import InputError

NAMES = ("crow", "owl", "wren")


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    labels = np.array([0] * 8 + [1] * 3 + [2])
    return ArrayExamples(pixels, labels, NAMES, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), padding=2, flip=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory, write_image):
    root = tmp_path_factory.mktemp("files")
    names = tuple(f"{NAMES[k]}/{i}.jpg" for k, n in enumerate((8, 3, 1)) for i in range(n))
    for seed, name in enumerate(names):
        write_image(root / name, seed, size=(90, 70))
    return FileExamples(root, names, np.array([0] * 8 + [1] * 3 + [2]), NAMES, size=16)


@pytest.fixture(params=["images", "files"])
def part(request):
    return request.getfixturevalue(request.param)


def test_what_a_part_says_about_itself(part):
    assert len(part) == 12
    assert part.counts.tolist() == [8, 3, 1]
    assert part.load(np.array([3])).shape[1:] == part.shape
    assert part.subset(np.array([0, 11])).counts.tolist() == [1, 0, 1]


@pytest.mark.parametrize(("shape", "noun"), [((3, 8, 8), "images"), ((7,), "rows"), ((2, 5), "rows")])
def test_examples_are_called_what_they_are(shape, noun):
    assert ArrayExamples(np.zeros((3, *shape), dtype=np.uint8), np.arange(3), NAMES).noun == noun


@pytest.mark.parametrize("view", [None, (0, 5)])
def test_an_input_does_not_depend_on_the_batch_it_is_loaded_in(part, view):
    together = part.load(np.arange(12), view)
    order = np.random.default_rng(1).permutation(12)
    one_by_one = torch.cat([part.load(order[i : i + 1], view) for i in range(12)])
    assert torch.equal(together[order], one_by_one)
    assert together.dtype == torch.float32
    assert together.is_contiguous(memory_format=torch.channels_last)


def test_a_view_is_a_function_of_seed_and_epoch(part):
    every = np.arange(12)
    assert torch.equal(part.load(every, (1, 2)), part.load(every, (1, 2)))
    views = [part.load(every, view) for view in (None, (1, 2), (1, 3), (2, 2))]
    for i in range(4):
        for j in range(i):
            assert not torch.equal(views[i], views[j])


def test_evaluation_shows_the_images_as_they_are(images):
    expected = (images.inputs / 255 - np.reshape(images.mean, (3, 1, 1))) / np.reshape(images.std, (3, 1, 1))
    np.testing.assert_allclose(images.load(np.arange(12)).numpy(), expected, atol=1e-5)


def test_padding_is_black_before_normalisation(images):
    white = replace(images, inputs=np.full_like(images.inputs, 255))
    values = white.load(np.arange(12), (0, 0))
    for c, (mean, std) in enumerate(zip(white.mean, white.std, strict=True)):
        np.testing.assert_allclose(np.unique(values[:, c]), [-mean / std, (1 - mean) / std], atol=1e-5)


def test_augmentation_follows_the_index_within_the_part(images):
    """Two equal examples at one place of two parts look the same; at two places of one part they do not."""
    twice = images.subset(np.array([4, 4, 4, 4]))
    views = twice.load(np.arange(4), (0, 0))
    assert torch.equal(images.subset(np.array([4])).load(np.array([0]), (0, 0))[0], views[0])
    assert len({view.numpy().tobytes() for view in views}) > 1


def test_half_of_the_views_of_a_file_are_mirrored(tmp_path):
    gradient = np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8)[None, :, None], (64, 64, 3))
    Image.fromarray(np.ascontiguousarray(gradient)).save(tmp_path / "a.png")
    part = FileExamples(tmp_path, ("a.png",) * 200, np.zeros(200, dtype=np.int64), ("a",), size=8)
    views = part.load(np.arange(200), (0, 0))
    mirrored = (views[..., 0].mean((1, 2)) > views[..., -1].mean((1, 2))).sum().item()
    assert 70 < mirrored < 130  # 100 +- 4 standard deviations


def test_vectors_are_standardised_and_never_augmented():
    x = np.random.default_rng(0).normal(3, 2, (20, 4)).astype(np.float32)
    part = ArrayExamples(
        x, np.arange(20) % 3, NAMES, mean=tuple(x.mean(0, dtype=np.float64)), std=tuple(x.std(0, dtype=np.float64))
    )
    expected = (x - x.mean(0, dtype=np.float64)) / x.std(0, dtype=np.float64)
    np.testing.assert_allclose(part.load(np.arange(20), (0, 0)).numpy(), expected, atol=1e-5)
    assert part.shape == (4,)
    assert part.thumbnail(0) is None


def test_the_fingerprint_changes_with_everything_that_training_depends_on(images):
    assert replace(images, inputs=images.inputs.copy()).fingerprint() == images.fingerprint()
    brighter = images.inputs.copy()
    brighter[0, 0, 0, 0] ^= 1
    changes = [
        {"inputs": brighter},
        {"inputs": images.inputs.reshape(12, 3, 4, 16)},
        {"labels": images.labels[::-1]},
        {"class_names": (*NAMES, "rook")},
        {"mean": (0.5, 0.4, 0.31)},
        {"std": (0.2, 0.3, 0.5)},
        {"padding": 1},
        {"flip": False},
    ]
    prints = {replace(images, **change).fingerprint() for change in changes} | {images.fingerprint()}
    assert len(prints) == len(changes) + 1
    assert images.subset(np.arange(11)).fingerprint() not in prints


def test_the_fingerprint_of_files_is_that_of_their_names_and_sizes(files, tmp_path):
    for name in files.names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((files.root / name).read_bytes())
    moved = replace(files, root=tmp_path)
    assert moved.fingerprint() == files.fingerprint()
    assert replace(files, size=32).fingerprint() != files.fingerprint()
    assert files.subset(np.arange(12)[::-1]).fingerprint() != files.fingerprint()
    with (tmp_path / files.names[5]).open("ab") as more:
        more.write(b"\0")
    assert moved.fingerprint() != files.fingerprint()


def test_thumbnails_are_the_pictures(images, files):
    assert (np.asarray(images.thumbnail(3)) == images.inputs[3].transpose(1, 2, 0)).all()
    grey = ArrayExamples(images.inputs[:, :1], images.labels, NAMES)
    assert (np.asarray(grey.thumbnail(3)) == images.inputs[3, 0]).all()
    assert files.thumbnail(0).size == (96, 96)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"owl/7\.jpg does not exist"):
        file_sizes(tmp_path, ["owl/7.jpg"])

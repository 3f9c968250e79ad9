"""Arrays from outside: the header is checked first, and only what is asked for is read."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from srepr.data import load
from srepr.data.about import About
from srepr.data.numpy_files import Archive, map_array
from srepr.data.unlabelled import read_unlabelled
from srepr.errors import InputError

ABOUT = About(
    network="mlp", options={}, class_names=("a", "b"), counts=(9, 3), shape=(4,), mean=(0.0,) * 4, std=(1.0,) * 4
)


def npy(header, content=bytes(64), version=1):
    """An .npy file with any header."""
    text = header.encode().ljust(118) + b"\n"
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + content


def claim(shape="(2, 4)", dtype="'<f8'", fortran="False"):
    return f"{{'descr': {dtype}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


HEADERS = {
    "too large": claim("(10**15, 4)".replace("10**15", str(10**15))),
    "much too large": claim(f"({10**300}, {10**300})"),
    "negative": claim("(-2, -4)"),
    "bool": claim("(True, 4)"),
    "float": claim("(2.0, 4)"),
    "no tuple": claim("8"),
    "nothing in each": claim(f"({10**15}, 0)"),
    "many dimensions": claim(str((1,) * 70)),
    "objects": claim(dtype="'|O'"),
    "records": claim(dtype="[('a', '<f8'), ('b', '<f8')]"),
    "pairs": claim("(2, 2)", dtype="('<f8', (2,))"),
    "dates": claim(dtype="'<M8[s]'"),
    "bytes": claim(dtype="'|S8'"),
    "empty words": claim(f"({10**15},)", dtype="'<U0'"),
    "no dtype": claim(dtype="'wren'"),
    "no order": claim(fortran="7"),
    "not closed": "{'descr': '<f8'",
    "nested": "(" * 100,
    "a number": "7",
    "code": "__import__('os').getcwd()",
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_absurd_header_is_refused(tmp_path, name):
    content = npy(HEADERS[name])
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npy"):
        read_unlabelled([tmp_path / "x.npy"], ABOUT)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", npy(claim("(2,)", "'<i8'")))
    for read in (load, lambda path: read_unlabelled([path], ABOUT)):
        with pytest.raises(InputError, match=r"x\.npz"):
            read(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", npy(claim("(2, 4)"), bytes(63)), npy("", version=3), b"PK"])
def test_an_empty_or_short_file_is_refused(tmp_path, content):
    for name in ("x.npy", "x.npz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}"):
            read_unlabelled([tmp_path / name], ABOUT)


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "x.npy").open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"))
        file.truncate(1 << 32)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"x\.npy"):
        map_array(tmp_path / "x.npy")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_arrays_that_are_not_asked_for_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=np.arange(4))
    with zipfile.ZipFile(tmp_path / "a.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", bytes(1 << 26))
    tracemalloc.start()
    load(tmp_path / "a.npz")
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("srepr.data.numpy_files.UNPACKED", 1 << 20)
    rows = 1 << 16
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((rows, 4)), y=np.arange(rows) % 2)
    with pytest.raises(InputError, match=r"x in .* would be unpacked to 2,097,280 bytes"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.zeros((rows, 4)), y=np.arange(rows) % 2)
    assert len(load(tmp_path / "a.npz").counts) == 2


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_numpy_does_not_pack_is_not_unpacked(tmp_path, method):
    out = io.BytesIO()
    np.save(out, np.eye(4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        archive.writestr("x.npy", out.getvalue())
    with pytest.raises(InputError, match="packed in a way"):
        Archive(tmp_path / "x.npz")["x"]


@pytest.mark.parametrize("y", [[0, 4_000_000_000], [0, 2**62], np.array([0, 2**64 - 1], np.uint64)])
def test_a_label_beyond_the_number_of_examples_makes_no_classes(tmp_path, y):
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.array(y))
    with pytest.raises(InputError, match="empty class: '1' has no training example in"):
        load(tmp_path / "a.npz")


def test_labels_that_are_numbers_here_and_words_there_are_refused(tmp_path):
    x = np.eye(2)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(2), x_test=x, y_test=np.array(["0", "1"]))
    with pytest.raises(InputError, match="the labels in"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "<i8", ">u2", "?"])
def test_an_npy_file_is_mapped_and_read_as_written(tmp_path, order, dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    assert isinstance(map_array(tmp_path / "x.npy"), np.memmap)
    examples = read_unlabelled([tmp_path / "x.npy"], ABOUT).examples
    assert isinstance(examples.inputs, np.memmap)
    assert examples.load(np.arange(3)).tolist() == x.astype(np.float32).tolist()


def test_images_in_an_npy_file_are_mapped_in_every_layout(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    about = About(
        network="resnet8",
        options={},
        class_names=("a", "b"),
        counts=(9, 3),
        shape=(3, 8, 8),
        mean=(0,) * 3,
        std=(1,) * 3,
    )
    for layout in (images, images.transpose(0, 2, 3, 1)):
        np.save(tmp_path / "x.npy", layout)
        examples = read_unlabelled([tmp_path / "x.npy"], about).examples
        assert isinstance(examples.inputs, np.memmap)
        np.testing.assert_allclose(examples.load(np.arange(5)).numpy() * 255, images, atol=1e-3)

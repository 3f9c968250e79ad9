import hashlib
import io
import pickle
import struct
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from srepr.data import cifar, load
from srepr.data.cifar_files import LAYOUTS
from srepr.errors import InputError


@pytest.fixture
def records():
    """Ten training and four test records for each of the two, as (labels, pixels)."""
    random = np.random.default_rng(0)
    return {part: (random.integers(0, 10, n), random.integers(0, 256, (n, 3072), dtype=np.uint8)) for part, n in
            (("train", 10), ("test", 4))}  # fmt: skip


def binary(name, labels, pixels):
    head = [labels] if name == "cifar10-lt" else [labels // 5, labels]
    return np.column_stack([*(h.astype(np.uint8) for h in head), pixels]).tobytes()


def write_binary(folder, name, records):
    folder.mkdir(parents=True)
    layout = LAYOUTS[name]
    labels, pixels = records["train"]
    pieces = np.array_split(np.arange(10), len(layout.train))
    for file, rows in zip(layout.train, pieces, strict=True):
        (folder / file).write_bytes(binary(name, labels[rows], pixels[rows]))
    (folder / next(iter(layout.test))).write_bytes(binary(name, *records["test"]))


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as the strings of Python 2, and numpy's functions under the names they had then."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    def save_global(self, value, name=None):
        module = "numpy.core.multiarray" if value.__name__ == "_reconstruct" else value.__module__
        self.write(pickle.GLOBAL + f"{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(content):
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(content)
    return out.getvalue()


def write_pickles(folder, name, contents, monkeypatch):
    """Write the files and make theirs the official checksums."""
    folder.mkdir(parents=True)
    layout, sums = LAYOUTS[name], {}
    for part in ("train", "test"):
        files = getattr(layout, f"pickle_{part}")
        for file in files:
            (folder / file).write_bytes(contents[part])
        sums[f"pickle_{part}"] = dict.fromkeys(files, hashlib.md5(contents[part]).hexdigest())
    monkeypatch.setitem(LAYOUTS, name, replace(layout, **sums))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("inside", [False, True])
def test_binary_files_are_read_from_their_folder_or_the_one_around_it(tmp_path, records, name, inside):
    folder = tmp_path / LAYOUTS[name].folder
    write_binary(folder, name, records)
    data = cifar.read(folder if inside else tmp_path, name=name)
    for part in ("train", "test"):
        labels, pixels = records[part]
        assert getattr(data, part).labels.tolist() == labels.tolist()
        assert (getattr(data, part).inputs == pixels.reshape(-1, 3, 32, 32)).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_pickles_of_python_2_are_read(tmp_path, records, name, monkeypatch):
    key = LAYOUTS[name].pickle_labels
    contents = {part: python2_pickle({key: y.tolist(), "data": x}) for part, (y, x) in records.items()}
    write_pickles(tmp_path / LAYOUTS[name].pickle_folder, name, contents, monkeypatch)
    data = cifar.read(tmp_path, name=name)
    copies = len(LAYOUTS[name].pickle_train)
    assert data.train.labels.tolist() == records["train"][0].tolist() * copies
    assert (data.train.inputs[:10] == records["train"][1].reshape(-1, 3, 32, 32)).all()
    assert (data.test.inputs == records["test"][1].reshape(-1, 3, 32, 32)).all()


def test_a_pickle_with_another_checksum_is_not_opened(tmp_path, records):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(python2_pickle({"fine_labels": [0], "data": records["test"][1][:1]}))
    with pytest.raises(InputError, match="is not the official file"):
        cifar.read(tmp_path, name="cifar100-lt")


def test_a_pickle_cannot_run_code_whatever_its_checksum(tmp_path, monkeypatch):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    content = pickle.dumps({"fine_labels": [0], "data": Attack()}, protocol=2)
    write_pickles(tmp_path / "cifar-100-python", "cifar100-lt", {"train": content, "test": content}, monkeypatch)
    with pytest.raises(InputError, match=r"asks for .*open"):
        cifar.read(tmp_path, name="cifar100-lt")
    assert not (tmp_path / "owned").exists()


def test_a_truncated_file_is_explained(tmp_path, records):
    write_binary(tmp_path / "cifar-100-binary", "cifar100-lt", records)
    train = tmp_path / "cifar-100-binary/train.bin"
    train.write_bytes(train.read_bytes()[:3073])
    message = (
        r"cifar-100-binary/train\.bin has 3,073 bytes, which is not a whole number of 3,074-byte records\. "
        r"Fetch it again with: srepr data get cifar100-lt --data-dir DIR --force"
    )
    with pytest.raises(InputError, match=message):
        load("cifar100-lt", data_dir=tmp_path)
    train.write_bytes(b"")
    with pytest.raises(InputError, match="has 0 bytes"):
        load("cifar100-lt", data_dir=tmp_path)


def test_a_label_out_of_range_is_explained(tmp_path, records):
    labels, pixels = records["train"]
    labels[7] = 12
    write_binary(tmp_path / "cifar-10-batches-bin", "cifar10-lt", {"train": (labels, pixels), "test": records["test"]})
    with pytest.raises(InputError, match=r"data_batch_4\.bin: record 1 has label 12, not one from 0 to 9"):
        cifar.read(tmp_path, name="cifar10-lt")


def test_a_missing_batch_is_named(tmp_path, records):
    write_binary(tmp_path / "cifar-10-batches-bin", "cifar10-lt", records)
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin is missing"):
        cifar.read(tmp_path, name="cifar10-lt")


def test_files_that_differ_from_the_official_ones_are_listed(tmp_path, records):
    write_binary(tmp_path / "cifar-100-binary", "cifar100-lt", records)
    (tmp_path / "cifar-100-binary/test.bin").unlink()
    [train, test] = cifar.wrong_files("cifar100-lt", tmp_path)
    assert "train.bin is not the official file" in train
    assert "test.bin is missing" in test


def test_the_classes_are_alphabetical_and_as_many_as_the_name_says():
    for layout, classes in ((LAYOUTS["cifar10-lt"], 10), (LAYOUTS["cifar100-lt"], 100)):
        assert len(set(layout.class_names)) == classes
        assert list(layout.class_names) == sorted(layout.class_names)


@pytest.mark.parametrize(("name", "size"), [("cifar10-lt", 12406), ("cifar100-lt", 10847)])
def test_the_real_files_make_the_benchmark(real_cifar, name, size):
    data = load(name, data_dir=real_cifar)
    assert len(data.train) == size
    assert len(data.test) == 10_000
    assert len(set(data.test.counts)) == 1
    assert data.counts.tolist() == sorted(data.counts, reverse=True)
    everything = cifar.read(real_cifar, name=name).train
    channel = everything.inputs.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(channel, cifar.MEAN, atol=0.03)


def test_the_real_files_have_the_official_checksums(real_cifar):
    assert cifar.wrong_files("cifar100-lt", real_cifar) == []

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from srepr.data import ArrayExamples, FileExamples, batches, epoch_batches
from srepr.errors import InputError


@pytest.fixture(scope="module")
def files(tmp_path_factory, write_image):
    root = tmp_path_factory.mktemp("files")
    for i in range(10):
        write_image(root / f"{i}.png", i)
    return FileExamples(root, tuple(f"{i}.png" for i in range(10)), np.arange(10) % 3, ("a", "b", "c"), size=8)


class Dying(FileExamples):
    def load(self, indices, view=None):
        os._exit(9)


class Faulty(FileExamples):
    def load(self, indices, view=None):
        raise RuntimeError("a fault of the program")


def dressed_as(kind, files):
    return kind(files.root, files.names, files.labels, files.class_names, files.size)


@pytest.mark.parametrize("view", [None, (3, 1)])
def test_the_batches_are_the_same_for_every_number_of_workers(files, view):
    steps = epoch_batches(files.labels, batch_size=4, seed=0, epoch=0, drop_last=False)
    alone = list(batches(files, steps, view=view))
    for (inputs, labels, indices), step in zip(alone, steps, strict=True):
        assert torch.equal(inputs, files.load(step, view))
        assert labels.tolist() == files.labels[step].tolist()
        assert indices is step
    for workers in (1, 2):
        for one, other in zip(alone, batches(files, steps, view=view, workers=workers), strict=True):
            assert torch.equal(one[0], other[0])
            assert one[0].stride() == other[0].stride()
            assert torch.equal(one[1], other[1])


def test_what_is_in_memory_needs_no_worker():
    part = ArrayExamples(np.eye(4, dtype=np.float32), np.arange(4), ("a", "b", "c", "d"))
    [(inputs, labels, _)] = batches(part, [np.array([2, 1])], workers=64)
    assert torch.equal(inputs, torch.eye(4)[[2, 1]])
    assert labels.tolist() == [2, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_one_clear_line(files, tmp_path, workers):
    (tmp_path / "bad.png").write_text("no image")
    part = replace(files, root=tmp_path, names=("bad.png",) * 10)
    with pytest.raises(InputError, match=r"bad\.png cannot be decoded") as error:
        list(batches(part, [np.array([0])], workers=workers))
    assert "\n" not in str(error.value)


def test_a_worker_that_dies_is_an_input_error(files):
    with pytest.raises(InputError, match="a process that reads the data died"):
        list(batches(dressed_as(Dying, files), [np.array([0])], workers=1))


def test_a_fault_of_the_program_is_not_blamed_on_the_input(files):
    with pytest.raises(RuntimeError, match="a fault of the program") as error:
        list(batches(dressed_as(Faulty, files), [np.array([0])], workers=1))
    assert not isinstance(error.value, InputError)

"""Arrays in a folder: found by their description, or unknown; never half of one, whenever the writing ends."""

import itertools
import os
import signal
import threading
from functools import partial

import numpy as np
import pytest
from tests.kill import in_a_child, killed_in_rename

from srepr.run.folder import sole_writer
from srepr.storage.arrays import ArrayFolder

ABOUT = {"source": "mean", "view": 0, "inputs": None}
VALUES = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


def write(arrays, about=ABOUT, values=VALUES):
    with arrays.write([about]) as (append,):
        for row in values:
            append(row)


def is_there(arrays, about=ABOUT, values=VALUES):
    """Whole, or unknown: there is nothing between."""
    found = arrays.read(about, values.dtype)
    assert found is None or np.array_equal(found, values.reshape(-1))
    return found is not None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_what_is_written_in_chunks_is_read_whole_and_mapped(tmp_path, dtype):
    values = (100 * VALUES).astype(dtype)
    write(ArrayFolder(tmp_path / "cache"), values=values)
    found = ArrayFolder(tmp_path / "cache").read(ABOUT, dtype)
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, values.reshape(-1))


def test_several_arrays_are_written_side_by_side(tmp_path):
    arrays, other = ArrayFolder(tmp_path), {**ABOUT, "source": "labels"}
    with arrays.write([ABOUT, other]) as (append, append_labels):
        for row in VALUES:
            append(row)
            append_labels(np.array([int(row[0] > 0)]))
    assert is_there(arrays)
    assert is_there(arrays, other, (VALUES[:, 0] > 0).astype(np.int64))


@pytest.mark.parametrize(
    "other",
    [
        {**ABOUT, "view": 1},
        {**ABOUT, "inputs": "abc"},
        {**ABOUT, "seed": 0},
        {"source": "mean", "view": 0},
        {"source": "mean", "view": None, "inputs": 0},
    ],
)
def test_another_description_is_unknown(tmp_path, other):
    arrays = ArrayFolder(tmp_path)
    write(arrays)
    assert is_there(arrays)
    assert arrays.read(other, np.float32) is None
    write(arrays, other, -VALUES)
    assert is_there(arrays)
    assert is_there(arrays, other, -VALUES)


def test_the_order_of_a_description_does_not_matter(tmp_path):
    arrays = ArrayFolder(tmp_path)
    write(arrays)
    assert is_there(arrays, dict(reversed(ABOUT.items())))


def test_what_is_written_again_takes_the_place_of_the_old(tmp_path):
    arrays = ArrayFolder(tmp_path)
    write(arrays)
    mapped = arrays.read(ABOUT, np.float32)
    write(arrays, values=-VALUES[:3])
    assert is_there(arrays, values=-VALUES[:3])
    np.testing.assert_array_equal(mapped, VALUES.reshape(-1))  # whoever reads the old one may go on


def test_an_array_is_unknown_until_the_block_ends_and_after_an_error_in_it(tmp_path):
    arrays = ArrayFolder(tmp_path)

    def broken():
        with arrays.write([ABOUT, {**ABOUT, "view": 1}]) as appends:
            for append in appends:
                append(VALUES)
            assert not is_there(arrays)
            raise ValueError("cat.jpg is not an image")

    with pytest.raises(ValueError, match=r"cat\.jpg"):
        broken()
    assert not is_there(arrays)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("harm", ["shortened", "lengthened", "gone", "undescribed"])
def test_what_is_not_whole_is_unknown_until_it_is_written_again(tmp_path, harm):
    arrays = ArrayFolder(tmp_path)
    write(arrays)
    (kept,), (description,) = tmp_path.glob("*.bin"), tmp_path.glob("*.json")
    match harm:
        case "shortened":
            kept.write_bytes(kept.read_bytes()[:-4])
        case "lengthened":
            kept.write_bytes(kept.read_bytes() * 2)
        case "gone":
            kept.unlink()
        case "undescribed":
            description.unlink()
    assert not is_there(arrays)
    write(arrays)
    assert is_there(arrays)


@pytest.mark.parametrize("renamed", [False, True], ids=["before its rename", "after it"])
def test_killed_in_any_write_nothing_wrong_is_trusted(tmp_path, renamed):
    """A real process, a real SIGKILL, in each of the renames by which files appear."""
    others = [{**ABOUT, "view": view} for view in range(3)]

    def written(folder):
        with ArrayFolder(folder).write(others) as appends:
            for append in appends:
                append(VALUES)

    whole = []
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        if not killed_in_rename(partial(written, folder), number, renamed=renamed):
            break
        assert len(whole) < 9
        whole.append(sum(is_there(ArrayFolder(folder), about) for about in others))
        assert list(folder.glob(".*.partial")) or renamed
        with sole_writer(folder):
            assert not list(folder.glob(".*.partial"))
        written(folder)
        assert all(is_there(ArrayFolder(folder), about) for about in others)
        assert len(list(folder.glob("[!.]*"))) == 6
    # Each array and then its description: known once the latter is there.
    assert whole == ([0, 1, 1, 2, 2, 3] if renamed else [0, 0, 1, 1, 2, 2])


def test_killed_half_way_the_half_is_not_used(tmp_path):
    def half():
        with ArrayFolder(tmp_path).write([ABOUT]) as (append,):
            append(VALUES[:5])
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(half) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    assert not is_there(ArrayFolder(tmp_path))
    write(ArrayFolder(tmp_path))
    assert is_there(ArrayFolder(tmp_path))


@pytest.mark.parametrize("parts", [(4, 6), (0, 10), (10, 0), (3, 3, 4)])
def test_several_processes_write_one_array(tmp_path, parts):
    """Threads stand for the processes: each writes its rows, some none."""
    meet = threading.Barrier(len(parts)).wait

    def part(rank):
        arrays = ArrayFolder(tmp_path, rank=rank, meet=meet)
        first = sum(parts[:rank])
        with arrays.write([ABOUT], first) as (append,):
            for row in VALUES[first : first + parts[rank]]:
                append(row[None])

    threads = [threading.Thread(target=part, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_there(ArrayFolder(tmp_path))
    assert not list(tmp_path.glob(".*"))


def test_two_processes_at_once_do_not_confuse_each_other(tmp_path):
    """One is half through while the other writes the same from beginning to end."""
    (half, tell), (leave, go) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with ArrayFolder(tmp_path).write([ABOUT]) as (append,):
            append(VALUES[:5])
            os.write(tell, b"!")
            os.read(leave, 1)
            append(VALUES[5:])
        os._exit(0 if is_there(ArrayFolder(tmp_path)) else 1)
    os.read(half, 1)
    write(ArrayFolder(tmp_path))
    assert is_there(ArrayFolder(tmp_path))
    os.write(go, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_there(ArrayFolder(tmp_path))
    assert not list(tmp_path.glob(".*"))


def test_cleared_nothing_is_known_and_what_is_mapped_stays():
    arrays = ArrayFolder()
    arrays.clear()
    write(arrays)
    mapped = arrays.read(ABOUT, np.float32)
    arrays.clear()
    assert not is_there(arrays)
    assert not list(arrays.folder.iterdir())
    np.testing.assert_array_equal(mapped, VALUES.reshape(-1))
    write(arrays)
    assert is_there(arrays)


def test_a_temporary_folder_goes_with_its_object():
    arrays = ArrayFolder()
    write(arrays)
    folder = arrays.folder
    assert list(folder.iterdir())
    del arrays
    assert not folder.exists()


def test_reading_makes_no_folder(tmp_path):
    assert ArrayFolder(tmp_path / "cache").read(ABOUT, np.float32) is None
    assert not (tmp_path / "cache").exists()

import io

import numpy as np
import pytest
from rich.console import Console

from srepr.data import ArrayExamples, LongTailData, load
from srepr.data.check import check
from srepr.data.show import COLOURS, ROWS, show


def picture(data):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(show(data))
    return console.export_text(clear=False).splitlines(), console.export_text(styles=True)


def data_with(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    part = ArrayExamples(
        np.zeros((len(labels), 1), dtype=np.float32), labels, tuple(f"class {k}" for k in range(len(counts)))
    )
    return LongTailData(name="birds", train=part)


def bars(lines):
    return [line.count("█") for line in lines if any(block in line for block in "█▏▎▍▌▋▊▉")]


def test_few_classes_have_a_bar_each_from_the_largest_to_the_smallest():
    lines, coloured = picture(data_with([3, 400, 50]))
    rows = [line for line in lines if line.startswith("class")]
    assert [row.split()[1] for row in rows] == ["1", "2", "0"]
    assert [row.split()[-1] for row in rows] == ["400", "50", "3"]
    assert bars(lines) == [48, 6, 0]  # 48 * 400 / 400, 48 * 50 / 400, 48 * 3 / 400
    assert "3 classes, 453 train" in lines[0]
    assert "imbalance 133" in lines[1]
    assert len(COLOURS) == len({code for code in ("\x1b[32m", "\x1b[33m", "\x1b[31m") if code in coloured})


def test_many_classes_are_gathered_into_ranges():
    lines, _ = picture(data_with(np.arange(1, 10_001) // 1000 + 1))
    shown = bars(lines)
    assert len(shown) == ROWS
    assert shown == sorted(shown, reverse=True)


@pytest.mark.parametrize("counts", [[1, 1], [7]])
def test_the_smallest_data_sets_can_be_shown(counts):
    lines, _ = picture(data_with(counts))
    assert bars(lines) == [48] * len(counts)


def test_a_whole_data_set_has_no_problems(tmp_path, write_image):
    for k in "ab":
        for i in range(3):
            write_image(tmp_path / k / f"{i}.jpg", i)
    assert check(tmp_path) == []


def test_every_bad_image_is_listed_with_its_fault(tmp_path, write_image):
    for k in "ab":
        for i in range(6):
            write_image(tmp_path / k / f"{i}.jpg", i)
    (tmp_path / "a/1.jpg").write_bytes(b"")
    (tmp_path / "b/2.jpg").write_bytes((tmp_path / "b/2.jpg").read_bytes()[:300])
    problems = check(tmp_path)
    assert len(problems) == 2
    assert "a/1.jpg cannot be decoded" in problems[0]
    assert "b/2.jpg cannot be decoded" in problems[1]
    lines, _ = picture(load(tmp_path, skip_bad_images=True))
    assert any("2 unreadable files skipped" in line for line in lines)


def test_a_cifar_file_that_was_changed_is_listed(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for file in ("train.bin", "test.bin"):
        (folder / file).write_bytes(bytes(3074))
    assert [problem.split()[0].rsplit("/")[-1] for problem in check("cifar100-lt", data_dir=tmp_path)] == [
        "train.bin",
        "test.bin",
    ]


def test_a_problem_of_loading_is_a_problem(tmp_path):
    assert check("no-such-set")[0].startswith("unknown data set 'no-such-set'")

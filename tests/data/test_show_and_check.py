import io
import json

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


def test_what_is_wrong_with_folders_does_not_hide_what_is_wrong_with_images(tmp_path, write_image):
    for k in "ab":
        for i in range(2):
            write_image(tmp_path / "train" / k / f"{i}.jpg", i)
    write_image(tmp_path / "test" / "d" / "0.jpg")
    (tmp_path / "train" / "c").mkdir()
    (tmp_path / "train" / "e").symlink_to("gone")
    for name in ("a/0.jpg", "a/1.jpg", "b/1.jpg"):
        (tmp_path / "train" / name).write_bytes(b"")
    (tmp_path / "train" / "b" / "2.jpg").symlink_to("gone.jpg")
    problems = [problem.removeprefix(f"{tmp_path}/") for problem in check(tmp_path)]
    expected = [
        "train/e is a broken link to gone. Restore it, or remove it",
        "test/d has no training images. Add some, or remove the folder",
        "train/c has no images. Add some, or remove the folder",
        "train/a/0.jpg cannot be decoded",
        "train/a/1.jpg cannot be decoded",
        "train/b/1.jpg cannot be decoded",
        "train/b/2.jpg is a broken link to gone.jpg",
        "class 'a' has no training image that can be used. Add one",
    ]
    assert [problem[: len(line)] for problem, line in zip(problems, expected, strict=True)] == expected


def test_every_line_of_a_table_that_is_wrong_is_listed(tmp_path, write_image):
    write_image(tmp_path / "a.jpg")
    rows = ["a.jpg,x,train", "a.jpg,,train", "gone.jpg,x,train", "a.jpg,x,dev", "a.jpg,y,test"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    problems = [problem.removeprefix(f"{tmp_path}/") for problem in check(tmp_path / "t.csv")]
    assert problems == [
        "t.csv, line 3: the label is empty. Fill it in, or remove the line",
        "t.csv, line 5: 'dev' is not a split. Use train, validation or test",
        "t.csv: class 'y' has no training rows. Add some, or remove its rows",
        "gone.jpg does not exist",
    ]


@pytest.mark.parametrize("bad", [3, 20, 23])
def test_the_command_prints_every_problem_up_to_twenty(srepr, tmp_path, write_image, bad):
    for i in range(30):
        path = write_image(tmp_path / "owl" / f"{i:02}.jpg")
        if i < bad:
            path.write_bytes(b"")
    answer = srepr("data", "check", tmp_path)
    assert answer.complaint.startswith(f"{tmp_path} has {bad} problems.")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[:20]] == [str(tmp_path / f"owl/{i:02}.jpg") for i in range(min(bad, 20))]
    assert lines[20:] == (["and 3 more: see --json"] if bad == 23 else [])
    assert len(json.loads(srepr("data", "check", tmp_path, "--json").out)["problems"]) == bad


def test_a_single_problem_is_the_complaint(srepr, tmp_path, write_image):
    write_image(tmp_path / "owl" / "0.jpg")
    write_image(tmp_path / "owl" / "1.jpg").write_bytes(b"")
    answer = srepr("data", "check", tmp_path)
    assert answer.complaint.startswith(f"{tmp_path / 'owl/1.jpg'} cannot be decoded")
    assert answer.out == ""


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

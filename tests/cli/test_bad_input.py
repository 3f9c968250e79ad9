"""Everything a person can get wrong: exit code 2, one line that names the thing, nothing half-written."""

import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from srepr.storage.files import read_json


def write_images(folder, **classes):
    """A folder of class folders with so many 12x12 pictures in each."""
    chance = np.random.default_rng(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(chance.integers(0, 256, (12, 12, 3), np.uint8)).save(folder / name / f"{number}.jpg")
    return folder


@pytest.fixture
def birds(tmp_path):
    return write_images(tmp_path / "birds", crow=12, owl=6, wren=1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["trian", "digits-lt"], "unknown command 'trian'; did you mean train? Known: demo, "),
        (["train", "cifar-100-lt", "--out", "R"], "unknown data set 'cifar-100-lt'; did you mean cifar100"),
        (["train", "digits-lt", "--out", "R", "--epoch", "3"], "Unrecognized options: --epoch, 3, did you mean --epo"),
        (["train", "digits-lt", "--out", "R", "--epochs", "ten"], "Error parsing --epochs: invalid literal for int()"),
        (["train", "digits-lt", "--out", "R", "--optim.lr", "big"], "Error parsing --optim.lr: could not convert"),
        (["train", "digits-lt", "--out", "R", "--optim.lr", "-1"], "--optim.lr is -1.0: it must be above 0. See: sre"),
        (["train", "digits-lt", "--out", "R", "--epochs", "0"], "--epochs is 0: at least 1 is needed"),
        (["train", "digits-lt", "--out", "R", "--seed", "-1"], "--seed is -1: it must lie in 0 .. 4294967295"),
        (["train", "digits-lt", "--out", "R", "--batch-size", "1"], "--batch-size is 1: BatchNorm needs at least 2"),
        (["train", "digits-lt", "--out", "R", "--imbalance", "2"], "--imbalance is 2.0: it must lie in (0, 1]"),
        (["train", "digits-lt", "--out", "R", "--precision", "8"], "invalid choice '8' for argument '--precision'."),
        (["train", "digits-lt", "--out", "R", "--counts", "1", "2"], "2 class counts for 10 classes."),
        (["train", "digits-lt", "--out", "R", "--network", "resnet9"], "unknown network 'resnet9'; did you mean"),
        (["train", "digits-lt", "--out", "R", "--image-size", "4"], "--image-size is 4: it must lie in 8 .. 4096"),
        (
            ["train", "digits-lt", "--out", "R", "--precision", "16-mixed"],
            "the precision 16-mixed needs a GPU. Set --precision ",
        ),
        pytest.param(
            ["train", "digits-lt", "--out", "R", "--accelerator", "cuda"],
            "--accelerator is cuda, and this machine has none. Set it to cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (["train", "digits-lt", "--out"], "Missing value for argument '--out'."),
        (["train", "digits-lt"], "Missing from srepr train: --out PATH"),
        (["train", "--out", "R"], "Missing from srepr train: SOURCE"),
        (["train", "cifar100-lt", "--out", "R"], "cifar100-lt needs --data-dir, the folder with its files."),
        (["train", "cifar10-lt", "--data-dir", "nowhere", "--out", "R"], "nowhere has neither cifar-10-batches-bin/"),
        (["train", "photos", "--out", "R"], "unknown data set 'photos'."),
        (["train", "digits-lt", "--out", "/dev/null/R"], "/dev/null/R cannot be written (Not a directory). Choose an"),
        (["train", "digits-lt", "--out", "/proc/R"], "/proc/R cannot be written (No such file or directory)."),
        (
            ["train", "digits-lt", "--epochs", "2", "--optim.lr", "1e9", "--out", "R"],
            "the training diverged: the loss became ",
        ),
        (["evaluate", "nowhere"], "nowhere is not a folder. Pass a run folder made by `srepr train`."),
        (
            ["evaluate", "nowhere.safetensors"],
            "nowhere.safetensors is a single model. Pass arrays or texts to evaluate it on with --data",
        ),
        (["evaluate", "nowhere.safetensors", "--data", "x.npz"], "nowhere.safetensors does not exist."),
        (["evaluate", "."], "config.json does not exist. Is its folder a run made by `srepr train`?"),
        (["data", "show", "nowhere"], "unknown data set 'nowhere'."),
        (["data", "shwo", "digits-lt"], "invalid choice 'shwo' for argument 'action'."),
        (["data", "show"], "srepr data show needs a source. See: srepr data list"),
        (["data", "get", "cifar10-lt"], "srepr data get needs --data-dir"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_line_says_what_is_wrong(srepr, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    answer = srepr(*words)
    assert answer.complaint.startswith(complaint)
    assert answer.out == ""
    announced = [line for line in answer.err.splitlines() if line.startswith("training resnet8 (")]
    assert len(answer.err.splitlines()) == 1 + len(announced)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_truncated_cifar_file_is_named(srepr, tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    record = bytes(3074)
    (folder / "train.bin").write_bytes(record * 3 + record[:-1])
    (folder / "test.bin").write_bytes(record)
    complaint = srepr("train", "cifar100-lt", "--data-dir", tmp_path, "--out", tmp_path / "run").complaint
    assert complaint.startswith(f"{folder / 'train.bin'} has 12,295 bytes")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", ["32", "72"], ids=["in memory", "while training"])
def test_a_corrupt_image_is_named_or_left_out_and_counted(srepr, birds, tmp_path, size):
    broken = birds / "crow" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    words = ["train", birds, "--network", "resnet8", "--epochs", 1, "--batch-size", 4, "--image-size", size]
    words += ["--protocol", "paper", "--workers", 1]
    assert srepr(*words, "--out", tmp_path / "one").complaint.startswith(f"{broken} cannot be decoded")
    assert not list((tmp_path / "one").rglob("*.safetensors"))
    answer = srepr(*words, "--skip-bad-images", "--out", tmp_path / "two")
    assert answer.code == 0
    assert answer.err.splitlines()[0] == f"srepr: skipped 1 bad images ({broken})"
    examples = read_json(tmp_path / "two" / "config.json")["examples"]
    assert (examples["skipped"], sum(examples["sizes"].values())) == (1, 18)


def test_a_broken_link_is_named_and_can_be_skipped_by_every_command_that_reads_a_folder(srepr, birds, tmp_path):
    link = birds / "crow" / "12.jpg"
    link.symlink_to("gone.jpg")
    small = ["--network", "resnet8", "--epochs", 1, "--batch-size", 4, "--image-size", 32, "--protocol", "paper"]
    ways = {
        "show": ["data", "show", birds],
        "train": ["train", birds, *small, "--out", tmp_path / "run"],
        "predict": ["predict", tmp_path / "run", birds, "--workers", 0],
        "predict it": ["predict", tmp_path / "run", *sorted((birds / "crow").iterdir()), "--workers", 0],
    }
    for words in ways.values():
        complaint = srepr(*words).complaint
        assert complaint == f"{link} is a broken link to gone.jpg. Restore it, or skip it with --skip-bad-images"
        answer = srepr(*words, "--skip-bad-images")
        assert answer.code == 0
        assert "1 unreadable files skipped" in answer.out or f"skipped 1 bad images ({link})" in answer.err
    assert f"{link} is a broken link to gone.jpg" in srepr("data", "check", birds).complaint


def test_a_command_does_not_advise_an_option_that_it_has_not(srepr, birds, tmp_path):
    words = ["--network", "resnet8", "--epochs", 1, "--batch-size", 4, "--image-size", 32, "--out", tmp_path / "run"]
    assert srepr("train", birds, *words).code == 0
    (birds / "crow" / "3.jpg").unlink()
    (birds / "crow" / "3.jpg").symlink_to("gone.jpg")
    expected = f"{birds / 'crow' / '3.jpg'} is a broken link to gone.jpg. Restore it"
    assert srepr("evaluate", tmp_path / "run").complaint == expected


@pytest.mark.parametrize("name", ["kiwi", "test"])
def test_a_broken_link_in_the_place_of_a_folder_is_no_class_less(srepr, birds, tmp_path, name):
    if name == "test":
        birds.rename(tmp_path / "train")
        (tmp_path / "parts").mkdir()
        birds = (tmp_path / "train").rename(tmp_path / "parts" / "train").parent
    (birds / name).symlink_to("gone")
    expected = f"{birds / name} is a broken link to gone. Restore it, or remove it"
    assert srepr("data", "show", birds).complaint == expected


@pytest.mark.parametrize(("owls", "left"), [(2, 1), (3, 1)])
def test_too_few_images_are_not_a_matter_of_the_batch_size(srepr, tmp_path, owls, left):
    """Of two owls one is held out for testing, of three another one for validation."""
    folder = write_images(tmp_path / "owls", owl=owls)
    complaint = srepr("train", folder, "--network", "resnet8", "--out", tmp_path / "run").complaint
    assert complaint.startswith(f"too few training images in {folder}: BatchNorm needs 2, and {left} remain beside")
    assert not (tmp_path / "run").exists()
    np.savez(tmp_path / "table.npz", x=np.eye(owls), y=np.zeros(owls, dtype=np.int64))
    assert "Add more rows." in srepr("train", tmp_path / "table.npz", "--out", tmp_path / "run").complaint


def test_an_empty_class_is_named(srepr, birds, tmp_path):
    (birds / "kiwi").mkdir()
    assert "kiwi has no images" in srepr("train", birds, "--out", tmp_path / "run").complaint


def test_labels_of_arrays_that_are_no_classes_are_refused(srepr, tmp_path):
    for y, complaint in (([0, 1, -1], "int64"), ([0.0, 1.0, 2.0], "float64"), ([0, 1, 3], "empty class: '2'")):
        np.savez(tmp_path / "a.npz", x=np.eye(3), y=np.array(y))
        assert complaint in srepr("train", tmp_path / "a.npz", "--out", tmp_path / "run").complaint
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=np.arange(2))
    assert "2 labels" in srepr("train", tmp_path / "a.npz", "--out", tmp_path / "run").complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("path,label\nbirds/crow/0.jpg,\n", "birds.csv, line 2: the label is empty"),
        (
            "path,label,split\nbirds/crow/0.jpg,crow,train\nbirds/owl/0.jpg,owl,test\n",
            "class 'owl' has no training rows",
        ),
        ("path,label\nbirds/crow/99.jpg,crow\nbirds/owl/0.jpg,owl\n", "birds/crow/99.jpg does not exist"),
        ("file,class\n", "birds.csv has no column 'path'"),
        ("", "birds.csv has no column 'path'"),
    ],
    ids=["empty label", "class only in test", "missing file", "other columns", "empty"],
)
def test_a_table_with_a_mistake_is_refused_by_line(srepr, birds, tmp_path, rows, complaint):
    (tmp_path / "birds.csv").write_text(rows)
    assert complaint in srepr("train", tmp_path / "birds.csv", "--out", tmp_path / "run").complaint
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_the_run_and_the_same_command_goes_on(srepr, disk_full, tmp_path):
    words = ["train", "digits-lt", "--epochs", 2, "--out", tmp_path / "run"]
    with disk_full(100_000):
        answer = srepr(*words)
    assert "000001-0000000.safetensors: File too large. Free space" in answer.complaint
    assert not [file for file in (tmp_path / "run").rglob("*") if file.suffix in (".partial", ".safetensors")]
    assert srepr(*words).code == 0


@pytest.fixture
def read_only(tmp_path):
    """A mount that refuses to be written to, also by root."""
    if shutil.which("mount") is None:
        pytest.skip("nothing can be mounted here")
    place = tmp_path / "read-only"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here ({mounted.stderr.decode().strip()})")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_place_is_refused(srepr, read_only):
    complaint = srepr("train", "digits-lt", "--out", read_only / "run").complaint
    assert complaint.startswith(f"{read_only / 'run'} cannot be written (Read-only file system).")


def test_a_damaged_state_is_passed_over(srepr, tmp_path):
    """With nothing left to go on from, the run begins again."""
    words = ["train", "digits-lt", "--epochs", 3, "--out", tmp_path / "run"]
    assert srepr(*words).code == 0
    expected = (tmp_path / "run" / "representation.safetensors").read_bytes()
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "state").mkdir()
    (tmp_path / "run" / "state" / "000002-0000000.safetensors").write_bytes(b"half")
    assert srepr(*words).code == 0
    assert (tmp_path / "run" / "representation.safetensors").read_bytes() == expected

"""Hostile files at the command line: exit code 2 and one line, whatever a file holds; a bug is called a bug."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from srepr.classifier import Classifier
from srepr.cli import VERBS, main
from srepr.cli.doctor import DoctorCommand
from srepr.data.about import About
from srepr.errors import InputError
from srepr.models import mlp, resnet8
from srepr.run.checkpoints import save_classifier

NOT_UTF8 = os.fsdecode(b"bird\xe9")
CONTENTS = {
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "latin-1": "path,label\ncafé.jpg,x\n".encode("latin-1"),
    "utf-16": "path,label\na.jpg,x\n".encode("utf-16"),
    "nul": b"path,label\na\0.jpg,x\n",
    "long cell": b'path,label\n"' + b"a" * 200_000 + b'",x\n',
    "digits": b"path,label\na.jpg," + b"9" * 5000 + b"\nb.jpg,1\n",
    "deep": b"[" * 200_000,
    "deep object": b'{"text":' * 100_000,
    "number": b"7",
    "list": b"[1, 2, 3]",
    "null": b"null",
    "digits in JSON": b'{"text": "a", "label": ' + b"9" * 5000 + b"}",
    "nan in JSON": b'{"text": "a", "label": NaN}',
    "half a character": b'{"text": "\\ud800", "label": "x"}\n{"text": "b", "label": "y"}',
    "label of the wrong type": b'{"text": "a", "label": {"a": 1}}',
    "two labels": b"path,label,label\na.jpg,x,y\n",
    "date": b"a,b,c,d\n2020-01-01,1,2,3\n",
    "long name": b"path,label\n" + b"a" * 300 + b".jpg,x\nb.jpg,y\n",
}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """An exported network for vectors, and one for images."""
    folder = tmp_path_factory.mktemp("models")
    both = {"class_names": ("a", "b"), "counts": (9, 3)}
    vectors = About(network="mlp", options={"inputs": 4}, shape=(4,), mean=(0.0,) * 4, std=(1.0,) * 4, **both)
    images = About(network="resnet8", options={}, shape=(3, 16, 16), mean=(0.0,) * 3, std=(1.0,) * 3, **both)
    save_classifier(folder / "vectors.safetensors", Classifier(mlp(2, inputs=4), about=vectors), {})
    save_classifier(folder / "images.safetensors", Classifier(resnet8(2), about=images), {})
    return folder


def write_images(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)).save(path, "PNG")
    return folder


@pytest.mark.parametrize("name", CONTENTS)
def test_a_hostile_file_is_one_line_in_every_place_that_reads_it(srepr, models, tmp_path, name):
    for suffix in ("csv", "jsonl", "npz", "npy", "json", "txt", "png"):
        (tmp_path / f"x.{suffix}").write_bytes(CONTENTS[name])
    for place, file in (("imagenet", "ImageNet_LT_train.txt"), ("inaturalist", "train2018.json")):
        (tmp_path / place).mkdir()
        for known in (file, file.replace("train", "test"), file.replace("train", "val")):
            (tmp_path / place / known).write_bytes(CONTENTS[name])
    vectors, images = models / "vectors.safetensors", models / "images.safetensors"
    good = write_images(tmp_path, "good.png") / "good.png"
    ways = [
        *(["data", "show", tmp_path / f"x.{suffix}"] for suffix in ("csv", "jsonl", "npz")),
        ["data", "check", tmp_path / "x.csv"],
        ["train", tmp_path / "x.csv", "--network", "resnet8", "--out", tmp_path / "run"],
        ["data", "show", "imagenet-lt", "--data-dir", tmp_path / "imagenet"],
        ["data", "show", "inaturalist18", "--data-dir", tmp_path / "inaturalist"],
        *(["predict", vectors, tmp_path / f"x.{suffix}"] for suffix in ("csv", "npz", "npy")),
        ["predict", images, tmp_path / "x.png"],
        ["predict", images, good, "--prior", tmp_path / "x.json"],
        *(["evaluate", vectors, "--data", tmp_path / f"x.{suffix}"] for suffix in ("npz", "csv", "jsonl")),
    ]
    for words in ways:
        answer = srepr(*words)
        assert answer.complaint, words
        assert "bug" not in answer.complaint


def test_what_is_no_regular_file_is_not_waited_for(srepr, models, tmp_path):
    birds = write_images(tmp_path / "birds", "crow/1.png", "crow/2.png", "owl/1.png", "owl/2.png")
    os.mkfifo(birds / "crow" / "3.png")
    for name in ("x.csv", "x.jsonl", "x.npz", "x.npy"):
        os.mkfifo(tmp_path / name)
    vectors, images = models / "vectors.safetensors", models / "images.safetensors"
    for words in (
        ["data", "show", birds],
        ["data", "check", birds],
        ["train", birds, "--network", "resnet8", "--out", tmp_path / "run"],
        ["predict", images, birds, "--workers", 0],
        ["predict", images, birds / "crow" / "3.png"],
        *(["data", "show", tmp_path / name] for name in ("x.csv", "x.jsonl", "x.npz")),
        *(["predict", vectors, tmp_path / name] for name in ("x.csv", "x.npz", "x.npy")),
        ["train", tmp_path / "x.npz", "--out", tmp_path / "run"],
        ["evaluate", vectors, "--data", tmp_path / "x.npz"],
    ):
        assert "is a pipe" in srepr(*words).complaint, words


def test_a_model_or_checkpoint_that_is_a_pipe_is_not_waited_for(srepr, tmp_path):
    pipe = tmp_path / "net.safetensors"
    os.mkfifo(pipe)
    np.save(tmp_path / "x.npy", np.eye(4))
    for words in (
        ["predict", pipe, tmp_path / "x.npy"],
        ["evaluate", pipe, "--data", tmp_path / "x.npz"],
        ["export", pipe, "--format", "safetensors", "-o", tmp_path / "model"],
        ["import", pipe, "--source", "digits-lt", "--out", tmp_path / "run"],
        ["train", "digits-lt", "--from", pipe, "--out", tmp_path / "run"],
    ):
        assert srepr(*words).complaint.startswith((f"{pipe} is a pipe", f"{pipe} is not a file")), words
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_no_file_is_refused_and_stays(srepr, models, tmp_path):
    """A device, such as /dev/null, would be replaced by a file; so would /dev/stdout, a link to an open file."""
    pipe, link = tmp_path / "rows.safetensors", tmp_path / "link.safetensors"
    os.mkfifo(pipe)
    link.symlink_to("/proc/self/fd/1")
    np.save(tmp_path / "x.npy", np.eye(4))
    model = models / "vectors.safetensors"
    for out in (pipe, link, tmp_path):
        answer = srepr("predict", model, tmp_path / "x.npy", "-o", out)
        assert answer.complaint.startswith(f"{out} is no file. Choose the name of a file")
    for out in (pipe, link):
        answer = srepr("export", model, "--format", "safetensors", "-o", out)
        assert answer.complaint.startswith(f"{out} is no file. Choose the name of a file")
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_names_that_are_not_utf8_go_through_every_command(srepr, models, tmp_path):
    birds = write_images(
        tmp_path / "birds", *(f"{k}/{i}{NOT_UTF8}.png" for k in (NOT_UTF8, "[red]owl") for i in range(4))
    )
    run = tmp_path / "run"
    small = ["--network", "resnet8", "--epochs", 1, "--batch-size", 4, "--image-size", 16, "--protocol", "paper"]
    assert srepr("data", "check", birds).code == 0
    shown = srepr("data", "show", birds)
    assert (shown.code, "bird\\udce9" in shown.out, "[red]owl" in shown.out) == (0, True, True)
    assert srepr("train", birds, *small, "--out", run).code == 0
    assert srepr("retrain", run, "--method", "la").code == 0
    assert srepr("report", run, "-o", tmp_path / "report.html", "--no-dispersion").code == 0
    for out in (tmp_path / "p.csv", tmp_path / "p.jsonl"):
        assert srepr("predict", run, birds, "-o", out, "--workers", 0).code == 0
    assert "bird\\udce9" in (tmp_path / "p.csv").read_text()
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert sorted(row["input"] for row in rows) == sorted(str(path) for path in birds.rglob("*.png"))
    assert "bird\\udce9" in srepr("predict", run, birds, "--workers", 0).out
    assert "bird\\udce9" in srepr("predict", run, tmp_path / NOT_UTF8).complaint


def test_a_name_in_a_table_of_predictions_is_no_formula(srepr, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path, "=1+1.png", "@a.png", "+a.png", "plain.png")
    (tmp_path / "list.csv").write_text("path\n=1+1.png\n@a.png\n+a.png\nplain.png\n")
    words = ["predict", models / "images.safetensors", "list.csv", "-o"]
    assert srepr(*words, "one.csv").code == 0
    cells = [line.split(",")[0] for line in (tmp_path / "one.csv").read_text().splitlines()]
    assert cells == ["input", "'=1+1.png", "'@a.png", "'+a.png", "plain.png"]
    # What srepr has written, it reads as it was.
    (tmp_path / "back.csv").write_text((tmp_path / "one.csv").read_text().replace("input,", "path,", 1))
    assert srepr("predict", models / "images.safetensors", "back.csv", "-o", "two.csv").code == 0
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()


def test_a_prior_may_be_longer_than_a_file_name(srepr, models, tmp_path):
    good = write_images(tmp_path, "good.png") / "good.png"
    words = ["predict", models / "images.safetensors", good, "--prior"]
    assert srepr(*words, f"0.{'3' * 300},0.7").code == 0
    assert "--prior has 3000 numbers for 2 classes" in srepr(*words, "1," * 3000).complaint
    assert "--prior is" in srepr(*words, "[[1], [2]]").complaint
    (tmp_path / "prior.json").write_text('{"a": [1], "b": 2}')
    assert "--prior is" in srepr(*words, tmp_path / "prior.json").complaint


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "data", "export", "doctor")])
def test_fewer_than_no_workers_are_refused(srepr, tmp_path, verb):
    needed = {"train": ["--out", tmp_path / "R"], "predict": ["x.png"], "import": ["--source", "s", "--out", "R"]}
    answer = srepr(verb, "digits-lt", *needed.get(verb, []), "--workers", -1)
    assert answer.complaint.startswith("--workers is -1: it must not be negative")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "flag", ["--optim.lr", "--optim.weight-decay", "--optim.clip", "--mixup", "--optim.warmup-epochs"]
)
def test_a_setting_is_a_finite_number(srepr, tmp_path, flag, value):
    complaint = srepr("train", "digits-lt", "--out", tmp_path / "R", f"{flag}={value}").complaint
    assert complaint.startswith(f"{flag} is {value}: it must be a finite number")


@pytest.mark.parametrize("words", [["--debug", "data", "show", "nowhere"], ["data", "show", "nowhere", "--debug"]])
def test_debug_shows_where_an_error_comes_from(srepr, words):
    answer = srepr(*words)
    assert answer.code == 2
    assert answer.err.startswith("Traceback (most recent call last)")
    assert answer.err.splitlines()[-1].startswith("srepr: unknown data set 'nowhere'")


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_takes_debug(srepr, verb):
    for words in ([verb, "--debug", "--help"], ["--debug", verb, "--help"]):
        assert srepr(*words).code == 0
    assert "--debug" in srepr("--help").out


def test_a_bug_is_called_a_bug(srepr, monkeypatch):
    def fail(_):
        raise KeyError("shapes")

    monkeypatch.setattr(DoctorCommand, "run", fail)
    answer = srepr("doctor")
    assert (answer.code, answer.out) == (1, "")
    assert (
        answer.err == "srepr: this is a bug of srepr (KeyError: 'shapes'). Please report it with what --debug shows.\n"
    )
    assert "Traceback" in srepr("doctor", "--debug").err


def test_a_message_is_one_line_that_no_terminal_obeys(srepr, monkeypatch):
    def fail(_):
        raise InputError("a\x1b[2Jb\nc " + "d" * 10_000)

    monkeypatch.setattr(DoctorCommand, "run", fail)
    complaint = srepr("doctor").complaint
    assert complaint.startswith("a\\x1b[2Jb c ddd")
    assert len(complaint) < 2100


def test_no_terminal_obeys_a_file_or_a_class(srepr, models, tmp_path):
    birds = write_images(tmp_path / "birds", *(f"\x1b[2J{k}/{i}.png" for k in "ab" for i in range(6)))
    for k in "ab":
        (birds / f"\x1b[2J{k}" / "\x1b[2Jbad.png").write_bytes(b"")
    listed = srepr("data", "check", birds)
    assert (listed.code, listed.out.count("\\x1b[2Jbad.png cannot be decoded"), "\x1b" in listed.out) == (2, 2, False)
    shown = srepr("data", "show", birds, "--skip-bad-images")
    assert (shown.code, "\\x1b[2Ja" in shown.out, "\x1b" in shown.out) == (0, True, False)
    small = ["--network", "resnet8", "--epochs", 1, "--batch-size", 4, "--image-size", 16, "--skip-bad-images"]
    trained = srepr("train", birds, *small, "--out", tmp_path / "run")
    skipped = srepr("predict", models / "images.safetensors", birds, "--skip-bad-images", "-o", tmp_path / "p.csv")
    for answer in (trained, skipped):
        assert (answer.code, "skipped 2 bad images" in answer.err, "\x1b" in answer.err) == (0, True, False)


def test_an_output_that_knows_no_other_letters_takes_every_name(tmp_path):
    """A terminal in plain ASCII."""
    birds = write_images(tmp_path / "birds", *(f"{k}/{i}.png" for k in (NOT_UTF8, "wren") for i in range(2)))
    script = "import sys; from srepr.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", script, "data", "show", str(birds)]
    done = subprocess.run(words, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"bird\\udce9" in done.stdout
    assert main(["--version"]) == 0

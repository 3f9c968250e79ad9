"""`srepr predict` as it is typed: its rows against evaluation and float64 formulas, its inputs, its mistakes."""

import csv
import io
import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import special
from tests.kill import SREPR

from srepr import data
from srepr.classifier import Classifier
from srepr.config import Train
from srepr.data import ArrayExamples
from srepr.data.about import About
from srepr.data.files import Listing, image_data
from srepr.data.unlabelled import Unlabelled, read_unlabelled
from srepr.decisions.doubt import doubt
from srepr.errors import InputError
from srepr.methods import METHODS, Method
from srepr.prediction import columns
from srepr.run.load import load
from srepr.run.retrain import retrain_run
from srepr.run.train import train
from srepr.storage.files import read_json

TEST = data.load("digits-lt").test
COUNTS = data.load("digits-lt").counts


@pytest.fixture
def run(retrained):
    """A run with re-trained heads; no test changes it."""
    return retrained


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The test digits as PNG files, named in their order, and as arrays."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "png").mkdir()
    for index, (pixels,) in enumerate(TEST.inputs):
        Image.fromarray(pixels).save(folder / "png" / f"{index:03d}.png")
    np.savez(folder / "digits.npz", x=TEST.inputs)
    np.save(folder / "digits.npy", TEST.inputs[:, 0])
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A run on vectors of three numbers, and ten of them in a CSV file."""
    folder = tmp_path_factory.mktemp("vectors")
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1], [40, 20])
    x = chance.normal(size=(60, 3)) + 2 * y[:, None]
    np.savez(folder / "data.npz", x=x, y=y)
    train(Train(source=str(folder / "data.npz"), network="mlp", epochs=2, batch_size=16), folder / "run")
    lines = [f"{a!r},{int(label)},{b!r},{c!r}" for (a, b, c), label in zip(x[:10].tolist(), y, strict=False)]
    (folder / "rows.csv").write_text("\n".join(["a,label,b,c", *lines]) + "\n")
    np.savez(folder / "rows.npz", x=x[:10])
    return folder


def about(**fields):
    nothing = {"network": "resnet8", "options": {}, "class_names": ("wren",), "counts": (3,), "mean": (), "std": ()}
    return About(**nothing | fields)


def rows_of(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    words = ("input", "reject")
    return [{k: v if "label" in k or k in words else float(v) for k, v in row.items()} for row in rows]


def without_input(rows):
    return [{key: value for key, value in row.items() if key != "input"} for row in rows]


def logits_of(run, head=None):
    with torch.no_grad():
        return load(run, head)(TEST.load(np.arange(len(TEST)))).double().numpy()


# What the rows say


def test_a_folder_of_images_gets_the_accuracy_of_the_evaluation(srepr, run, digits):
    answer = srepr("predict", run, digits / "png", "--workers", 2)
    assert (answer.code, answer.err) == (0, "")
    rows = rows_of(answer.out)
    assert [row["input"] for row in rows] == [str(digits / "png" / f"{index:03d}.png") for index in range(len(TEST))]
    hits = [int(row["label"]) == label for row, label in zip(rows, TEST.labels, strict=True)]
    assert np.mean(hits) == read_json(run / "results.json")["srepr"]["acc"]


def test_a_row_is_its_formulas(srepr, run, digits):
    """Softmax, and 1 minus its largest value, in float64."""
    rows = rows_of(srepr("predict", run, digits / "digits.npz", "--top", 3).out)
    z = logits_of(run)
    probabilities = special.softmax(z, axis=1)
    ranked = np.argsort(-probabilities, axis=1)
    assert [row["input"] for row in rows] == [str(index) for index in range(len(TEST))]
    for rank, ending in enumerate(["", "_2", "_3"]):
        assert [row[f"label{ending}"] for row in rows] == [str(k) for k in ranked[:, rank]]
        found = [row[f"probability{ending}"] for row in rows]
        np.testing.assert_allclose(found, np.sort(probabilities, 1)[:, -1 - rank], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([row["uncertainty"] for row in rows], 1 - probabilities.max(1), atol=1e-5)


def test_every_way_to_name_the_same_images_gives_the_same_rows(srepr, run, digits, tmp_path):
    whole = without_input(rows_of(srepr("predict", run, digits / "png").out))
    (digits / "list.csv").write_text("label,path\n" + "".join(f"x,png/{index:03d}.png\n" for index in range(9)))
    listed = rows_of(srepr("predict", run, digits / "list.csv", digits / "png/009.png", "--batch-size", 4).out)
    assert [row["input"] for row in listed] == [*(f"png/{i:03d}.png" for i in range(9)), str(digits / "png/009.png")]
    for rows in (
        without_input(rows_of(srepr("predict", run, digits / "digits.npz").out)),
        without_input(rows_of(srepr("predict", run, digits / "digits.npy").out)),
        without_input(listed),
    ):
        assert [row["label"] for row in rows] == [row["label"] for row in whole[: len(rows)]]
        for name in ("probability", "uncertainty"):
            expected = [row[name] for row in whole[: len(rows)]]
            np.testing.assert_allclose([row[name] for row in rows], expected, rtol=1e-4, atol=1e-6)


def test_json_lines_say_what_the_csv_says(srepr, run, digits, tmp_path):
    lines = srepr("predict", run, digits / "png/000.png", digits / "png/001.png", "--format", "jsonl", "--top", 2).out
    srepr("predict", run, digits / "png/000.png", digits / "png/001.png", "-o", tmp_path / "rows.jsonl", "--top", 2)
    assert (tmp_path / "rows.jsonl").read_text() == lines
    srepr("predict", run, digits / "png/000.png", digits / "png/001.png", "-o", tmp_path / "rows.csv", "--top", 2)
    rows = [json.loads(line) for line in lines.splitlines()]
    assert rows == rows_of((tmp_path / "rows.csv").read_text())
    assert list(rows[0]) == columns(2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.csv", "rows.jsonl"]


def test_the_head_is_chosen_by_name_and_srepr_is_the_default(srepr, run, trained, digits):
    stored = read_json(run / "results.json")
    for head in ("swa", "sgd"):
        rows = rows_of(srepr("predict", run, digits / "digits.npy", "--head", head).out)
        assert np.mean([int(row["label"]) for row in rows] == TEST.labels) == stored[head]["acc"]
    assert np.array_equal(logits_of(run), logits_of(run, "srepr"))
    assert np.array_equal(logits_of(trained), logits_of(trained, "swa"))
    assert not np.array_equal(logits_of(run), logits_of(run, "swa"))


def test_vectors_in_a_table_or_an_array(srepr, vectors):
    rows = rows_of(srepr("predict", vectors / "run", vectors / "rows.csv").out)
    assert rows == rows_of(srepr("predict", vectors / "run", vectors / "rows.npz").out)
    assert [row["input"] for row in rows] == [str(index) for index in range(10)]
    assert rows_of(srepr("predict", vectors / "run/representation.safetensors", vectors / "rows.csv").out) == rows


# Priors


@pytest.mark.parametrize("head", ["srepr", "swa"])
@pytest.mark.parametrize("prior", ["uniform", "train", "1,2,3,4,5,6,7,8,9,10", "file"])
def test_a_prior_is_bayes_rule_from_what_the_head_was_trained_to_expect(srepr, run, digits, tmp_path, head, prior):
    """A head re-trained with logit adjustment expects even shares, the network of stage 1 those of the training."""
    shares = {"uniform": np.ones(10), "train": COUNTS}.get(prior, np.arange(1.0, 11.0))
    if prior == "file":
        (tmp_path / "mix.json").write_text(json.dumps({str(k): k + 1 for k in reversed(range(10))}))
        prior = tmp_path / "mix.json"
    rows = rows_of(srepr("predict", run, digits / "digits.npz", "--head", head, "--prior", prior).out)
    expects = np.ones(10) if head == "srepr" else COUNTS
    expected = special.softmax(logits_of(run, head), axis=1) / expects * shares
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose([row["probability"] for row in rows], expected.max(1), rtol=1e-4)
    assert [int(row["label"]) for row in rows] == expected.argmax(1).tolist()


@pytest.mark.parametrize(
    ("balance", "rho", "left"), [("none", 1, 1), ("cbs", 1, 0), ("la", 1, 0), ("la", 0.25, 0.75), ("grw", 2, -1)]
)
def test_what_a_balance_leaves_of_the_training_prior(balance, rho, left):
    """A loss weighed by pi^-rho, or logits moved by rho log pi in it, is trained as if on the prior pi^(1 - rho)."""
    expected = Method(head="linear", balance=balance).expected_prior((100, 10, 1), rho)
    np.testing.assert_allclose(expected, np.array([100.0, 10, 1]) ** left)


# Rejection


@pytest.fixture(scope="module")
def decided(vectors):
    """The run on vectors with a head, which has a validation set."""
    retrain_run(vectors / "run", {"la": METHODS["la"]}, quiet=True)
    return vectors


@pytest.mark.parametrize("flag", [(), ("--reject-by-class",)])
def test_with_held_out_examples_the_threshold_does_not_depend_on_the_other_inputs(srepr, decided, flag):
    rows = rows_of(srepr("predict", decided / "run", decided / "data.npz", "--reject", 0.3, *flag).out)
    classifier = load(decided / "run")
    rule = classifier.rejection(0.3, by_class=bool(flag))
    numbers = [classifier.class_names.index(row["label"]) for row in rows]
    expected = [row["uncertainty"] > float(f"{rule.thresholds[k]:.6g}") for row, k in zip(rows, numbers, strict=True)]
    assert [row["reject"] for row in rows] == [str(one) for one in expected]
    assert 0 < sum(expected) < len(rows)
    alone = rows_of(srepr("predict", decided / "run", decided / "rows.npz", "--reject", 0.3, *flag).out)
    assert [row["reject"] for row in alone] == [row["reject"] for row in rows[:10]]


def test_the_threshold_rejects_the_share_of_the_mix_that_the_probabilities_are_for(decided):
    """Held-out examples, weighed to the prior: no more than the share, and more with the next lower threshold."""
    for classifier, prior in ((load(decided / "run"), [1, 1]), (load(decided / "run").with_prior([9, 1]), [9, 1])):
        logits, labels, _ = classifier.held
        p = (logits if classifier.shift is None else classifier.moved(logits)).softmax(1)
        doubts = doubt(p, torch.zeros(len(labels))).double()
        weights = (torch.tensor(prior) / torch.bincount(labels))[labels].double()
        limit = classifier.rejection(0.25).thresholds[0]
        shares = [float(weights[doubts > one].sum() / weights.sum()) for one in (limit, limit - 1e-5)]
        assert shares[0] <= 0.25 < shares[1]


def test_without_held_out_examples_the_inputs_are_compared_and_it_is_said(srepr, run, digits):
    answer = srepr("predict", run, digits / "digits.npz", "--reject", 0.1)
    rows = rows_of(answer.out)
    rejected = np.array([row["reject"] == "True" for row in rows])
    doubts = np.array([row["uncertainty"] for row in rows])
    assert rejected.sum() == len(rows) // 10
    assert doubts[rejected].min() >= doubts[~rejected].max()
    assert f"no held-out examples: the most doubtful of these {len(rows):,} inputs are rejected" in answer.err
    with pytest.raises(InputError, match="has no held-out examples to find a threshold on"):
        load(run).rejection(0.1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--reject", "1.5"), "--reject is 1.5: it must lie between 0 and 1, for example 0.1 for a tenth"),
        (("--reject", "nan"), "--reject is nan: it must lie between 0 and 1"),
        (("--reject-by-class",), "--reject-by-class needs a share: set --reject"),
    ],
)
def test_a_share_that_is_none_is_refused(srepr, run, digits, options, complaint):
    answer = srepr("predict", run, digits / "digits.npz", *options)
    assert answer.code == 2
    assert complaint in answer.err


# Images take the way of an evaluation


@pytest.mark.parametrize("size", [32, 96])
def test_image_files_are_seen_as_in_the_evaluation_of_a_folder(tmp_path, size):
    """Bit for bit the inputs of the data that such a network is trained on; up to 64 pixels whole, above cropped."""
    chance = np.random.default_rng(0)
    for name, shape in {"wide.jpg": (150, 400, 3), "tall.png": (90, 40, 3), "gray.jpeg": (200, 200)}.items():
        Image.fromarray(chance.integers(0, 256, shape, np.uint8)).save(tmp_path / name)
    names = sorted(file.name for file in tmp_path.iterdir())
    listing = Listing(names, np.zeros(3, dtype=np.int64))
    part = image_data("birds", tmp_path, {"train": listing}, ["wren"], image_size=size).train
    found = read_unlabelled([tmp_path], about(shape=part.shape, mean=part.mean, std=part.std)).examples
    assert found.shape == part.shape
    assert torch.equal(found.load(np.arange(3)), part.load(np.arange(3)))


# Streaming


class Watched(ArrayExamples):
    loaded = 0

    def load(self, indices, view=None):
        Watched.loaded += len(indices)
        return super().load(indices, view)


def test_the_first_rows_are_there_before_the_last_inputs_are_read():
    examples = Watched(np.zeros((100, 3), dtype=np.float32), np.zeros(100, dtype=np.int64), ("a", "b", "c"))
    rows = Classifier(torch.nn.Identity()).rows(Unlabelled([str(i) for i in range(100)], examples), batch_size=10)
    assert Watched.loaded == 0
    next(rows)
    assert Watched.loaded == 10
    assert len(list(rows)) == 99


def test_a_reader_that_has_seen_enough_ends_it_quietly(run, digits):
    """A pipe to `head`, of which both ends must be content."""
    pipe = 'set -o pipefail; "$0" predict "$1" "$2" --batch-size 1 | head -n 1'
    words = ["bash", "-c", pipe, SREPR, run, digits / "digits.npz"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, ",".join(columns()) + "\n", "")


# Bad images


def test_an_unreadable_image_ends_it_in_one_line_or_is_skipped_and_counted(srepr, run, digits, tmp_path):
    photos = shutil.copytree(digits / "png", tmp_path / "photos")
    (photos / "300.png").write_bytes((photos / "300.png").read_bytes()[:-30])
    (photos / "301.png").write_text("no image")
    answer = srepr("predict", run, photos, "-o", tmp_path / "rows.csv", "--batch-size", 50)
    assert "300.png cannot be decoded" in answer.complaint
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]
    answer = srepr("predict", run, photos, "-o", tmp_path / "rows.csv", "--skip-bad-images", "--workers", 0)
    assert answer.code == 0
    assert answer.err == f"srepr: skipped 2 bad images ({photos / '300.png'} is the first)\n"
    found = [(row["input"], row["label"]) for row in rows_of((tmp_path / "rows.csv").read_text())]
    rows = rows_of(srepr("predict", run, digits / "png").out)
    del rows[300:302]
    assert found == [(row["input"].replace(str(digits / "png"), str(photos)), row["label"]) for row in rows]


def test_images_of_which_all_are_bad_leave_a_table_without_rows(srepr, run, tmp_path):
    (tmp_path / "a.png").write_text("no image")
    answer = srepr("predict", run, tmp_path / "a.png", "--skip-bad-images")
    assert (answer.code, answer.out) == (0, ",".join(columns()) + "\n")
    assert "skipped 1 bad images" in answer.err


# Mistakes


@pytest.fixture
def mistakes(tmp_path, monkeypatch, digits):
    """A folder with one of everything that does not work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.csv").write_text("name\n1.png\n")
    (tmp_path / "hole.csv").write_text("path,label\n1.png,a\n,b\n")
    (tmp_path / "gone.csv").write_text("path\ngone.png\n")
    (tmp_path / "mix.json").write_text('{"0": 1, "1": 2}')
    np.savez("wrong.npz", x=np.zeros((2, 1, 9, 9), dtype=np.uint8))
    np.savez("named.npz", z=np.zeros(2))
    np.save("objects.npy", np.array([{}, {}], dtype=object))
    shutil.copy(digits / "png/000.png", "0.png")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere.png"], "nowhere.png does not exist. Pass images, folders, a CSV file or arrays."),
        (["empty"], "empty has no images. Pass a folder that contains images."),
        (["other.csv"], "other.csv has no column 'path'."),
        (["hole.csv"], "hole.csv, row 2: the path is empty."),
        (["gone.csv"], "gone.png does not exist. Restore it, or skip it with --skip-bad-images"),
        (["wrong.npz"], "wrong.npz: the inputs have the shape (1, 9, 9), and the network takes (1, 8, 8)."),
        (["named.npz"], "named.npz holds z. It must hold x."),
        (["objects.npy"], "objects.npy cannot be read:"),
        (["0.png", "wrong.npz"], "wrong.npz must be the only input."),
        (["mix.json"], "mix.json cannot be decoded"),
        (["0.png", "--head", "grw"], "Known: sgd, swa, crt, lws, la, disalign, ncm, srepr in "),
        (["0.png", "--top", "11"], "--top is 11: it must lie in 1 .. 10, the number of classes."),
        (["0.png", "--top", "0"], "--top is 0:"),
        (["0.png", "--batch-size", "0"], "--batch-size is 0: at least 1 is needed."),
        (["0.png", "-o", "no/where.csv"], "no is not a folder. Make it, or choose another --out."),
        (["0.png", "--prior", "even"], "--prior is 'even': use uniform, train, a file, or a list of numbers"),
        (["0.png", "--prior", "1,2"], "--prior has 2 numbers for 10 classes. Give one for each."),
        (["0.png", "--prior", "mix.json"], "--prior has no number for the class '2'."),
        (["0.png", "--prior", "0,0,0,0,0,0,0,0,0,0"], "the target prior must be non-negative and not all"),
        (["0.png", "--prior", "1,1,1,1,1,1,1,1,1,nan"], "the prior must be a finite share or count for each class"),
    ],
)
def test_mistakes_are_one_line(srepr, run, mistakes, words, complaint):
    answer = srepr("predict", run, *words)
    assert complaint in answer.complaint
    assert answer.out in ("", ",".join(columns()) + "\n")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("a,b\n1,2\n", "rows.csv has 2 columns beside `label`, the network takes 3 numbers."),
        ("a,b,c\n1,2,3\n1,2,x\n", "rows.csv, line 3: not 3 numbers."),
        ("a,b,c\n1,2\n", "rows.csv, line 2: not 3 numbers."),
        ("a,b,c\n1,2,inf\n", "rows.csv: row 0 has a NaN or infinite value."),
    ],
)
def test_mistakes_in_a_table_of_numbers(srepr, vectors, tmp_path, table, complaint):
    (tmp_path / "rows.csv").write_text(table)
    assert complaint in srepr("predict", vectors / "run", tmp_path / "rows.csv").complaint


def test_mistakes_about_the_model(srepr, vectors, digits, run, tmp_path):
    photo = digits / "png/000.png"
    assert "this network takes vectors of 3 numbers." in srepr("predict", vectors / "run", photo).complaint
    assert "is not a folder. Pass a run" in srepr("predict", tmp_path / "nothing", photo).complaint
    assert "there is nothing to predict." in srepr("predict", run).complaint
    file = run / "representation.safetensors"
    complaint = srepr("predict", file, photo, "--head", "srepr").complaint
    assert complaint == f"{file} holds a single classifier. Leave --head out."
    head = run / "heads/srepr.safetensors"
    assert "does not say which network it holds." in srepr("predict", head, photo).complaint
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(run / "config.json", begun)
    assert "has no trained network yet." in srepr("predict", begun, photo).complaint
    with pytest.raises(InputError, match=r"shape \(1, 8, 9\). Pass them as arrays"):
        read_unlabelled([photo], about(shape=(1, 8, 9)))

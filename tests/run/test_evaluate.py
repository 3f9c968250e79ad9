"""Evaluating again gives the numbers that the training wrote, from wherever the data are now."""

import json
import shutil

import numpy as np
import pytest
import torch

import srepr as library
from srepr.config import Retrain, Train
from srepr.data import load
from srepr.errors import InputError
from srepr.methods import METHODS, method
from srepr.metrics import LongTailMetrics
from srepr.run.checkpoints import load_model
from srepr.run.evaluate import evaluate_run, measure_network
from srepr.run.folder import load_run_data
from srepr.run.retrain import retrain_run
from srepr.run.train import train
from srepr.storage.files import plain, read_json, write_json
from srepr.views import VIEWS


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copied")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """A run on arrays with a test part, and the file."""
    folder = tmp_path_factory.mktemp("arrays")
    chance = np.random.default_rng(0)
    y = {"y_train": np.repeat([0, 1, 2], [40, 20, 5]), "y_test": np.arange(300) % 3}
    x = {name.replace("y", "x"): chance.normal(size=(len(labels), 6)) + labels[:, None] for name, labels in y.items()}
    np.savez(folder / "data.npz", **x, **y)
    train(Train(source=str(folder / "data.npz"), epochs=3, batch_size=16), folder / "run")
    return folder


@pytest.fixture(scope="module")
def natural(tmp_path_factory):
    """A run on arrays whose test part has the mix of the training part, and three heads; no test changes it."""
    folder = tmp_path_factory.mktemp("natural")
    chance = np.random.default_rng(0)
    y = {"y_train": np.repeat([0, 1, 2], [120, 40, 10]), "y_test": np.repeat([0, 1, 2], [120, 40, 10])}
    x = {name.replace("y", "x"): chance.normal(size=(len(k), 4)) + k[:, None] for name, k in y.items()}
    np.savez(folder / "data.npz", **x, **y)
    train(Train(source=str(folder / "data.npz"), epochs=4, batch_size=16), folder / "run")
    heads = {"la": METHODS["la"], "crt": METHODS["crt"], "as-trained": method("la", balance="none")}
    retrain_run(folder / "run", heads, Retrain(epochs=2), quiet=True)
    retrain_run(folder / "run", {"half": METHODS["la"]}, Retrain(epochs=2, rho=0.5), quiet=True)
    evaluate_run(folder / "run", quiet=True)
    return folder


def test_a_run_is_evaluated_to_its_own_results(srepr, copied):
    before = (copied / "results.json").read_bytes()
    answer = srepr("evaluate", copied, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads(before)
    assert (copied / "results.json").read_bytes() == before


def test_the_metrics_are_those_of_a_plain_loop(trained):
    """Accuracy and likelihood of the file's network on the test digits, in numpy."""
    network, _ = load_model(trained / "representation.safetensors")
    test = load("digits-lt").test
    with torch.no_grad():
        logits = network(test.load(np.arange(len(test)))).double().numpy()
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    results = read_json(trained / "results.json")["swa"]
    assert results["acc"] == np.mean(logits.argmax(1) == test.labels)
    assert results["nll"] == pytest.approx(-log_probs[np.arange(len(test)), test.labels].mean(), rel=1e-6)


def test_a_file_on_arrays_is_evaluated_like_the_run(srepr, trained, tmp_path):
    """Digits as arrays: the same 597 images."""
    test = load("digits-lt").test
    np.savez(tmp_path / "arrays.npz", x=test.inputs, y=test.labels)
    for file, name in (("representation", "swa"), ("sgd", "sgd")):
        answer = srepr("evaluate", trained / f"{file}.safetensors", "--data", tmp_path / "arrays.npz", "--json")
        assert json.loads(answer.out) == {file: read_json(trained / "results.json")[name]}


def probabilities(row):
    """By class, of a row with all of them."""
    return {row[f"label{rank}"]: row[f"probability{rank}"] for rank in ("", *(f"_{k}" for k in range(2, 11)))}


@pytest.mark.parametrize(
    ("head", "prior"), [("srepr", "1,2,3,4,5,6,7,8,9,10"), ("swa", "uniform"), ("lws", None), ("disalign", None)]
)
def test_an_exported_file_is_measured_by_what_it_predicts(srepr, retrained, tmp_path, head, prior):
    """Labels and probabilities of all classes from `srepr predict`, which have six digits; without a prior, the run's
    own results."""
    test, model = load("digits-lt").test, tmp_path / "model.safetensors"
    np.savez(tmp_path / "x.npz", x=test.inputs, y=test.labels)
    words = [] if prior is None else ["--prior", prior]
    assert srepr("export", retrained, "--head", head, "--format", "safetensors", "-o", model, *words).code == 0
    found = json.loads(srepr("evaluate", model, "--data", tmp_path / "x.npz", "--json").out)["model"]
    rows = srepr("predict", model, tmp_path / "x.npz", "--top", 10, "--format", "jsonl").out.splitlines()
    rows = [json.loads(line) for line in rows]
    hits = np.array([row["label"] == str(label) for row, label in zip(rows, test.labels, strict=True)])
    assert found["acc"] == hits.mean()
    assert found["per_class"] == pytest.approx([hits[test.labels == k].mean() for k in range(10)], rel=1e-12)
    shares = [probabilities(row)[str(label)] for row, label in zip(rows, test.labels, strict=True)]
    assert found["nll"] == pytest.approx(-np.log(shares).mean(), rel=1e-5)
    results = read_json(retrained / "results.json")[head]
    if prior is None:
        assert found["acc"] == results["acc"]
        assert found["nll"] == pytest.approx(results["nll"], abs=1e-5)
    else:
        assert found["nll"] != pytest.approx(results["nll"], abs=1e-2)


def test_vectors_in_a_file_are_evaluated_like_the_run(srepr, arrays):
    answer = srepr("evaluate", arrays / "run/representation.safetensors", "--data", arrays / "data.npz", "--json")
    expected = dict(read_json(arrays / "run/results.json")["swa"])
    expected.pop("validation")
    assert json.loads(answer.out) == {"representation": expected}


def test_the_order_and_the_size_of_batches_do_not_matter(trained):
    network, about = load_model(trained / "representation.safetensors")
    test = load("digits-lt").test
    whole = measure_network(network, test, about.counts)
    shuffled = measure_network(network, test.subset(np.random.default_rng(0).permutation(len(test))), about.counts)
    assert shuffled["acc"] == whole["acc"]
    assert shuffled["nll"] == pytest.approx(whole["nll"], rel=1e-6)


@pytest.mark.parametrize("place", ["moved.npz", "moved"])
def test_data_that_moved_is_found_with_data_dir(srepr, arrays, tmp_path, place):
    """Named itself, or the folder that it is in."""
    run = shutil.copytree(arrays / "run", tmp_path / "run")
    config = read_json(run / "config.json")
    config["data_dir"] = config["settings"]["source"] = str(tmp_path / "gone" / "data.npz")
    write_json(run / "config.json", config)
    target = tmp_path / "moved" / "data.npz" if place == "moved" else tmp_path / place
    target.parent.mkdir(exist_ok=True)
    shutil.copy(arrays / "data.npz", target)
    assert "unknown data set" in srepr("evaluate", run).complaint
    answer = srepr("evaluate", run, "--data-dir", tmp_path / place, "--json")
    assert json.loads(answer.out) == read_json(arrays / "run/results.json")


def test_a_training_under_way_is_not_declared_finished(copied):
    """The average exists before the baseline does; only the training itself says that it is through."""
    (copied / "results.json").unlink()
    (copied / "sgd.safetensors").unlink()
    assert evaluate_run(copied).keys() == {"swa"}
    assert not (copied / "results.json").exists()


def test_a_run_without_a_network_is_refused(copied):
    (copied / "representation.safetensors").unlink()
    with pytest.raises(InputError, match="has no trained network yet"):
        evaluate_run(copied)


def test_arrays_of_another_shape_are_refused(srepr, trained, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 5)), y=np.arange(3))
    answer = srepr("evaluate", trained / "representation.safetensors", "--data", tmp_path / "a.npz")
    assert "the inputs have the shape (5,)" in answer.complaint


def test_labels_of_other_classes_are_refused(srepr, trained, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 8, 8), np.uint8), y=np.array([0, 1, 10]))
    answer = srepr("evaluate", trained / "representation.safetensors", "--data", tmp_path / "a.npz")
    assert "not those of 10 classes" in answer.complaint


# A test part that is not balanced


def close(found, expected):
    for key in ("acc", "many", "medium", "few", "balanced_acc", "nll", "ece"):
        assert found[key] == pytest.approx(expected[key], abs=1e-5), key


@pytest.mark.parametrize("head", ["swa", "la", "crt", "as-trained", "half"])
@pytest.mark.parametrize("part", ["test", "validation"])
def test_both_views_are_those_of_the_loaded_classifier(natural, head, part):
    """The whole network on the inputs: weighted for equal classes as it is; unweighted under the prior of the part.

    A head that is trained on the validation set as well is judged there by what is held out for it.
    """
    run = natural / "run"
    results, examples = read_json(run / "results.json")[head], load_run_data(run).parts[part]
    found = results if part == "test" else results["validation"]
    classifier, labels = library.load(run, head), examples.labels
    tested = np.bincount(labels, minlength=3)
    moved = classifier if head == "swa" else classifier.with_prior(tested + 1)
    weights = torch.from_numpy((len(labels) / 3 / tested)[labels])
    for seen, model, weight in (
        (found, classifier, None),
        (found["views"]["equal"], classifier, weights),
        (found["views"]["natural"], moved, None),
    ):
        metrics = LongTailMetrics(classifier.about.counts)
        with torch.no_grad():
            logits = model(examples.load(np.arange(len(examples))))
        if part == "validation" and head != "swa":
            logits = model.held.logits + (0 if model.shift is None else model.shift)
        metrics.update(logits, labels, weight)
        close(seen, metrics.compute())
    assert set(found["views"]) == set(VIEWS)
    assert "views" not in found["views"]["equal"]


def test_the_network_runs_once_over_a_part_that_is_not_balanced(natural):
    network, about = load_model(natural / "run/representation.safetensors")
    test, seen = load_run_data(natural / "run").test, []
    network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    measure_network(network, test, about.counts)
    assert sum(seen) == len(test)


def test_evaluating_a_part_that_is_not_balanced_again_gives_the_same_bytes(natural, tmp_path):
    run = shutil.copytree(natural / "run", tmp_path / "run")
    before = (run / "results.json").read_bytes()
    assert plain(evaluate_run(run, quiet=True)) == json.loads(before)
    assert (run / "results.json").read_bytes() == before


def test_results_from_before_there_were_views_get_them(natural, tmp_path):
    """What version 0.1.0 wrote of a test part that is not balanced."""
    run = shutil.copytree(natural / "run", tmp_path / "run")
    results = read_json(run / "results.json")
    old = {
        name: {key: value for key, value in metrics.items() if key not in ("views", "tested", "validation")}
        for name, metrics in results.items()
    }
    write_json(run / "results.json", old)
    assert plain(evaluate_run(run, quiet=True)) == results
    for name, metrics in old.items():
        assert {key: results[name][key] for key in metrics} == metrics


def test_another_prior_has_no_views(natural, srepr):
    found = json.loads(srepr("evaluate", natural / "run", "--test-prior", "uniform", "--json").out)
    stored = read_json(natural / "run/results.json")
    for name, metrics in found.items():
        assert "views" not in metrics
        close(metrics, stored[name]["views"]["equal"])


@pytest.mark.parametrize("head", ["swa", "la", "half"])
def test_an_exported_file_is_judged_in_both_views_like_the_run(natural, srepr, tmp_path, head):
    words = ("--head", head, "--format", "safetensors", "-o", tmp_path / "model")
    assert srepr("export", natural / "run", *words).code == 0
    answer = srepr("evaluate", tmp_path / "model.safetensors", "--data", natural / "data.npz", "--json")
    found = json.loads(answer.out)["model"]
    stored = read_json(natural / "run/results.json")[head]
    for view in VIEWS:
        close(found["views"][view], stored["views"][view])


def test_a_file_that_was_exported_with_a_prior_keeps_it_in_both_views(natural, srepr, tmp_path):
    words = ("--head", "la", "--format", "safetensors", "--prior", "0.5,0.3,0.2", "-o", tmp_path / "model")
    assert srepr("export", natural / "run", *words).code == 0
    answer = srepr("evaluate", tmp_path / "model.safetensors", "--data", natural / "data.npz", "--json")
    found = json.loads(answer.out)["model"]
    close(found["views"]["natural"], found)


def test_the_table_has_both_views_with_stage_1_in_each(natural, srepr):
    first, second = srepr("evaluate", natural / "run").out.split("\n\n")
    for table, words in ((first, "every class counts the same"), (second, "as the classes come")):
        assert words in table.splitlines()[0]
        assert [line.split()[1] for line in table.splitlines() if line.startswith("│")][:3] == ["SWA", "LA", "cRT"]
        assert "* Few has 10 test examples: too small to judge" in table

"""`retrain_run` and `evaluate_run` on the run folder of a small table: what heads are made, kept, refused and read."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.kill import killed_in_rename

from srepr import features
from srepr.config import Data, Retrain, Train
from srepr.data.examples import ArrayExamples
from srepr.errors import InputError
from srepr.features import NetworkFeatures
from srepr.methods import METHODS, method
from srepr.metrics import LongTailMetrics
from srepr.models.split import replace_classifier
from srepr.retraining import retrain_head
from srepr.run.checkpoints import load_head, load_model, load_posterior
from srepr.run.classifiers import open_network
from srepr.run.evaluate import evaluate_run
from srepr.run.folder import load_run_data
from srepr.run.load import load
from srepr.run.retrain import choices_made, make_head, retrain_run
from srepr.run.train import train
from srepr.storage.files import plain, read_json
from srepr.storage.tensors import load_tensors

LENGTH = 256 + 4  # features of the perceptron: its hidden layer and its inputs
FAST = Retrain(solver="sgd", epochs=2, samples=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on four numbers an example with 60, 20 and 2 examples of three classes; no test changes it."""
    folder = tmp_path_factory.mktemp("finished")
    chance = np.random.default_rng(0)
    y = {"y_train": np.repeat([0, 1, 2], [60, 20, 2]), "y_test": np.arange(90) % 3}
    x = {name.replace("y", "x"): chance.normal(size=(len(k), 4)) + 2 * k[:, None] for name, k in y.items()}
    np.savez(folder / "table.npz", **x, **y)
    train(Train(source=str(folder / "table.npz"), epochs=6, batch_size=16, baseline=True), folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def sweeps(monkeypatch):
    """Which arrays are made: the names of their networks."""
    made, make = [], NetworkFeatures.make

    def counted(self, missing, view):
        made.append([source.name for source in missing])
        make(self, missing, view)

    monkeypatch.setattr(NetworkFeatures, "make", counted)
    return made


def head_bytes(run):
    return {file.name: file.read_bytes() for file in sorted((run / "heads").glob("*.safetensors"))}


def test_every_method_leaves_a_head_its_settings_and_its_metrics(run):
    results = retrain_run(run, METHODS, FAST, quiet=True)
    assert list(results) == list(METHODS)
    assert {file.name for file in (run / "heads").iterdir()} == {
        f"{name}.{suffix}" for name in METHODS for suffix in ("json", "safetensors")
    }
    stored = read_json(run / "results.json")
    assert list(stored) == ["sgd", "swa", *METHODS]
    for name, metrics in results.items():
        note = read_json(run / "heads" / f"{name}.json")
        assert note["metrics"] == stored[name] == plain(metrics)
        assert note["method"] == plain(vars(METHODS[name]))
        assert (note["stage1"], note["settings"]["epochs"], note["settings"]["batch_size"]) == ("swa", 2, 16)
        assert (metrics["n"], metrics["validation"]["n"]) == (90, 9)


def test_all_heads_share_one_cache(run, sweeps):
    """Training data is swept for the draws, every part once more as it is for the metrics and the doubt."""
    retrain_run(run, {"srepr": METHODS["srepr"]}, FAST, quiet=True)
    assert sweeps == [["mean", "draw 0 of epoch 0", "draw 1 of epoch 0"], ["mean"], ["mean"], ["mean"]]
    retrain_run(run, METHODS, FAST, overwrite=True, quiet=True)
    evaluate_run(run, quiet=True)
    assert len(sweeps) == 4
    retrain_run(run, {"other": METHODS["srepr"]}, Retrain(solver="sgd", epochs=2, samples=2, seed=1), quiet=True)
    assert len(sweeps) == 5


@pytest.mark.parametrize(
    ("name", "stage1"), [*((name, "swa") for name in METHODS), *((name, "sgd") for name in METHODS if name != "srepr")]
)
def test_the_metrics_are_those_of_the_whole_network_with_the_head(run, name, stage1):
    """A forward pass over the inputs, nothing cached."""
    results = retrain_run(run, {"x": METHODS[name]}, FAST, stage1=stage1, quiet=True)["x"]
    network, about = load_model(run / ("sgd.safetensors" if stage1 == "sgd" else "representation.safetensors"))
    whole = replace_classifier(network, "fc", load_head(run / "heads/x.safetensors")).eval()
    data = load_run_data(run)
    for part, found in ((data.test, results), (data.validation, results["validation"])):
        metrics = LongTailMetrics(about.counts)
        with torch.no_grad():
            metrics.update(whole(part.load(np.arange(len(part)))), torch.from_numpy(part.labels))
        expected = metrics.compute()
        for key in ("acc", "nll", "ece", "brier", "balanced_acc"):
            assert found[key] == pytest.approx(expected[key], abs=1e-5)


def test_evaluating_again_gives_the_same_numbers(run):
    retrain_run(run, METHODS, FAST, quiet=True)
    retrain_run(run, {"sgd-la": METHODS["la"]}, FAST, stage1="sgd", quiet=True)
    before = (run / "results.json").read_bytes()
    results = evaluate_run(run, quiet=True)
    assert list(results) == ["sgd", "swa", *METHODS, "sgd-la"]
    assert (run / "results.json").read_bytes() == before
    assert plain(results) == json.loads(before)


def test_the_same_settings_keep_the_head_and_make_the_same_bits_anew(run, monkeypatch):
    first = retrain_run(run, METHODS, FAST, quiet=True)
    before = head_bytes(run)
    with monkeypatch.context() as patch:
        patch.setattr("srepr.run.retrain.retrain_head", None)
        assert plain(retrain_run(run, METHODS, FAST, quiet=True)) == plain(first)
    shutil.rmtree(run / "cache")
    retrain_run(run, METHODS, FAST, overwrite=True, quiet=True)
    assert head_bytes(run) == before


@pytest.mark.parametrize(
    ("how", "settings", "stage1", "named"),
    [
        (METHODS["la"], Retrain(solver="sgd", epochs=3, samples=2), "swa", "`epochs` was 2, now 3"),
        (METHODS["la"], Retrain(solver="sgd", epochs=2, samples=2, lr=0.2), "swa", "`lr` was 0.1, now 0.2"),
        (
            METHODS["la"],
            Retrain(solver="sgd", epochs=2, samples=2, on_the_fly=True),
            "swa",
            "`on_the_fly` was False, now True",
        ),
        (METHODS["grw"], FAST, "swa", "`method.balance` was la, now grw"),
        (METHODS["la"], FAST, "sgd", "`stage1` was swa, now sgd"),
        (
            method("srepr"),
            FAST,
            "swa",
            "`method.distill` was False, now True; `method.representation` was deterministic, now swag",
        ),
    ],
)
def test_other_settings_under_the_same_name_are_refused_and_named_before_anything_is_made(
    run, monkeypatch, how, settings, stage1, named
):
    retrain_run(run, {"mine": METHODS["la"]}, FAST, quiet=True)
    before = (run / "results.json").read_bytes(), head_bytes(run)
    with monkeypatch.context() as patch:
        patch.setattr("srepr.run.retrain.retrain_head", None)
        with pytest.raises(InputError) as complaint:
            retrain_run(run, {"new": METHODS["crt"], "mine": how}, settings, stage1=stage1, quiet=True)
    assert str(complaint.value) == (
        f"{run} has a head 'mine' with other settings: {named}. Choose another `name`, or set `overwrite`."
    )
    assert ((run / "results.json").read_bytes(), head_bytes(run)) == before
    retrain_run(run, {"mine": how}, settings, stage1=stage1, overwrite=True, quiet=True)
    assert head_bytes(run) != before[1]


def test_a_diverged_method_is_reported_and_the_others_go_on(run):
    """And nothing is left of a head that was there under its name."""
    retrain_run(run, {"hot": METHODS["srepr"]}, FAST, quiet=True)
    assert (run / "heads/hot.safetensors").exists()
    hot = Retrain(solver="sgd", epochs=2, samples=2, lr=1e9)
    results = retrain_run(run, {"hot": METHODS["srepr"], "ncm": METHODS["ncm"]}, hot, overwrite=True, quiet=True)
    assert results["hot"].keys() == {"diverged"}
    assert "at temperature 20. Raise `temperature`, or lower `lr`." in results["hot"]["diverged"]
    assert results["ncm"]["acc"] > 0.5
    assert not (run / "heads/hot.safetensors").exists()
    assert read_json(run / "results.json")["hot"] == results["hot"]
    assert retrain_run(run, {"hot": METHODS["srepr"]}, hot, quiet=True)["hot"] == results["hot"]
    assert evaluate_run(run, quiet=True)["hot"] == results["hot"]
    retrain_run(run, {"hot": METHODS["srepr"]}, FAST, overwrite=True, quiet=True)
    assert "acc" in evaluate_run(run, quiet=True)["hot"]


def test_defaults_come_from_stage_1(run):
    retrain_run(run, {"ncm": METHODS["ncm"]}, quiet=True)
    made = read_json(run / "heads/ncm.json")["settings"]
    assert (made["epochs"], made["batch_size"], made["samples"]) == (10, 16, 10)


@pytest.mark.parametrize("name", ["sgd", "swa", "a/b", "", ".", "..", ".hidden", "a b", "-x"])
def test_names_that_no_file_should_have_are_refused(run, name):
    with pytest.raises(InputError, match="a head cannot be called"):
        retrain_run(run, {name: METHODS["la"]}, FAST, quiet=True)
    assert not (run / "heads").exists()


@pytest.mark.parametrize("name", ["la-2", "v1.2", "srepr+mixup", "été", "heads"])
def test_names_that_files_can_have_are_found_again(run, name):
    retrain_run(run, {name: METHODS["tau-norm"]}, FAST, quiet=True)
    assert name in evaluate_run(run, quiet=True)


def test_what_is_not_there_is_named(run):
    with pytest.raises(InputError, match=r"the SGD baseline has none. Set `stage1` to swa"):
        retrain_run(run, {"srepr": METHODS["srepr"]}, stage1="sgd")
    (run / "sgd.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no sgd.safetensors. Train one with: srepr train --baseline"):
        retrain_run(run, {"la": METHODS["la"]}, stage1="sgd")
    (run / "results.json").unlink()
    with pytest.raises(InputError, match=r"is not finished. Finish it with the `srepr train` that started it"):
        retrain_run(run, {"la": METHODS["la"]})


def test_the_posterior_of_a_run_is_drawn_from_and_that_of_the_baseline_has_no_spread(run):
    averaged, baseline = (open_network(run, stage1).posterior for stage1 in ("swa", "sgd"))
    loaded = load_posterior(run / "posterior.safetensors", load_model(run / "representation.safetensors")[0])
    assert all(map(torch.equal, averaged.variance().values(), loaded.variance().values()))
    assert any(variance.any() for variance in loaded.variance().values())
    assert not any(variance.any() for variance in baseline.variance().values())


def test_a_data_set_without_a_test_part_gets_heads_without_metrics(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=np.arange(4))
    train(Train(source=str(tmp_path / "t.npz"), epochs=2, batch_size=4), tmp_path / "run")
    results = retrain_run(tmp_path / "run", {"srepr": METHODS["srepr"]}, FAST, quiet=True)
    assert results["srepr"].keys() == {"seconds"}
    assert evaluate_run(tmp_path / "run", quiet=True) == {"swa": {}, **results}


def test_a_large_training_part_does_not_cost_the_test_part_its_precision(run, monkeypatch):
    """float16 for eleven arrays of training features, float32 for the one array of each part as it is."""
    monkeypatch.setattr(features, "LARGE_BYTES", 4 * 3 * 90 * LENGTH)
    retrain_run(run, {"srepr": METHODS["srepr"]}, Retrain(solver="sgd", epochs=1), quiet=True)
    kept = [read_json(file) for file in (run / "cache").glob("*.json")]
    sizes = {(about["dtype"], about["bytes"]) for about in kept if about["source"] == "mean"}
    assert sizes == {("float16", 73 * LENGTH * 2), *(("float32", n * LENGTH * 4) for n in (73, 90, 9))}
    assert evaluate_run(run, quiet=True)["srepr"]["acc"] > 0.5


def test_held_out_examples_come_with_their_distance_from_the_classes(tmp_path):
    """What heads said that were not trained on them, and how far the network puts them from the classes."""
    chance, y = np.random.default_rng(0), np.repeat([0, 1, 2], [300, 120, 60])
    x = (chance.normal(size=(480, 8)) + 1.5 * np.eye(8)[y]).astype(np.float32)
    np.savez(tmp_path / "table.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    run = tmp_path / "run"
    train(Train(source=str(tmp_path / "table.npz"), network="mlp", epochs=4, data=Data(holdout=0.3)), run)
    retrain_run(run, {"la": METHODS["la"]}, quiet=True)
    model, validation = load(run), load_run_data(run).validation
    inputs = validation.load(np.arange(len(validation)))
    with torch.no_grad():
        features = model.model.features(inputs)
    assert torch.equal(model.held.labels, torch.from_numpy(validation.labels))
    expected = model.familiar.relative.distance(features).float()
    torch.testing.assert_close(model.held.distances, expected, rtol=1e-3, atol=1e-3)
    said = model.predict(inputs).probabilities
    assert not torch.allclose(said, model.held.logits.softmax(1), atol=1e-4)  # the head is trained on them


def test_the_metrics_on_the_validation_set_are_of_a_head_that_was_not_trained_on_it(tmp_path):
    """Labels at random: whoever has seen them is right more often than by chance."""
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(400, 60)).astype(np.float32), chance.integers(0, 2, 400)
    np.savez(tmp_path / "table.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    run = tmp_path / "run"
    train(Train(source=str(tmp_path / "table.npz"), network="mlp", epochs=4, data=Data(holdout=0.5)), run)
    found = retrain_run(run, {"la": METHODS["la"]}, Retrain(), quiet=True)["la"]["validation"]
    model, validation = load(run), load_run_data(run).validation
    right = model.predict(validation.load(np.arange(200))).label.numpy() == validation.labels
    assert found["acc"] < 0.6 < right.mean()
    held = LongTailMetrics(load_run_data(run).train.counts)
    held.update(model.held.logits, model.held.labels)
    assert found["nll"] == pytest.approx(held.compute()["nll"])
    assert evaluate_run(run, quiet=True)["la"]["validation"] == found
    uniform = evaluate_run(run, prior="uniform", quiet=True)["la"]["validation"]
    assert uniform["acc"] < 0.6


# Killed, and two at once


@pytest.mark.parametrize("renamed", [False, True], ids=["before its rename", "after it"])
def test_killed_in_any_write_the_same_command_ends_with_the_same_bits(finished, tmp_path, renamed):
    """A head is replaced by one with another learning rate, and a second is made; SIGKILL in each rename."""
    old, new = {"mine": METHODS["la"]}, {"mine": METHODS["la"], "crt": METHODS["crt"]}
    begun = shutil.copytree(finished, tmp_path / "begun")
    retrain_run(begun, old, FAST, quiet=True)
    alone = shutil.copytree(begun, tmp_path / "alone")
    faster = Retrain(solver="sgd", epochs=2, samples=2, lr=0.3)
    retrain_run(alone, new, faster, overwrite=True, quiet=True)
    number = 1
    while True:
        run = shutil.copytree(begun, tmp_path / str(number))
        again = partial(retrain_run, run, new, faster, overwrite=True, quiet=True)
        if not killed_in_rename(again, number, renamed=renamed):
            break
        for note in (run / "heads").glob("*.json"):  # whoever has a note has the weights that it speaks of
            made = json.loads(load_tensors(note.with_suffix(".safetensors"))[1]["made of"])
            assert made == {key: value for key, value in read_json(note).items() if key != "metrics"}
        again()
        assert head_bytes(run) == head_bytes(alone)
        assert not list(run.rglob(".*.partial"))
        assert read_json(run / "results.json").keys() == {"sgd", "swa", "mine", "crt"}
        number += 1
    assert number == 11  # for each of the two heads: weights, note and its checksum, results and theirs


def test_a_second_process_is_refused_while_heads_are_made(run, written_to):
    retrain_run(run, {"la": METHODS["la"]}, FAST, quiet=True)
    with written_to(run):
        for again in (lambda: retrain_run(run, METHODS, FAST, quiet=True), lambda: evaluate_run(run, quiet=True)):
            with pytest.raises(InputError, match="another process is writing to"):
                again()
    assert "la" in evaluate_run(run, quiet=True)


@pytest.mark.parametrize("name", METHODS)
def test_a_head_is_read_as_it_was_written(run, name):
    frozen, data = open_network(run, "swa", quiet=True), load_run_data(run)
    (run / "heads").mkdir()
    metrics = make_head(frozen, "x", {"x": METHODS[name]}, FAST, {"stage1": "swa"}, data)
    head = load_head(run / "heads/x.safetensors")
    assert not any(parameter.requires_grad for parameter in head.parameters())
    again = frozen.judge(head, data.test).plain.metrics
    assert (again["acc"], again["nll"]) == (metrics["acc"], metrics["nll"])


# Chosen on the validation set


def test_auto_chooses_on_the_validation_set_and_its_note_says_how(run):
    results = retrain_run(run, {"auto": "auto"}, Retrain(samples=2), quiet=True)
    note = read_json(run / "heads/auto.json")
    assert note["choice"]["on"] == "9 validation examples"
    assert [row["method"] for row in note["choice"]["candidates"]] == ["la", "crt", "srepr"]
    (chosen,) = (row for row in note["choice"]["candidates"] if row["chosen"])
    assert note["method"] == plain(vars(METHODS[chosen["method"]]))
    assert note["settings"]["penalty"] == chosen["penalty"]
    assert note["asked"]["method"] == "auto"
    assert note["dirichlet_temperature"] == pytest.approx(20 / chosen["temperature"], rel=1e-3)
    assert retrain_run(run, {"auto": "auto"}, Retrain(samples=2), quiet=True) == plain(results)
    assert load(run).temperature == note["dirichlet_temperature"]
    with pytest.raises(InputError, match=r"`penalty` was None, now 0\.5"):
        retrain_run(run, {"auto": "auto"}, Retrain(samples=2, penalty=0.5), quiet=True)


def test_a_named_method_gets_its_penalty_from_the_validation_set(run):
    retrain_run(run, {"la": METHODS["la"]}, quiet=True)
    note = read_json(run / "heads/la.json")
    assert [row["method"] for row in note["choice"]["candidates"]] == ["la"]
    retrain_run(run, {"fixed": METHODS["la"]}, Retrain(penalty=0.3), quiet=True)
    assert "choice" not in read_json(run / "heads/fixed.json")
    assert read_json(run / "heads/fixed.json")["settings"]["penalty"] == 0.3


@pytest.mark.parametrize("without", [None, "test"])
def test_the_validation_set_is_trained_on_after_the_choice_unless_it_is_what_is_measured_on(run, monkeypatch, without):
    data, joined = load_run_data(run), []
    if without:
        data = replace(data, **{without: None})
    monkeypatch.setattr("srepr.run.retrain.load_run_data", lambda *_: data)
    monkeypatch.setattr("srepr.run.retrain.retrain_head", lambda *a, **b: joined.append(b) or retrain_head(*a, **b))
    retrain_run(run, {"la": METHODS["la"]}, Retrain(samples=2), quiet=True)
    (asked,) = joined
    if without:
        assert asked["joining"] is None
    else:
        np.testing.assert_array_equal(asked["joining"].epoch(0).labels, data.validation.labels)
    logits, held = asked["held"].mean, load(run, head="la").held
    assert len(held.labels) == len(logits)
    head = load_head(run / "heads/la.safetensors")
    same = torch.allclose(head(torch.tensor(logits)), held.logits, atol=1e-4)
    assert same == (without is not None)


def test_the_test_set_has_no_part_in_the_choice(run, monkeypatch):
    """With test images and labels that are turned around, the same head is chosen, to the bit."""
    retrain_run(run, {"auto": "auto"}, Retrain(samples=2), quiet=True)
    before = head_bytes(run)
    data = load_run_data(run)
    turned = replace(data, test=ArrayExamples(data.test.inputs[::-1].copy(), data.test.labels, data.class_names))
    monkeypatch.setattr("srepr.run.retrain.load_run_data", lambda *_: turned)
    results = retrain_run(run, {"auto": "auto"}, Retrain(samples=2), overwrite=True, quiet=True)
    assert head_bytes(run) == before
    assert results["auto"]["acc"] < 0.5


def test_without_a_validation_set_auto_is_srepr_at_its_defaults(tmp_path):
    settings = Train(source="digits-lt", network="resnet8", epochs=2, batch_size=32)
    train(settings, tmp_path / "run")
    retrain_run(tmp_path / "run", {"auto": "auto", "srepr": METHODS["srepr"]}, Retrain(samples=2), quiet=True)
    first, second = (load_head(tmp_path / f"run/heads/{name}.safetensors").weight for name in ("auto", "srepr"))
    assert torch.equal(first, second)
    assert choices_made(tmp_path / "run", ["auto", "srepr"])["auto"]["candidates"] == []

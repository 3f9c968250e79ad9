"""`srepr retrain` and `srepr evaluate` as they are typed, on the embedded digits."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from tests.conftest import FAST, HEADS
from tests.kill import start

from srepr.data import load
from srepr.methods import METHODS
from srepr.models.split import replace_classifier
from srepr.run.checkpoints import load_head, load_model
from srepr.run.evaluate import prior_weights
from srepr.storage.files import read_json
from srepr.storage.tensors import load_tensors


@pytest.fixture
def run(retrained, tmp_path):
    return shutil.copytree(retrained, tmp_path / "run")


def note(run, name):
    return read_json(run / "heads" / f"{name}.json")


def head_bytes(run):
    return {file.name: file.read_bytes() for file in sorted((run / "heads").glob("*.safetensors"))}


def test_the_methods_of_the_paper_are_one_command(srepr, run):
    answer = srepr("retrain", run, "--method", *HEADS, *FAST)
    assert (answer.code, answer.err) == (0, "")
    results = json.loads(answer.out)
    assert list(results) == [*HEADS]
    stored = read_json(run / "results.json")
    assert list(stored) == ["sgd", "swa", *HEADS]
    assert all(stored[name] == results[name] for name in HEADS)
    assert all(row["n"] == 597 and row["acc"] > 0.5 for row in stored.values())
    assert {file.stem for file in (run / "heads").glob("*.safetensors")} == set(HEADS)


def test_people_get_a_table(srepr, run):
    answer = srepr("retrain", run, "--method", "grw", "--epochs", 1, "--samples", 2)
    assert answer.code == 0
    (row,) = [line for line in answer.out.splitlines() if "GRW" in line]
    assert f"{100 * note(run, 'grw')['metrics']['acc']:.2f}" in row


def test_the_same_command_gives_the_same_bits(srepr, run):
    before, when = head_bytes(run), (run / "heads/srepr.safetensors").stat().st_mtime_ns
    assert srepr("retrain", run, "--method", *HEADS, *FAST).code == 0
    assert (run / "heads/srepr.safetensors").stat().st_mtime_ns == when
    shutil.rmtree(run / "cache")
    shutil.rmtree(run / "heads")
    assert srepr("retrain", run, "--method", *HEADS, *FAST).code == 0
    assert head_bytes(run) == before


def test_another_setting_under_the_same_name_is_refused_with_its_name(srepr, run):
    words = ["retrain", run, "--method", "srepr", *FAST]
    before = head_bytes(run)
    refused = {
        ("--samples", 3): "--samples was 2, now 3",
        ("--balance", "cbs"): "--balance was la, now cbs",
        ("--no-distill",): "--distill was True, now False",
        ("--temperature", 10): "--temperature was 20.0, now 10.0",
        ("--seed", 1): "--seed was 0, now 1",
    }
    for more, named in refused.items():
        complaint = srepr(*words, *more).complaint
        assert (
            f"has a head 'srepr' with other settings: {named}. Choose another --name, or set --overwrite." in complaint
        )
    assert head_bytes(run) == before
    assert srepr(*words, "--seed", 1, "--overwrite").code == 0
    assert head_bytes(run) != before
    assert note(run, "srepr")["settings"]["seed"] == 1
    assert srepr(*words, "--overwrite").code == 0
    assert head_bytes(run) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--balance", "cbs"], {"balance": "cbs", "distill": True}),
        (["--no-distill"], {"balance": "la", "representation": "swag", "distill": False}),
        (["--representation", "augment"], {"representation": "augment", "distill": True}),
        (["--head", "disalign"], {"head": "disalign", "start": "stage 1", "representation": "swag"}),
        (["--start", "random"], {"head": "linear", "start": "random"}),
    ],
)
def test_a_choice_changes_the_method_under_a_name_of_its_own(srepr, run, words, expected):
    answer = srepr("retrain", run, "--method", "srepr", *words, "--name", "mine", *FAST)
    assert list(json.loads(answer.out)) == ["mine"]
    assert expected.items() <= note(run, "mine")["method"].items()
    weights = load_tensors(run / "heads/mine.safetensors")[0]
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert head_bytes(run)["mine.safetensors"] != head_bytes(run)["srepr.safetensors"]


def test_srepr_is_logit_adjustment_with_draws_and_distillation(srepr, run):
    words = ["--method", "la", "--representation", "swag", "--distill", "--name", "pieces"]
    assert srepr("retrain", run, *words, *FAST).code == 0
    pieces, whole = (load_head(run / f"heads/{name}.safetensors") for name in ("pieces", "srepr"))
    assert torch.equal(pieces.weight, whole.weight)
    assert not torch.equal(pieces.weight, load_head(run / "heads/la.safetensors").weight)


def test_on_the_fly_makes_its_own_draws_in_every_epoch_and_keeps_none(srepr, run):
    kept = {file.name for file in (run / "cache").iterdir()}
    assert srepr("retrain", run, "--method", "srepr", "--on-the-fly", "--name", "fly", *FAST).code == 0
    assert note(run, "fly")["settings"]["on_the_fly"] is True
    assert {file.name for file in (run / "cache").iterdir()} == kept
    assert head_bytes(run)["fly.safetensors"] != head_bytes(run)["srepr.safetensors"]


def test_the_baseline_is_retrained_under_a_name_that_says_so(srepr, run):
    answer = srepr("retrain", run, "--stage1", "sgd", "--method", "crt", "la", *FAST)
    assert list(json.loads(answer.out)) == ["sgd-crt", "sgd-la"]
    assert note(run, "sgd-la")["stage1"] == "sgd"
    assert (
        "draws from the posterior, and the SGD baseline has none"
        in srepr("retrain", run, "--stage1", "sgd", "--method", "srepr").complaint
    )
    listed = json.loads(srepr("evaluate", run, "--json").out)
    assert list(listed) == ["sgd", "swa", *HEADS, "sgd-crt", "sgd-la"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--method", "sreper"], "unknown method 'sreper'; did you mean srepr? Known: auto, " + ", ".join(METHODS)),
        (["--method", "crt", "la", "--name", "x"], "--name is for one method."),
        (["--name", "a/b"], "a head cannot be called 'a/b'."),
        (["--samples", "0"], "--samples is 0: at least 1 is needed"),
        (["--method", "srepr", "--samples", "1"], "--samples is 1: srepr distils several representations. Raise it"),
        (["--temperature", "0"], "--temperature is 0.0: it must be above 0"),
        (["--method", "srepr", "--balance", "cbx"], "unknown balance 'cbx'; did you mean cbs? Known: cbs, "),
        (["--method", "srepr", "--head", "lsw"], "unknown head 'lsw'; did you mean lws? Known: lws, "),
        (["--balance", "cbs"], "--balance changes a named method, and auto chooses among several. Name a --method."),
        (["--on-the-fly"], "--on-the-fly is for SGD. Set --solver to sgd."),
        (["--penalty", "0"], "--penalty is 0.0: it must be above 0"),
        (["--distill", "--no-distill"], "--distill and --no-distill exclude each other."),
        (
            ["--method", "srepr", "--representation", "deterministic"],
            "Set --representation to swag, or turn distillation off.",
        ),
        (["--method", "crt", "--head", "lws"], "the head lws is made from the stage-1 classifier. Set --start to"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(srepr, run, words, complaint):
    before = head_bytes(run)
    assert complaint in srepr("retrain", run, *words).complaint
    assert head_bytes(run) == before


def test_a_diverged_method_is_reported_and_the_others_go_on(srepr, run):
    answer = srepr("retrain", run, "--method", "srepr", "ncm", "grw", "tau-norm", "--lr", 1e9, *FAST, "--overwrite")
    assert "the re-training diverged in epoch 0, step 1" in answer.complaint
    assert "at temperature 20. Raise --temperature, or lower --lr." in answer.complaint
    results = json.loads(answer.out)
    assert results["srepr"].keys() == results["grw"].keys() == {"diverged"}
    assert results["ncm"]["n"] == results["tau-norm"]["n"] == 597
    stored = read_json(run / "results.json")
    assert (stored["srepr"], stored["ncm"]) == (results["srepr"], results["ncm"])
    answer = srepr("evaluate", run)
    assert answer.code == 0
    assert "SRepr" in answer.out


def test_evaluate_lists_both_networks_and_every_head(srepr, run):
    before = (run / "results.json").read_bytes()
    answer = srepr("evaluate", run, "--json")
    assert answer.code == 0
    assert json.loads(answer.out) == json.loads(before)
    assert (run / "results.json").read_bytes() == before
    table = srepr("evaluate", run).out
    assert all(name in table for name in ("SGD", "SWA", "cRT", "LWS", "LA", "DisAlign", "SRepr"))


def test_heads_on_kept_features_are_the_network_on_images(retrained):
    """Accuracy and likelihood of one forward pass of the whole network, in numpy."""
    network, _ = load_model(retrained / "representation.safetensors")
    test = load("digits-lt").test
    stored = read_json(retrained / "results.json")
    for name in HEADS:
        whole = replace_classifier(network, "fc", load_head(retrained / f"heads/{name}.safetensors"))
        with torch.no_grad():
            z = whole(test.load(np.arange(len(test)))).double().numpy()
        log_probs = z - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)) - z.max(1, keepdims=True)
        assert stored[name]["acc"] == np.mean(z.argmax(1) == test.labels)
        nll = -log_probs[np.arange(len(test)), test.labels].mean()
        assert stored[name]["nll"] == pytest.approx(nll, abs=1e-5)


# Other class priors


@pytest.mark.parametrize("prior", ["forward50", "backward50", "uniform"])
def test_the_weights_of_a_prior_give_the_classes_their_shares(prior):
    """share_k ~ 50^(-rank_k / (K - 1)), the rank by training count; from the most to the least a factor of 50."""
    counts, labels = load("digits-lt").counts, load("digits-lt").test.labels
    weights = prior_weights(prior, counts.tolist(), labels).numpy()
    shares = np.array([weights[labels == k].sum() for k in range(10)]) / weights.sum()
    rank = np.argsort(np.argsort(-counts))
    expected = {"forward50": 50.0 ** (-rank / 9), "backward50": 50.0 ** (rank / 9), "uniform": np.ones(10)}[prior]
    np.testing.assert_allclose(shares, expected / expected.sum(), rtol=1e-12)
    assert weights.sum() == pytest.approx(len(labels))
    assert all(len(set(weights[labels == k])) == 1 for k in range(10))


def test_other_priors_weigh_the_classes_and_leave_the_results_alone(srepr, run):
    before = (run / "results.json").read_bytes()
    stored = json.loads(before)
    counts = np.array(load("digits-lt").counts)
    rank = np.argsort(np.argsort(-counts))
    shares = {"uniform": np.ones(10), "forward50": 50.0 ** (-rank / 9), "backward50": 50.0 ** (rank / 9)}
    for prior, share in shares.items():
        found = json.loads(srepr("evaluate", run, "--test-prior", prior, "--json").out)
        assert found.keys() == stored.keys()
        for name, row in found.items():
            per_class = np.array(stored[name]["per_class"])
            assert row["acc"] == pytest.approx((share * per_class).sum() / share.sum(), rel=1e-9)
            if prior == "uniform":
                assert row["acc"] == pytest.approx(stored[name]["balanced_acc"], rel=1e-9)
    assert (run / "results.json").read_bytes() == before


@pytest.mark.parametrize("prior", ["sideways50", "forward", "forward0", "backward-3"])
def test_a_prior_that_does_not_exist_is_refused(srepr, run, prior):
    complaint = srepr("evaluate", run, "--test-prior", prior).complaint
    assert complaint.startswith(f"unknown test prior '{prior}'")
    assert "Known: test, uniform, forward50, backward50 (any imbalance)" in complaint


# Killed


def test_killed_while_it_makes_features_the_same_command_ends_with_the_same_bits(srepr, retrained, trained, tmp_path):
    """A process of its own, SIGKILL as soon as it has begun to write features."""
    run = shutil.copytree(trained, tmp_path / "run")
    words = ["retrain", str(run), "--method", *HEADS, *FAST]
    process = start(words)
    while process.poll() is None and not list(run.glob("cache/.*.partial")):
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (run / "heads").exists() or not list((run / "heads").iterdir())
    assert list(run.glob("cache/.*.partial"))
    assert srepr(*words).code == 0
    assert head_bytes(run) == head_bytes(retrained)
    assert not list(run.rglob(".*.partial"))
    kept = {file.name for file in (retrained / "cache").iterdir()}
    assert {file.name for file in (run / "cache").iterdir()} == kept

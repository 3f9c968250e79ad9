"""The library speaks of arguments, the command line of flags; `Answer.complaint` checks that for every other test."""

import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest

from srepr.cli import VERBS, flags, in_flags
from srepr.config import Train
from srepr.run.folder import flatten

TYPED = ["train", "digits-lt", "--out", "R"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_that_a_message_can_name_is_one_that_the_command_takes(srepr, verb):
    taken = set(re.findall(r"--[\w.-]+", srepr(verb, "--help").out))
    assert {flag for _, flag in flags(VERBS[verb]) if flag.startswith("-")} <= taken


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_the_type_of_what_may_be_left_out(srepr, verb):
    """`--data-dir PATH`, not `--data-dir {None}|PATH`: nobody types None."""
    assert "{None" not in srepr(verb, "--help").out
    if verb in ("train", "data"):
        assert "--data-dir PATH" in srepr(verb, "--help").out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*TYPED, "--image-size", "None"], "Error parsing --image-size: "),
        ([*TYPED, "--optim.lr", "-1"], "--optim.lr is -1.0: it must be above 0"),
        ([*TYPED, "--optim.swa-lr", "0"], "--optim.swa-lr is 0.0: it must be above 0"),
        ([*TYPED, "--holdout", "1"], "--holdout is 1.0: it must lie between 0 and 1"),
        ([*TYPED, "--num-nodes", "0"], "--num-nodes is 0: at least 1 is needed"),
        ([*TYPED, "--imbalance", "0.5", "--counts", *["1"] * 10], "--counts and --imbalance exclude each other."),
        (["retrain", "R", "--lr", "-1"], "--lr is -1.0: it must be above 0"),
        (["retrain", "R", "--distill-weight", "2"], "--distill-weight is 2.0: it must lie in 0 .. 1"),
        (["import", "R", "--out", "S", "--source", "digits-lt", "--holdout", "0"], "--holdout is 0.0: it must lie "),
        (["data", "show", "cifar10-lt"], "cifar10-lt needs --data-dir, the folder with its files."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_out_of_range_is_named_as_it_is_typed(srepr, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    assert srepr(*words).complaint.startswith(complaint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seed", "1"], "--seed was 0, now 1"),
        (["--holdout", "0.2"], "--holdout was 0.1, now 0.2"),
        (["--optim.swa-lr", "0.5"], "--optim.swa-lr was 0.02, now 0.5"),
        (["--skip-bad-images"], "--skip-bad-images was False, now True"),
        (["--precision", "bf16-mixed"], "--precision was 32-true, now bf16-mixed"),
        (["--batch-size", "16", "--shortcut", "B"], "--batch-size was 8, now 16; --shortcut was A, now B"),
    ],
)
def test_other_settings_of_a_run_folder_are_named_as_they_are_typed(
    srepr, trained, tmp_path, monkeypatch, words, named
):
    """Entering the folder is enough: nothing is trained."""
    monkeypatch.setattr("srepr.run.devices.bf16_failure", lambda: "")
    run = shutil.copytree(trained, tmp_path / "run")
    settings = ["train", "digits-lt", "--baseline", "--epochs", 8, "--batch-size", 8, "--out", run]
    complaint = srepr(*settings, *words).complaint
    assert complaint.startswith(f"{run} holds a run with other settings: {named}. Choose another folder with --out")


def test_what_is_typed_without_a_flag_is_named_as_in_the_help(srepr, trained, tmp_path):
    np.savez(tmp_path / "table.npz", x=np.eye(4), y=np.arange(4))
    complaint = srepr("train", tmp_path / "table.npz", "--batch-size", 4, "--out", trained).complaint
    assert f"SOURCE was digits-lt, now {tmp_path / 'table.npz'}" in complaint


@pytest.mark.parametrize("verb", VERBS)
def test_only_the_command_s_own_arguments_become_flags(verb):
    said = "`no_such_argument` and `srepr train` and `label` stay"
    assert in_flags(said, VERBS[verb]) == said


def test_every_setting_is_found_under_its_dotted_name():
    """As `differences` names them."""
    for name in flatten(asdict(Train(source="x"))):
        typed = name.removeprefix("data.").replace("_", "-")
        expected = "SOURCE" if name == "source" else f"--{typed}"
        assert in_flags(f"`{name}` was 0, now 1", VERBS["train"]) == f"{expected} was 0, now 1"

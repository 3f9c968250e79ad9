"""The command line: help at once, one line for every mistake, nothing but JSON where JSON was asked for."""

import json
import re
import subprocess
import sys

import pytest
from tests.kill import TRAIN, start

from srepr.cli import VERBS, in_one_line
from srepr.cli.train import train_default
from srepr.config import RECIPES, Train

IMPORTED = """
import sys
from srepr.cli import VERBS, main
for words in [], ["--help"], ["--version"], *([verb, "--help"] for verb in VERBS):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code
    heavy = {"torch", "lightning_fabric", "scipy", "sklearn", "matplotlib", "PIL", "torchmetrics"}
    print("IMPORTED by", words, sorted(heavy & sys.modules.keys()))
"""


def test_help_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    imported = [line for line in done.stdout.splitlines() if line.startswith("IMPORTED")]
    assert len(imported) == 3 + len(VERBS)
    assert [line for line in imported if not line.endswith("[]")] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_and_is_in_the_usage(srepr, verb):
    answer = srepr(verb, "--help")
    assert (answer.code, answer.err) == (0, "")
    words = re.sub(r"\W+", " ", answer.out)
    assert re.sub(r"\W+", " ", VERBS[verb].EXAMPLE) in words
    assert f"srepr {verb} " in srepr("--help").out


def test_the_example_of_every_verb_can_be_parsed():
    from srepr.cli import parse

    for verb, kind in VERBS.items():
        program, name, *words = kind.EXAMPLE.split()
        assert (program, name) == ("srepr", verb)
        assert isinstance(parse(verb, words), kind)


def test_json_is_alone_on_stdout_and_progress_on_stderr(srepr, tmp_path):
    answer = srepr("train", "digits-lt", "--epochs", 2, "--out", tmp_path / "run", "--json")
    assert json.loads(answer.out).keys() == {"swa"}
    announced, first, second = answer.err.splitlines()
    assert announced.startswith(
        "training resnet8 (0.1 million parameters) on 331 images of 8 x 8 pixels in 10 classes"
    )
    assert re.fullmatch(
        r"trunk 1/2  loss \d\.\d{4}  acc \d+\.\d %  lr 0\.0500 +\d+ images/s  (\d+ min )?\d+ s left", first
    )
    assert second.startswith("swa   2/2")


def test_people_get_a_table(srepr, trained):
    answer = srepr(*TRAIN, "--epochs", 8, "--out", trained)
    assert answer.out.startswith("digits-lt, seed 0")
    assert [line.split()[1] for line in answer.out.splitlines() if line[2:5] in ("SGD", "SWA")] == ["SGD", "SWA"]


def test_the_recipe_is_named_by_the_source_and_flags_change_it():
    from srepr.cli import parse

    settings = parse("train", ["--optim.lr", "0.25", "cifar100-lt", "--out", "R"]).settings
    assert settings.optim.lr == 0.25
    assert settings.optim.swa_lr == RECIPES["cifar100-lt"].optim.swa_lr
    assert settings.epochs == 200


def test_a_path_that_is_called_like_a_recipe_is_no_recipe():
    assert train_default(["photos", "--out", "digits-lt"]).settings.epochs == Train(source="x").epochs
    assert train_default(["--out", "digits-lt", "cifar10-lt"]).settings.epochs == 200


UNICODE = """\
╭─ Value error ───────────────────────────────────╮
│ Error parsing settings.optim: `lr` is -1: it    │
│ must be above 0                                 │
│ ─────────────────────────────────────────────── │
│ For full helptext, see srepr train --help       │
╰─────────────────────────────────────────────────╯
"""
ASCII = """\
 Value error
 -------------------------------------------------
  Error parsing settings.optim: `lr` is -1: it
  must be above 0
  -------------------------------------------------
  For full helptext, see srepr train --help

"""


@pytest.mark.parametrize("frame", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_complaint_loses_its_frame(frame):
    assert in_one_line(frame) == "`lr` is -1: it must be above 0."


def test_what_is_near_is_offered_and_what_is_far_is_not(srepr):
    known = f"Known: {', '.join(VERBS)}. See: srepr --help"
    assert srepr("evalute").complaint == f"unknown command 'evalute'; did you mean evaluate? {known}"
    assert srepr("quux").complaint == f"unknown command 'quux'. {known}"


def test_an_interrupted_command_says_how_to_go_on(srepr, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("srepr.run.train.train", interrupted)
    answer = srepr("train", "digits-lt", "--out", "R")
    assert answer.code == 130
    assert answer.err.startswith("srepr: stopped. The same command ")


def test_a_reader_that_goes_away_is_no_error():
    """`srepr ... | head -0`."""
    process = start(["data", "list", "--json"])
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 0

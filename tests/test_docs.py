"""The README and the pages of docs/ are true: their examples run, their tables are the code's, their links lead on."""

import inspect
import operator
import re
import shlex
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

import pytest

import srepr as library
from srepr.cli.demo import SHOWN
from srepr.config import RECIPES
from srepr.methods import METHODS, TITLES

ROOT = Path(__file__).parents[1]
README, *PAGES = ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))
EXAMPLE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ srepr (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)

FIXED = [
    "Posterior.update",
    "Posterior.mean",
    "Posterior.variance",
    "Posterior.draw",
    "Posterior.apply_mean",
    "Posterior.state_dict",
    "Posterior.load_state_dict",
    "fit",
    "collect",
    "retrain",
    "evaluate",
    "dirichlet.fit",
    "dirichlet.kl_to_uniform",
    "objective.cross_entropy",
    "objective.self_distillation",
    "balance.grw_weights",
    "balance.logit_offset",
    "metrics.expected_calibration_error",
    "analysis.feature_dispersion",
    "analysis.jensen_shannon",
    "data.exponential_counts",
    "models.resnet32",
    "models.resnet50",
    "models.resnext50",
]


def examples(page):
    return EXAMPLE.findall(page.read_text(encoding="utf-8"))


def public(name):
    """What `srepr.NAME` stands for."""
    return operator.attrgetter(name)(library)


def rows(page):
    """The cells of every line of a page that is a row of a table."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


# Most of the work is that of other libraries, which coverage would follow too: other tests reach the same lines.
@pytest.mark.no_cover
@pytest.mark.parametrize("page", [page for page in (README, *PAGES) if examples(page)], ids=lambda page: page.stem)
def test_every_example_of_a_page_runs(page, tmp_path, monkeypatch, srepr):
    """In their order, in one folder, the Python ones in one namespace; what a command is shown to print, it prints."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, body in examples(page):
        if language == "python":
            exec(compile(body, page.name, "exec"), names)
            continue
        assert COMMAND.search(body), body
        for words, shown in COMMAND.findall(body):
            answer = srepr(*shlex.split(words))
            assert answer.code == 0, answer.err
            same = OutputChecker().check_output(shown, answer.out, ELLIPSIS | NORMALIZE_WHITESPACE)
            assert same or not shown.strip(), answer.out


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "retrain.md"], ids=lambda page: page.stem)
def test_the_table_of_methods_is_the_one_in_the_code(page):
    found = {row[0]: row[1:] for row in rows(page) if row[0] in METHODS}
    assert found == {
        name: [how.head, how.start, how.balance, how.representation, "yes" if how.distill else "no"]
        for name, how in METHODS.items()
    }


def test_the_table_of_recipes_is_the_one_in_the_code():
    found = {row[0]: row[1:] for row in rows(ROOT / "docs" / "train.md") if row[0] in RECIPES}
    assert found == {
        name: [
            recipe.network,
            *(str(number) for number in (recipe.epochs, recipe.batch_size)),
            *(f"{rate:g}" for rate in (recipe.optim.lr, recipe.optim.weight_decay, recipe.optim.swa_lr)),
        ]
        for name, recipe in RECIPES.items()
    }


def test_the_demo_in_the_readme_has_the_rows_that_the_demo_prints():
    printed = re.findall(r"^│ (\S+)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert printed == [TITLES.get(name, name) for name in ("sgd", "swa", *SHOWN)]


def test_the_links_of_the_readme_lead_somewhere():
    """Those of docs/ are checked by `mkdocs build --strict`."""
    links = re.findall(r"\]\((?!https:)([^)#]+)", README.read_text(encoding="utf-8"))
    assert len(links) > 3
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_every_option_in_the_pages_exists(page, srepr):
    """As `srepr VERB --help` tells, for the lines that name a verb."""
    for verb, words in re.findall(r"^\$? ?srepr (\w+)(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        known = set(re.findall(r"--[\w.-]+", srepr(verb, "--help").out))
        assert set(re.findall(r"(?<=\s)--[\w.-]+", words)) <= known, (verb, words)


@pytest.mark.parametrize("name", library.__all__)
def test_every_public_name_has_an_example(name):
    """A module has one for each function and class that it offers."""
    thing = public(name)
    offered = [thing]
    if inspect.ismodule(thing):
        names = getattr(thing, "__all__", None) or [
            key
            for key, value in vars(thing).items()
            if getattr(value, "__module__", None) == thing.__name__ and key[0] != "_"
        ]
        offered = [getattr(thing, key) for key in names if callable(getattr(thing, key))]
    assert offered
    assert [value for value in offered if ">>> " not in (value.__doc__ or "")] == []


@pytest.mark.parametrize("name", FIXED)
def test_every_fixed_name_is_documented(name):
    """A function with an example; a method, whose class has the example, with a sentence."""
    first, _, last = name.partition(".")
    owner = public(first)
    thing = getattr(owner, last) if last else owner
    assert inspect.isfunction(thing)
    assert thing.__doc__
    assert ">>> " in (owner if inspect.isclass(owner) else thing).__doc__

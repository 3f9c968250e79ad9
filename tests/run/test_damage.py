"""Damage to any file of a run folder is noticed, or changes nothing; what can be made again is made again."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.kill import outcome

import srepr as package
from srepr import representation
from srepr.config import Machine, Train
from srepr.errors import InputError
from srepr.models import mlp
from srepr.run.checkpoints import load_classifier, load_model
from srepr.run.evaluate import evaluate_run
from srepr.run.folder import load_run_data
from srepr.run.load import find_head
from srepr.run.train import train
from srepr.storage import checksums
from srepr.storage.files import read_json
from srepr.storage.tensors import load_tensors, save_tensors

WRONG = ["null", "[]", "3", '"text"', "{}", '{"swa": 1}', "[" * 100_000, "NaN", "1" * 5000]


def flip(path, place):
    """Flip one bit of a file, at a share of its length."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run on a small table with two heads, evaluated."""
    from srepr.methods import METHODS
    from srepr.run.retrain import retrain_run

    folder = tmp_path_factory.mktemp("damage")
    chance = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [40, 15, 5])
    np.savez(
        folder / "table.npz", x=chance.normal(size=(60, 4)) + y[:, None], y=y, x_test=np.eye(4)[:3], y_test=[0, 1, 2]
    )
    train(Train(source=str(folder / "table.npz"), epochs=3, batch_size=12, baseline=True), folder / "run", quiet=True)
    retrain_run(folder / "run", {name: METHODS[name] for name in ("la", "srepr")}, quiet=True)
    np.save(folder / "x.npy", np.eye(4, dtype=np.float32))
    return folder


@pytest.fixture
def run(small, tmp_path):
    return shutil.copytree(small / "run", tmp_path / "run")


FILES = ["config.json", "results.json", "heads/la.json", "log.jsonl", "representation.safetensors", "sgd.safetensors"]
FILES += ["posterior.safetensors", "heads/srepr.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named(srepr, run, small, name):
    whole = (run / name).read_bytes()
    head = ["--head", Path(name).stem] if name.startswith("heads/") else []
    for place in (0.1, 0.5, 0.99):
        flip(run / name, place)
        answer = srepr("report", run, *head, "-o", run.parent / "page.html", "--no-dispersion", "--json")
        if name == "posterior.safetensors" or answer.code:
            assert str(run / name) in answer.complaint
        assert answer.code == 2
        (run / name).write_bytes(whole)


def damage(run, name, harm):
    """Damage the note, or the weights, of a head."""
    note = run / "heads" / f"{name}.json"
    times = note.stat()
    if harm == "bit":
        flip(note, 0.5)
    elif harm == "no weights":
        note.with_suffix(".safetensors").unlink()
    else:
        (run / checksums.FOLDER / "heads" / f"{name}.json").unlink()
        note.write_text(harm)
    os.utime(note, ns=(times.st_atime_ns, times.st_mtime_ns))


HARMS = ["bit", "no weights", "[]", '{"stage1": 3}']


@pytest.fixture
def uses(run, small, tmp_path, monkeypatch):
    """What each command that uses one head is asked, and what it writes."""
    monkeypatch.setattr("srepr.run.figures.FIGURES", {})
    return {
        "predict": (["predict", run, small / "x.npy", "-o", tmp_path / "out.csv"], "out.csv"),
        "export": (["export", run, "--format", "safetensors", "-o", tmp_path / "m"], "m.safetensors"),
        "analyze": (["analyze", run, "--samples", 2, "--out", tmp_path / "a"], "a/analysis.json"),
        "report": (["report", run, "--no-dispersion", "-o", tmp_path / "r.html"], "r.html"),
    }


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("verb", ["predict", "export", "analyze", "report"])
def test_a_damaged_head_is_named_and_another_one_is_used(srepr, run, uses, tmp_path, verb, harm):
    words, out = uses[verb]
    assert srepr(*words).code == 0
    expected = (tmp_path / out).read_bytes()
    damage(run, "la", harm)
    again = f"srepr: the head la cannot be used; make it again with `srepr retrain {run} --method la --overwrite`: "
    for more in ([], ["--head", "srepr"]):
        (tmp_path / out).unlink()
        answer = srepr(*words, *more)
        assert answer.code == 0
        assert (tmp_path / out).exists()
        if verb not in ("report", "export"):  # the page says how long each head took, an export with what it was made
            assert (tmp_path / out).read_bytes() == expected
        (line,) = [line for line in answer.err.splitlines() if line.startswith("srepr: ")]
        assert line.startswith(again)
        assert f"{run / 'heads' / 'la'}." in line


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("verb", ["predict", "export", "analyze", "report"])
def test_no_other_head_stands_in_for_a_damaged_one(srepr, run, uses, tmp_path, verb, harm):
    words, out = uses[verb]
    damage(run, "srepr", harm)
    for more in ([], ["--head", "srepr"]):
        assert str(run / "heads" / "srepr") in srepr(*words, *more).complaint
        assert not (tmp_path / out).exists()
    assert srepr(*words, "--head", "la").code == 0


@pytest.mark.parametrize("harm", [*HARMS, "weights"])
def test_a_damaged_head_is_not_evaluated_and_is_made_again_as_advised(srepr, run, harm):
    before = (run / "results.json").read_bytes()
    weights = (run / "heads" / "la.safetensors").read_bytes()
    if harm == "weights":
        flip(run / "heads" / "la.safetensors", 0.9)
    else:
        damage(run, "la", harm)
    complaint = srepr("evaluate", run, "--json").complaint
    assert str(run / "heads" / "la") in complaint
    assert (run / "results.json").read_bytes() == before
    advised = complaint.split("`")[1].split()
    assert advised[0] == "srepr"
    assert srepr(*advised[1:], "--json").code == 0
    assert (run / "heads" / "la.safetensors").read_bytes() == weights
    assert srepr("evaluate", run, "--json").err == ""


def test_damaged_weights_of_a_head_do_not_matter_to_another(srepr, run, uses):
    flip(run / "heads" / "la.safetensors", 0.9)
    for words, _ in uses.values():
        assert srepr(*words, "--head", "srepr").code == 0
        assert str(run / "heads" / "la.safetensors") in srepr(*words, "--head", "la").complaint


@pytest.mark.parametrize(
    ("damaged", "heads", "chosen"),
    [
        ("srepr", ["auto"], "auto"),
        ("auto", ["srepr"], None),
        ("la", ["srepr"], "srepr"),
        ("la", [], None),
        ("auto", [], None),
    ],
)
def test_the_default_head_is_known_to_be_the_best_one(run, damaged, heads, chosen):
    for file in (run / "heads").iterdir():
        file.rename(file.with_name(f"x{file.suffix}")) if file.stem == "srepr" else file.unlink()
    for name in (*heads, damaged):
        for suffix in (".json", ".safetensors"):
            shutil.copy(run / "heads" / f"x{suffix}", run / "heads" / f"{name}{suffix}")
    (run / "heads" / "x.json").unlink()
    shutil.rmtree(run / checksums.FOLDER)
    (run / "heads" / f"{damaged}.json").write_text("[]")
    if chosen is None:
        with pytest.raises(InputError, match=f"the head {damaged} cannot be used"):
            find_head(run)
    else:
        assert find_head(run)[0] == chosen
    assert find_head(run, "swa") == ("swa", {})


def test_flipped_bits_of_the_cache_are_made_good(srepr, run, small):
    expected = json.loads(srepr("evaluate", run, "--json").out)
    for pattern, said in (("*.bin", "is damaged: it is made again"), ("*.json", "")):
        for file in (run / "cache").glob(pattern):
            flip(file, 0.6)
        answer = srepr("evaluate", run, "--json")
        assert json.loads(answer.out) == expected
        assert said in answer.err


def test_labels_come_from_the_data(run):
    """Also in a cache of an older version, which has no checksums."""
    expected = evaluate_run(run, quiet=True)
    for note in (run / "cache").glob("*.json"):
        about = read_json(note)
        about.pop("checksum")
        note.write_text(json.dumps(about))
        if about["source"] == "labels":
            kept = note.with_suffix(".bin")
            kept.write_bytes(np.zeros(kept.stat().st_size // 8, np.int64).tobytes())
    assert evaluate_run(run, quiet=True) == expected


def test_evaluate_makes_damaged_results_again_and_says_so(srepr, run):
    whole = (run / "results.json").read_bytes()
    flip(run / "results.json", 0.4)
    answer = srepr("evaluate", run, "--json")
    assert answer.code == 0
    assert "results.json was damaged or changed" in answer.err
    assert (run / "results.json").read_bytes() == whole


def test_evaluate_names_numbers_that_are_others_now(srepr, run):
    content = read_json(run / "results.json")
    content["la"]["acc"] = 0.125
    (run / "results.json").write_text(json.dumps(content))
    (run / checksums.FOLDER / "results.json").unlink()  # the user's way to say that the change is meant
    assert "results.json had other numbers: acc of la was 0.125, now " in srepr("evaluate", run, "--json").err
    assert srepr("evaluate", run, "--json").err == ""


def test_a_file_changed_by_hand_is_refused_until_its_checksum_is_deleted(srepr, run, small):
    note = run / "heads" / "la.json"
    note.write_text(note.read_text().replace('"rho": 1.0', '"rho": 0.5'))
    record = run / checksums.FOLDER / "heads" / "la.json"
    complaint = srepr("predict", run, small / "x.npy", "--head", "la").complaint
    assert complaint.endswith(f"Restore it, or delete {record} to use it as it is.")
    record.unlink()
    assert srepr("predict", run, small / "x.npy", "--head", "la").code == 0


@pytest.mark.parametrize("content", WRONG, ids=lambda text: text[:9])
@pytest.mark.parametrize("name", ["config.json", "results.json", "heads/la.json", "log.jsonl"])
def test_json_of_another_type_is_one_line(srepr, run, small, name, content):
    shutil.rmtree(run / checksums.FOLDER)
    (run / name).write_text(content)
    head = ["--head", "la"] if name == "heads/la.json" else []
    answer = srepr("report", run, *head, "-o", run.parent / "page.html", "--no-dispersion")
    allowed = name == "log.jsonl"  # a line that is no JSON is one that a kill cut short
    assert answer.code == 0 if allowed and answer.code == 0 else answer.complaint
    for words in (["predict", run, small / "x.npy"], ["evaluate", run, "--json"]):
        answer = srepr(*words)
        assert answer.code == 0 or answer.complaint


ABOUT = {
    "network": "mlp",
    "options": {"inputs": 4, "width": 8},
    "class_names": ["a", "b"],
    "counts": [9, 3],
    "shape": [4],
    "mean": [0.0],
    "std": [1.0],
}


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"inputs": 10**12}},
        {"options": {"inputs": 4, "width": 10**7}},
        {"options": {"inputs": 4, "depth": 10**9}},
        {"options": {"inputs": 4, "depth": 10**5, "width": 8}},
        {"options": {"inputs": "4"}},
        {"options": [4]},
        {"network": "resnet", "options": {"depths": [10**6] * 3}},
        {"network": 7},
        {"class_names": 10**12},
        {"class_names": []},
        {"shape": [3, 10**6, 10**6]},
        {"shape": []},
        {"std": [0.0]},
        {"mean": ["nan"]},
        {"classifier": ""},
        {"classifier": "hidden.9"},
        {"counts": [1]},
    ],
    ids=str,
)
def test_a_description_that_lies_is_one_line_and_costs_nothing(tmp_path, change):
    save_file(
        mlp(2, inputs=4, width=8).state_dict(),
        tmp_path / "m.safetensors",
        {"srepr": json.dumps({"about": json.dumps(ABOUT | change)})},
    )
    for read in (load_model, load_classifier):
        with pytest.raises(InputError, match=r"m\.safetensors") as error:
            read(tmp_path / "m.safetensors")
        assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "entry", ["no JSON", "[]", '{"about": 3}', '{"about": "[]"}', '{"about": "no JSON"}', "[" * 9999]
)
def test_foreign_metadata_are_one_line(tmp_path, entry):
    save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors", {"srepr": entry})
    with pytest.raises(InputError, match=r"m\.safetensors"):
        load_model(tmp_path / "m.safetensors")


def test_every_bit_of_a_file_of_weights_is_covered(tmp_path):
    """Of the header as well; a flip within the name of the checksum makes a file without one, and changes nothing."""
    path = tmp_path / "w.safetensors"
    save_tensors(path, {"w": torch.arange(4.0)}, {"epoch": "3"})
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 3, 6):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            path.write_bytes(content)
            try:
                tensors, metadata = load_tensors(path)
            except InputError:
                continue
            assert torch.equal(tensors["w"], torch.arange(4.0))
            assert metadata.get("epoch", "3") == "3"


MEASURED = {"n": 9, "ece": 0.1, "bins": [{"count": 9, "confidence": 0.6, "accuracy": 0.5}]}


@pytest.fixture
def exported(tmp_path):
    """Writes an exported classifier with these changes of its weights or of what it says."""

    def write(facts=None, classifier=None, **change):
        torch.manual_seed(0)
        layer = {name: change.get(name, tensor) for name, tensor in mlp(2, inputs=4, width=8).state_dict().items()}
        how = {"temperature": 1.5, "expects": [9, 3], **(classifier or {})}
        entries = {"about": json.dumps(ABOUT), "classifier": json.dumps(how), "facts": json.dumps(facts or {})}
        save_file(layer, tmp_path / "m.safetensors", {"srepr": json.dumps(entries)})
        np.save(tmp_path / "x.npy", np.full((2, 4), 100, np.float32))
        return tmp_path / "m.safetensors"

    return write


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"metrics": {"acc": "high"}}, "in facts, metrics.acc is 'high', not a number or null"),
        ({"metrics": {"views": {"equal": {"nll": {}}}}}, "in facts, metrics.views.equal.nll is an object"),
        ({"metrics": {"validation": {"views": {"natural": {"few": []}}}}}, "metrics.validation.views.natural.few is"),
        ({"metrics": {**MEASURED, "bins": [""]}}, "in facts, metrics.bins[0] is '', not an object"),
        ({"metrics": {"tested": "few"}}, "in facts, metrics.tested is 'few', not an object"),
        ({"choice": {"on": "", "candidates": [1]}}, "in facts, choice.candidates[0] is 1, not an object"),
        ({"metrics": {**MEASURED, "views": {"sideways": MEASURED}}}, "cannot be read (KeyError: 'sideways')"),
        ({"metrics": {**MEASURED, "bins": [{"count": 9, "confidence": None, "accuracy": None}]}}, "cannot be read ("),
    ],
    ids=str,
)
def test_what_an_exported_file_says_about_itself_is_checked(srepr, exported, tmp_path, facts, complaint):
    """`srepr export` writes it into the model card."""
    file = exported(facts)
    words = ("export", file, "--format", "safetensors", "-o", tmp_path / "again")
    answer = srepr(*words)
    assert f"{file} " in answer.complaint
    assert complaint in answer.complaint
    assert not (tmp_path / "again.safetensors").exists()
    exported({"metrics": {**MEASURED, "views": {"equal": MEASURED}}})
    assert srepr(*words).code == 0


def test_a_key_that_no_classifier_has_changes_nothing(srepr, exported, tmp_path):
    plain = srepr("predict", exported(), tmp_path / "x.npy").out
    assert srepr("predict", exported(classifier={"shift": 5, ": 1.5": 0}), tmp_path / "x.npy").out == plain


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_a_head_of_another_precision_is_used_in_that_of_the_network(srepr, exported, tmp_path, dtype):
    weight = torch.linspace(-1, 1, 16).view(2, 8).to(torch.float16)
    expected = srepr("predict", exported(**{"fc.weight": weight.float()}), tmp_path / "x.npy")
    assert (expected.code, expected.err) == (0, "")
    assert srepr("predict", exported(**{"fc.weight": weight.to(dtype)}), tmp_path / "x.npy").out == expected.out


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("running_mean", torch.inf, "'hidden.1.running_mean' is not finite"),
        ("running_var", torch.inf, "'hidden.1.running_var' is not finite"),
        ("weight", 3e38, "the network's outputs are not finite: check its inputs and weights"),
        ("running_var", -1.0, "the network's outputs are not finite: check its inputs and weights"),
    ],
)
def test_statistics_that_answer_nothing_are_refused(srepr, exported, tmp_path, name, value, complaint):
    before = mlp(2, inputs=4, width=8).state_dict()[f"hidden.1.{name}"]
    file = exported(**{f"hidden.1.{name}": torch.full_like(before, value)})
    assert complaint in srepr("predict", file, tmp_path / "x.npy").complaint


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_size_of_many_digits_is_no_checksum(tmp_path, digits):
    (tmp_path / checksums.FOLDER).mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / checksums.FOLDER / "config.json").write_text(f"0123456789abcdef {'9' * digits}\n")
    with pytest.raises(InputError, match="was damaged or changed"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("key", ["source", "data_dir"])
def test_a_name_that_no_file_can_have_is_one_line(run, key):
    shutil.rmtree(run / checksums.FOLDER)
    config = read_json(run / "config.json")
    (config["settings"] if key == "source" else config)[key] = "a" * 9999
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json cannot be read \(File name too long\)"):
        load_run_data(run)


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("representation.safetensors", "weights", "is not a number"),
        ("heads/srepr.safetensors", "weights", "contains NaN"),
        ("heads/srepr.json", "temperature", "must be a finite number above 0"),
    ],
)
def test_what_answers_nan_is_refused(srepr, run, small, name, change, complaint):
    shutil.rmtree(run / checksums.FOLDER)
    if change == "weights":
        tensors, metadata = load_tensors(run / name)
        first = next(key for key, tensor in tensors.items() if tensor.is_floating_point())
        save_tensors(run / name, tensors | {first: tensors[first] * float("nan")}, metadata)
    else:
        note = read_json(run / name)
        note["dirichlet_temperature"] = 0
        (run / name).write_text(json.dumps(note))
    for words in (["predict", run, small / "x.npy"], ["export", run, "--format", "safetensors", "-o", run / "m"]):
        assert complaint in srepr(*words).complaint
    with pytest.raises(InputError):
        package.load(run)


@pytest.fixture
def unwritable(monkeypatch):
    """A folder as it looks on a read-only medium; root may write to any other."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_that_cannot_be_written_to_is_evaluated_and_reported_on(srepr, run, unwritable, cached):
    if not cached:
        shutil.rmtree(run / "cache")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    answer = srepr("evaluate", run, "--json")
    assert json.loads(answer.out).keys() == read_json(run / "results.json").keys()
    assert answer.err == f"srepr: {run} cannot be written to: its results.json stays as it is.\n"
    assert srepr("report", run, "-o", run.parent / "page.html", "--json").code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


SETTINGS = {"epochs": 4, "batch_size": 12, "baseline": True}


@pytest.mark.parametrize("harm", ["newest state", "fork", "finished branch", "older version"])
def test_a_damaged_state_falls_back_and_ends_with_the_same_bits(small, tmp_path, monkeypatch, capsys, harm):
    from srepr.run import train as module

    settings, run = Train(source=str(small / "table.npz"), **SETTINGS), tmp_path / "run"
    monkeypatch.setattr(representation, "CHECK_EVERY", 2)
    train(settings, tmp_path / "alone", quiet=True)

    class Cut(BaseException):
        pass

    def cut(path, line):
        log(path, line)
        if line["branch"] == ("sgd" if harm == "finished branch" else "swa"):
            raise Cut

    log = module.append_log
    monkeypatch.setattr(module, "append_log", cut)
    with pytest.raises(Cut):
        train(settings, run, machine=Machine(checkpoint_minutes=0), quiet=True)
    monkeypatch.setattr(module, "append_log", log)
    states = sorted((run / "state").glob("*-*.safetensors"))
    assert len(states) == 2
    target = {
        "newest state": states[-1],
        "fork": run / "state" / "fork.safetensors",
        "finished branch": run / "state" / "swa.json",
    }
    if harm == "older version":  # it wrote no checksums
        shutil.rmtree(run / checksums.FOLDER)
        for file in run.rglob("*.safetensors"):
            save_file(load_file(file), file, {"srepr": json.dumps(load_tensors(file)[1])})
    else:
        flip(target[harm], 0.7)
    train(settings, run, quiet=True)
    said = capsys.readouterr().err
    assert str(target[harm]) in said if harm in target else "state" not in said
    assert outcome(run) == outcome(tmp_path / "alone")

"""A classifier of a run folder, or of an exported file, ready to predict: `srepr.load`.

Nothing of the training is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srepr.classifier import Classifier
from srepr.config import Stage1
from srepr.errors import InputError, tell, unknown
from srepr.methods import Method
from srepr.models.split import replace_classifier
from srepr.run import checkpoints
from srepr.run.folder import STAGE_1, head_notes, read_settings, require_network
from srepr.run.schema import read_note, unusable


def choose_head(path: Path, known: dict[str, Stage1], head: str | None, *, retrained: bool = False) -> str:
    """The given head, or the default one: `auto`, `srepr`, or else the newest on the averaged network, or the newest.

    `known` maps each classifier, the oldest first, to its network. Without any re-trained one the averaged network is
    the default, unless `retrained` asks for a head.

    >>> choose_head(Path("R"), {"swa": "swa", "la": "swa", "sgd-la": "sgd"}, None)
    'la'
    """
    if head is not None:
        if head not in known:
            raise unknown("head", head, known, hint=f" in {path}; make it with: srepr retrain --name")
        return head
    heads = [name for name in known if name not in STAGE_1]
    if not heads:
        if retrained:
            raise InputError(f"{path} has no re-trained classifier. Make one with: srepr retrain {path}")
        return "swa"
    averaged = [name for name in heads if known[name] == "swa"]
    return next((name for name in ("auto", "srepr") if name in heads), (averaged or heads)[-1])


def load(path: str | Path, head: str | None = None) -> Classifier:
    """Read a classifier from a run folder or an exported file, ready to predict; no data are needed.

    `head` is a head of the run, or `swa` or `sgd` for a network of stage 1. By default it is `auto`, `srepr`, or
    else the newest head on the averaged network. The classifier knows its class names and how inputs are prepared:
    `classifier.predict("photo.jpg")` works as on the command line. Other heads that are damaged are named on stderr.

    >>> load("nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: nothing is not a folder. Pass a run folder made by `srepr train`.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        if head is not None:
            raise InputError(f"{path} holds a single classifier. Leave `head` out.")
        return checkpoints.load_classifier(path)
    if path.is_file():
        raise InputError(f"{path} is not a run folder or a .safetensors file. Pass one of these.")
    name, note = find_head(path, head, name_others=True)
    if not note:
        return checkpoints.load_classifier(path / STAGE_1[name])  # type: ignore[index]
    network, about = checkpoints.load_model(path / STAGE_1[note["stage1"]])
    layer = network.get_submodule(about.classifier)
    head_, held, familiar = checkpoints.load_head_and_held(path / "heads" / f"{name}.safetensors", layer)
    network = replace_classifier(network, about.classifier, head_)
    temperature = float(note.get("dirichlet_temperature", note["settings"]["temperature"]))
    expects = expected_prior(note, about.counts)
    try:
        return checkpoints.ready(
            network, about, temperature=temperature, expects=expects, held=held, familiar=familiar
        )
    except InputError as error:
        raise InputError(f"{path / 'heads' / f'{name}.json'}: {error}") from None


def expected_prior(note: Mapping[str, Any], counts: Sequence[int]) -> list[float]:
    """The class shares that a head expects, by its note and the training counts.

    >>> expected_prior({"method": {"head": "linear", "balance": "la"}, "settings": {"rho": 0.5}}, [16, 4])
    [4.0, 2.0]
    """
    return Method(**note["method"]).expected_prior(counts, float(note["settings"]["rho"]))


def find_head(path: Path, head: str | None = None, *, name_others: bool = False) -> tuple[str, dict[str, Any]]:
    """The name and the note of a head of a run folder; the note of a network of stage 1 is empty.

    A head that cannot be read is an InputError if it is the one asked for, or could have been the default. With
    `name_others`, a line on stderr names each of the others that cannot be read.
    """
    read_settings(path)
    require_network(path)
    notes = read_notes(path)
    stage1: dict[str, Stage1] = {name: name for name, file in STAGE_1.items() if (path / file).exists()}
    # A head that does not say so may be of the averaged network, which goes before the other.
    for name, note in notes.items():
        stage1[name] = "swa" if isinstance(note, InputError) else note["stage1"]
    name = choose_head(path, stage1, head)
    note = notes.get(name, {})
    if isinstance(note, InputError):
        raise note
    for other in notes.values():
        if name_others and isinstance(other, InputError):
            tell(str(other))
    return name, note


def read_notes(path: Path) -> dict[str, dict[str, Any] | InputError]:
    """The notes of a run's heads, the oldest first, or what is wrong with them; heads that diverged are left out."""
    notes: dict[str, dict[str, Any] | InputError] = {}
    for file in head_notes(path):
        weights = file.with_suffix(".safetensors")
        try:
            note = read_note(file)
            if "diverged" not in note["metrics"]:
                notes[file.stem] = note if weights.exists() else unusable(file, f"{weights} does not exist.")
        except InputError as error:
            notes[file.stem] = error
    return notes

"""A classifier ready to be used, from a run folder or from one file, with everything that its use needs.

The file is a safetensors of the whole network with its head; how to build it, and the facts for its model card, are in
its metadata.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from srepr import heads, runs
from srepr.checkpoints import About, load_model
from srepr.classifier import Classifier
from srepr.errors import InputError
from srepr.evaluation import STAGE_1, Stage1
from srepr.models.split import replace_classifier, swap
from srepr.opened import head_notes, load_head

KIND_BY_PARAMETER = {"tau": "lws", "factor": "lws-per-class", "alpha": "disalign", "scale": "cosine"}


def load_classifier(path: Path, head: str | None = None) -> tuple[Classifier, About]:
    """The classifier of a run folder, or of a file written by `save_classifier` or `srepr train`; no data are needed.

    Of a run the head is `srepr` when not given, or else the newest, or else the network of stage 1; `swa` and `sgd`
    name the latter.

    >>> load_classifier(getfixture("tmp_path") / "nothing")
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    if path.suffix == ".safetensors":
        if head is not None:
            raise InputError(f"{path} holds a single classifier. Leave --head {head} out.")
        return _from_file(path)
    name = choose_head(path, head)
    if name in STAGE_1:
        return _stage_1(path / STAGE_1[name])
    note = runs.read_json(path / "heads" / f"{name}.json")
    stage1: Stage1 = note["stage1"]
    network, about = load_model(path / STAGE_1[stage1])
    network = replace_classifier(network, "fc", load_head(path / "heads" / f"{name}.safetensors"))
    temperature = float(note["settings"]["temperature"])
    return _ready(network, temperature=temperature, expects=expected_prior(note, about.counts)), about


def choose_head(run: Path, head: str | None = None) -> str:
    """The name of the head that is meant: the one asked for, or `srepr`, or the newest, or the network of stage 1.

    >>> choose_head(getfixture("tmp_path"))
    Traceback (most recent call last):
    srepr.errors.InputError: .../config.json does not exist. Is its folder a run made by `srepr train`?
    """
    runs.read_settings(run)
    known: list[str] = [name for name, file in STAGE_1.items() if (run / file).exists()]
    known += [note.stem for note in head_notes(run) if note.with_suffix(".safetensors").exists()]
    if not known:
        raise InputError(f"{run} has no trained network yet. Finish it with the `srepr train` command that began it.")
    if head is None:
        return "srepr" if "srepr" in known else known[-1]
    if head not in known:
        raise InputError(
            f"{run} has no head {head!r}. Known: {', '.join(known)}; make it with `srepr retrain --name`."
        )
    return head


def expected_prior(note: dict[str, Any], counts: tuple[int, ...]) -> list[float]:
    """The shares that a head was trained to expect, pi_k^(1 - rho): what its balance has left of the training prior.

    >>> expected_prior({"method": {"head": "linear", "balance": "la"}, "settings": {"rho": 0.5}}, (16, 4))
    [4.0, 2.0]
    """
    method = note["method"]
    strength = {"none": 0.0, "cbs": 1.0}.get(method["balance"], note["settings"]["rho"])
    if method["head"] in ("tau-norm", "ncm"):
        strength = 1.0  # no loss to balance: the classes are treated alike by how it is made
    return cast(list[float], (np.asarray(counts, dtype=float) ** (1 - strength)).tolist())


def read_prior(words: str, about: About) -> list[float]:
    """The shares of the K classes that `uniform`, `train`, a list `0.7,0.2,0.1` or a file stand for.

    A file holds the numbers in the order of the classes, or is a JSON object from class names to numbers.

    >>> about = About(network="mlp", options={}, class_names=("a", "b"), counts=(9, 3), shape=(), mean=(), std=())
    >>> read_prior("uniform", about), read_prior("train", about), read_prior("0.9,0.1", about)
    ([1.0, 1.0], [9.0, 3.0], [0.9, 0.1])
    """
    names = about.class_names
    if words == "uniform":
        return [1.0] * len(names)
    if words == "train":
        return [float(count) for count in about.counts]
    text = Path(words).read_text(encoding="utf-8") if Path(words).is_file() else words
    try:
        if text.lstrip().startswith("{"):
            shares = json.loads(text)
            numbers = [float(shares[name]) for name in names]
        else:
            numbers = [float(number) for number in text.strip("[] \n").replace(",", " ").split()]
    except KeyError as missing:
        raise InputError(f"--prior {words} has no number for the class {missing}. Give one for each class.") from None
    except (ValueError, TypeError):
        raise InputError(
            f"--prior {words[:60]} is neither uniform, nor train, nor a file, nor a list of numbers like 0.7,0.2,0.1."
        ) from None
    if len(numbers) != len(names):
        raise InputError(
            f"--prior {words[:60]} has {len(numbers)} numbers for {len(names)} classes. Give one for each."
        )
    return numbers


def save_classifier(path: Path, classifier: Classifier, about: About, facts: dict[str, Any]) -> None:
    """Write the classifier with its prior and its facts; `load_classifier` gives the same logits, bit for bit.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,), std=(1.0,))
    >>> path = getfixture("tmp_path") / "model.safetensors"
    >>> save_classifier(path, Classifier(about.build()).with_prior([9, 3]), about, {})
    >>> load_classifier(path)[0].shift
    tensor([ 0.4055, -0.6931])
    """
    tensors = {**classifier.model.state_dict()}
    if classifier.shift is not None:
        tensors["shift"] = classifier.shift
    expects = None if classifier.expects is None else [float(share) for share in classifier.expects]
    how = {"temperature": classifier.temperature, "expects": expects}
    metadata = {"about": asdict(about), "classifier": how, "facts": facts}
    runs.save_tensors(path, tensors, {name: json.dumps(runs.plain(value)) for name, value in metadata.items()})


def _from_file(path: Path) -> tuple[Classifier, About]:
    tensors, metadata = runs.load_tensors(path)
    if "classifier" not in metadata:
        return _stage_1(path)
    about = About.from_json(metadata["about"])
    shift = tensors.pop("shift", None)
    kind = next((kind for name, kind in KIND_BY_PARAMETER.items() if f"fc.{name}" in tensors), "linear")
    head = heads.build(kind, weight=tensors["fc.weight"], bias=tensors.get("fc.bias"), scale=tensors.get("fc.scale"))
    network = about.build().eval()
    swap(network, network.get_submodule("fc"), head)
    network.load_state_dict(tensors)
    return _ready(network, **json.loads(metadata["classifier"]), shift=shift), about


def _stage_1(path: Path) -> tuple[Classifier, About]:
    network, about = load_model(path)
    return _ready(network, expects=about.counts), about


def _ready(network: nn.Module, **options: Any) -> Classifier:
    return Classifier(network, **options).eval().requires_grad_(False)

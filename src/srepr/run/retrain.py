"""`srepr retrain`: heads on the frozen network of a run folder, from one feature cache, each a small file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from srepr.config import VIEWS, Retrain, Stage1, stage2_epochs
from srepr.data import LongTailData
from srepr.data.longtail import Indices
from srepr.data.sampling import chunks
from srepr.decisions import doubt
from srepr.decisions.doubt import Familiar
from srepr.decisions.held import Held
from srepr.errors import InputError, check
from srepr.features import EpochFeatures, FeatureSource
from srepr.methods import Method, choices
from srepr.representation import Diverged
from srepr.retraining import check_samples, choosable, retrain_head
from srepr.run.checkpoints import save_head
from srepr.run.classifiers import Frozen, open_network
from srepr.run.evaluate import measure_head
from srepr.run.folder import STAGE_1, differences, load_run_data, read_settings, sole_writer
from srepr.run.schema import read_config, read_note, read_results
from srepr.run.team import Team
from srepr.storage.files import plain, write_json


def retrain_run(
    run: Path,
    methods: Mapping[str, Method | Literal["auto"]],
    settings: Retrain | None = None,
    *,
    stage1: Stage1 = "swa",
    data_dir: Path | None = None,
    cache: Path | None = None,
    workers: int = 0,
    compiled: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    team: Team | None = None,
) -> dict[str, dict[str, Any]]:
    """Train a head for each (name, method) on the run's network, write heads/NAME, and return their metrics.

    The method `auto` chooses among several on the validation set of the run, which also chooses the penalty of a named
    method. On a pretrained body the training data are cross-validated instead. Without either, the defaults are used.
    All heads share one feature cache, in the run or in the folder `cache`. A head that exists with the same settings
    is kept; with other settings it is refused. A method that diverges is reported in its metrics (`diverged`), and the
    others continue. The processes of a `team` (`srepr.run.team.open_team`) make the features together; only the first
    of them returns.

    >>> from srepr.methods import METHODS
    >>> retrain_run(getfixture("tmp_path") / "nothing", {"srepr": METHODS["srepr"]})
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Pass a run folder made by `srepr train`.
    """
    read_settings(run)
    trained = read_config(run)["settings"]
    check("epochs" in trained, f"{run / 'config.json'} does not say how many epochs were trained. Restore it.")
    if not (run / "results.json").exists():
        raise InputError(f"the training in {run} is not finished. Finish it with the `srepr train` that started it.")
    if not (run / STAGE_1[stage1]).exists():
        raise InputError(f"{run} has no {STAGE_1[stage1]}. Train one with: srepr train --baseline")
    team = team or Team()
    options = {"cache": cache, "workers": workers, "compiled": compiled, "quiet": quiet or not team.leads}
    frozen = open_network(run, stage1, team=team, **options)
    settings = settings or Retrain()
    settings = replace(
        settings,
        epochs=settings.epochs or stage2_epochs(trained["epochs"]),
        batch_size=settings.batch_size or trained["batch_size"],
    )
    data = load_run_data(run, data_dir)
    team.parts = data.parts
    if not team.leads:
        team.help(frozen)
    views = data.train.representations if frozen.pretrained else None
    draws = views != 1 if frozen.pretrained else stage1 == "swa" and "imported" not in trained
    samples = settings.draws
    if views is not None and views > 1:
        samples = min(samples, views)
    elif frozen.pretrained and settings.samples is None:
        samples = VIEWS
    settings = replace(settings, samples=samples)
    among = {name: suited(name, how, draws=draws, pretrained=frozen.pretrained) for name, how in methods.items()}
    for name, how in methods.items():
        _check_possible(run, name, how, stage1, trained)
        check_samples(among[name], settings.draws)
    with sole_writer(run):
        (run / "heads").mkdir(exist_ok=True)
        results = read_results(run)
        asked = {
            name: {"stage1": stage1, "method": how if how == "auto" else asdict(how), "settings": asdict(settings)}
            for name, how in methods.items()
        }
        kept = {name: None if overwrite else kept_metrics(run, name, wanted) for name, wanted in asked.items()}
        for name in methods:
            results[name] = kept[name] or make_head(frozen, name, among[name], settings, asked[name], data)
            write_json(run / "results.json", results)
    return {name: results[name] for name in methods}


def _check_possible(
    run: Path, name: str, how: Method | Literal["auto"], stage1: Stage1, trained: dict[str, Any]
) -> None:
    if not re.fullmatch(r"\w[\w.+-]*", name) or name in STAGE_1:
        raise InputError(f"a head cannot be called {name!r}. Use letters, digits, '-', '+', '.' and '_'.")
    if how == "auto" or how.representation != "swag":
        return
    if stage1 == "sgd":
        raise InputError(f"{name} draws from the posterior, and the SGD baseline has none. Set `stage1` to swa.")
    if "imported" in trained:
        collect = f"srepr train {trained['source']} --from {run} --out NEW"
        raise InputError(f"{name} draws from a posterior, and an imported network has none. Collect one: {collect}")


def make_head(
    frozen: Frozen,
    name: str,
    methods: Mapping[str, Method],
    settings: Retrain,
    asked: dict[str, Any],
    data: LongTailData,
) -> dict[str, Any]:
    """Choose, train, measure and write one head; its metrics, or `diverged` with the reason."""
    began = time.monotonic()
    reads = [how.representation for how in methods.values() if how.representation != "deterministic"]
    source = frozen.features(data.train, reads[0] if reads else "deterministic", settings, augment=True)
    held, joining = None, None
    if data.validation is not None and not frozen.pretrained and choosable(methods, settings, frozen.layer):
        held = frozen.features(data.validation, "deterministic", replace(settings, views=1), augment=False).epoch(0)
        if data.test is not None and source.dtype is np.float32:  # nobody measures on it, and there is memory for it
            joining = frozen.features(
                data.validation, source.representation, settings, augment=True, calibration=data.train
            )
    note, weights = (frozen.run / "heads" / f"{name}.{suffix}" for suffix in ("json", "safetensors"))
    made_of = asked
    try:
        made = retrain_head(
            source,
            frozen.layer,
            frozen.about.counts,
            methods,
            settings,
            held=held,
            joining=joining,
            unseen=frozen.pretrained,
            quiet=frozen.quiet,
        )
    except Diverged as error:
        metrics: dict[str, Any] = {"diverged": str(error)}
        note.unlink(missing_ok=True)
        weights.unlink(missing_ok=True)
    else:
        seconds = round(time.monotonic() - began, 2)
        expects = made.method.expected_prior(frozen.about.counts, settings.rho)
        apart = None if joining is None or made.held is None else made.held.limited()
        metrics = {**measure_head(frozen, made.head, data, expects=expects, apart=apart), "seconds": seconds}
        made_of = {**asked, "method": asdict(made.method), "settings": asdict(made.settings), "asked": asked}
        made_of |= {"dirichlet_temperature": made.temperature, "joined": apart is not None}
        if made.choice is not None:
            made_of["choice"] = {"on": made.choice.note, "candidates": made.choice.table}
        note.unlink(missing_ok=True)  # a head is there when its note is: never new weights with an old note
        held_out = made.held or validated(frozen, made.head, data)
        save_head(weights, made.head, made_of, *familiar(frozen, held_out, source, data))
    write_json(note, {**made_of, "metrics": metrics})
    return metrics


def validated(frozen: Frozen, head: nn.Module, data: LongTailData) -> Held | None:
    """What a head says about the validation set, if there is one."""
    if data.validation is None:
        return None
    logits, labels = zip(*frozen.outputs(head, data.validation), strict=True)
    return Held(torch.cat(logits), torch.cat(labels))


def familiar(
    frozen: Frozen, held: Held | None, source: FeatureSource, data: LongTailData
) -> tuple[Held | None, Familiar | None]:
    """The held-out examples, and what features of inputs look like that the network was not trained on, if known.

    They are those of the validation set or, around a pretrained body, of the training data. Vectors that come as
    features are not watched. How far from the classes they are says something about a network that was trained on
    these classes (results/doubt.md): the held-out examples, which are the validation set, get their distances.
    """
    if frozen.about.network == "linear":
        return held, None
    try:
        if frozen.pretrained:
            return held, doubt.fit(some_features(source.epoch(0))[0])
        if data.validation is None or held is None:
            return held, None
        plain = Retrain(samples=1)
        parts = (data.train, data.validation)
        trained, known = (frozen.features(part, "deterministic", plain, augment=False).epoch(0) for part in parts)
        (x, rows), (x_known, rows_known) = some_features(trained), some_features(known)
        found = doubt.fit(x_known)
        probabilities, labels = held.logits[rows_known].softmax(1), held.labels[rows_known]
        relative = doubt.fit_relative(x, torch.from_numpy(trained.labels[rows]), x_known, labels, probabilities)
    except InputError:  # too few, or all the same
        return held, None
    if relative is not None:
        distances = [relative.distance(torch.tensor(known.mean[part])) for part in chunks(len(held.labels))]
        held = held._replace(distances=torch.cat(distances))
    return held, found._replace(relative=relative)


def some_features(features: EpochFeatures) -> tuple[torch.Tensor, Indices]:
    """Features [N, L] of at most as many examples as are enough, and which they are."""
    rows = np.unique(np.linspace(0, len(features.mean) - 1, doubt.ENOUGH).astype(np.int64))
    return torch.from_numpy(features.mean[rows].astype(np.float32)), rows


def suited(name: str, how: Method | Literal["auto"], *, draws: bool, pretrained: bool) -> dict[str, Method]:
    """The methods to choose from; around a pretrained body there is no posterior, so augmented views are drawn.

    >>> suited("auto", "auto", draws=True, pretrained=True)["srepr"].representation
    'augment'
    """
    among = choices("auto", draws=draws) if how == "auto" else {name: how}
    several = [method for method in among.values() if method.representation != "deterministic"]
    if pretrained and several and not draws:
        raise InputError(
            f"{name} needs several representations of each example, and there is one. Give vectors as [N, M, D], or"
            " choose another `method`."
        )
    return {
        one: replace(method, representation="augment") if pretrained and method in several else method
        for one, method in among.items()
    }


def kept_metrics(run: Path, name: str, made_of: dict[str, Any]) -> dict[str, Any] | None:
    """The metrics of a head that was made with the same settings; None if there is none of that name.

    >>> kept_metrics(getfixture("tmp_path"), "srepr", {}) is None
    True
    """
    file = run / "heads" / f"{name}.json"
    if not file.exists():
        return None
    found = read_note(file)
    metrics: dict[str, Any] = found["metrics"]
    old, new = (
        {"stage1": made["stage1"], "method": made["method"], "solver": "sgd", **made["settings"]}  # 0.1.0 had no other
        for made in (found.get("asked", found), plain(made_of))
    )
    changed = differences(old, new)
    if changed:
        raise InputError(
            f"{run} has a head {name!r} with other settings: {changed}. Choose another `name`, or set `overwrite`."
        )
    return metrics


def choices_made(run: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the heads of these names were chosen; without candidates if there was nothing to choose on.

    Heads without a choice to make are left out.

    >>> choices_made(getfixture("tmp_path"), [])
    {}
    """
    notes = {name: read_note(run / "heads" / f"{name}.json") for name in names}
    return {
        name: note.get("choice", {"on": "", "candidates": []})
        for name, note in notes.items()
        if "choice" in note or note.get("asked", {}).get("method") == "auto"
    }

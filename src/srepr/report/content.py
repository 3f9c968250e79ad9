"""Everything that the page shows of one run, as numbers and words: what is drawn from it is the page's affair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from srepr import runs
from srepr.analysis import analyze, usual_classifier
from srepr.data.longtail import groups
from srepr.errors import InputError
from srepr.evaluation import STAGE_1
from srepr.opened import OpenedRun
from srepr.report.mistakes import predictions, worst_classes
from srepr.report.verdict import flips, verdict
from srepr.tables import COLUMNS, NAMES

SAMPLES = 10
BRANCHES = {
    "trunk": "Stage 1, up to the averaging",
    "sgd": "Stage 1, the rest of the SGD baseline",
    "swa": "Stage 1, averaging the weights",
}


def describe_run(opened: OpenedRun, *, head: str | None = None, dispersion: bool = True) -> dict[str, Any]:
    """One run: a classifier (`srepr` where there is one, else the newest) against the stage-1 one that it replaces.

    Without `dispersion` no network is drawn from the posterior, and the plots of it are left out.

    >>> from srepr.config import Train
    >>> from srepr.opened import open_trained
    >>> from srepr.stage1 import train
    >>> run = getfixture("tmp_path") / "run"
    >>> _ = train(Train(source="digits-lt", network="resnet8", epochs=1), run)
    >>> describe_run(open_trained(run, quiet=True))
    Traceback (most recent call last):
    srepr.errors.InputError: .../run has no re-trained classifier. Make one with: srepr retrain .../run
    """
    head = _chosen_head(opened, head)
    before, _, note = opened.classifiers[head]
    config, results = runs.read_json(opened.run / "config.json"), runs.read_json(opened.run / "results.json")
    if opened.data.test is None:
        results = {name: metrics.get("validation", metrics) for name, metrics in results.items()}
    part, counts = opened.part, opened.data.counts
    old, _ = predictions(opened, before)
    new, confidence = predictions(opened, head)
    gained = int(((old != part.labels) & (new == part.labels)).sum())
    lost = int(((old == part.labels) & (new != part.labels)).sum())
    return {
        "source": Path(config["settings"]["source"]).name,
        "facts": _facts(opened, config["settings"]),
        "verdict": verdict(NAMES.get(head, head), results[before], results[head]),
        "flips": flips(gained, lost, len(part)),
        "results": [
            {"name": NAMES.get(name, name), **{key: metrics.get(key) for key in (*COLUMNS, "diverged")}}
            for name, metrics in results.items()
        ],
        "before": _summary(before, results[before]),
        "after": _summary(head, results[head]),
        "classes": list(opened.data.class_names),
        "counts": counts.tolist(),
        "tested": part.counts.tolist(),
        "groups": np.select(list(groups(counts).values()), list(groups(counts)), "").tolist(),
        "dispersion": _spread(opened, head, results[head]) if dispersion else None,
        "worst": worst_classes(part, new, confidence),
        "cost": list(_costs(opened)),
        "settings": dict(as_typed(config["settings"])),
        "head_settings": dict(as_typed({**note["method"], **note["settings"]})),
        "provenance": _provenance(opened, config),
    }


def _chosen_head(opened: OpenedRun, wanted: str | None = None) -> str:
    """The head that is asked for, or else the usual one."""
    usual, heads = opened.usual_head, [name for name in opened.classifiers if name not in STAGE_1]
    if wanted is not None and wanted not in heads:
        raise InputError(f"{opened.run} has no head {wanted!r}. Name one with --head: {', '.join(heads)}.")
    return wanted or usual


def _summary(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the detailed sections need of one classifier."""
    return {"name": NAMES.get(name, name), **{key: metrics[key] for key in (*COLUMNS, "per_class", "bins")}}


def _facts(opened: OpenedRun, settings: Mapping[str, Any]) -> str:
    """The run in one line."""
    train, part = opened.data.train, opened.part
    kind = "test" if opened.data.test is not None else "held-out"
    return (
        f"{settings['network']}, {settings['epochs']} epochs, seed {settings['seed']}: {len(train):,} training"
        f" examples of {len(train.class_names):,} classes, measured on {len(part):,} {kind} examples"
    )


def _spread(opened: OpenedRun, head: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The analysis of the draws: as `srepr analyze` left it where that was of this very head, or made now."""
    file = opened.run / "analysis" / "analysis.json"
    kept = runs.read_json(file) if file.exists() else {}
    usual = (kept.get("head"), kept.get("classifier")) == (head, usual_classifier(opened, head))
    same = usual and kept["metrics"]["after"]["nll"] == metrics["nll"]
    found = kept if same else analyze(opened, head=head, samples=SAMPLES)
    return {**{key: found[key] for key in ("samples", "ensemble", "single")}, **found["dispersion"]}


def _costs(opened: OpenedRun) -> Iterator[dict[str, Any]]:
    """Wall-clock seconds: of the epochs of stage 1 from their pace in the log, of each head from its note."""
    seconds: dict[str, float] = {}
    for line in runs.read_log(opened.run):
        pace = len(opened.data.train) / line["images_per_second"]
        seconds[line["branch"]] = seconds.get(line["branch"], 0.0) + pace
    for branch, spent in seconds.items():
        yield {"what": BRANCHES[branch], "seconds": spent}
    for name, classifier in opened.classifiers.items():
        if classifier.note:
            what = f"Stage 2, {NAMES.get(name, name)}"
            yield {"what": what, "seconds": classifier.note["metrics"]["seconds"]}


def as_typed(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (name on the command line, value to read).

    >>> list(as_typed({"seed": 0, "optim": {"swa_lr": 0.5}, "data": {"counts": []}, "baseline": True}))
    [('seed', '0'), ('optim.swa-lr', '0.5'), ('counts', '-'), ('baseline', 'yes')]
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from as_typed(value, "" if name == "data" else f"{prefix}{name}.")
        else:
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            yield prefix + name.replace("_", "-"), "-" if value in (None, "", []) else shown


def _provenance(opened: OpenedRun, config: Mapping[str, Any]) -> dict[str, str]:
    """What someone needs to make the run again."""
    written = (opened.run / STAGE_1["swa"]).stat().st_mtime
    return {
        "command": config["command"],
        "data": f"{config['examples']['name']}, sha256 {config['examples']['fingerprint']}",
        "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
        "machine": ", ".join(f"{name} {value}" for name, value in config["machine"].items()),
        "network written": datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }

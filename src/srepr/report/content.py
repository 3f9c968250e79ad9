"""Everything that the page shows of one run, as numbers and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from srepr.data.longtail import groups
from srepr.methods import title
from srepr.metrics import COLUMNS
from srepr.report.mistakes import worst_classes
from srepr.report.verdict import flips, verdict
from srepr.run.analyze import default_classifier, run_draws, summary
from srepr.run.classifiers import Run
from srepr.run.folder import STAGE_1, flag, flatten
from srepr.run.log import seconds_of_training
from srepr.storage.files import read_json

SAMPLES = 10
BRANCHES = {
    "trunk": "Stage 1, before SWA",
    "sgd": "Stage 1, end of the SGD baseline",
    "swa": "Stage 1, SWA",
}


def describe_run(run: Run, *, head: str | None = None, dispersion: bool = True) -> dict[str, Any]:
    """One run: a re-trained classifier, by default that of `srepr.load`, against the stage-1 one that it replaces.

    Without `dispersion` no network is drawn from the posterior, and its plots are left out.
    """
    head = run.choose(head, retrained=True)
    before, _, note = run.classifiers[head]
    config, results = read_json(run.path / "config.json"), read_json(run.path / "results.json")
    if run.data.test is None:
        results = {name: metrics.get("validation", metrics) for name, metrics in results.items()}
    part, counts = run.part, run.data.counts
    # First: its one pass over the test images also makes the features that everything below reads.
    spread = _spread(run, head, results[head]) if dispersion else None
    was_right, is_right = (run.measure(name).predicted.numpy() == part.labels for name in (before, head))
    return {
        "source": Path(config["settings"]["source"]).name,
        "facts": _facts(run, config["settings"]),
        "verdict": verdict(title(head), results[before], results[head]),
        "flips": flips(int((~was_right & is_right).sum()), int((was_right & ~is_right).sum()), len(part)),
        "results": [
            {"name": title(name), **{key: metrics.get(key) for key in (*COLUMNS, "diverged")}}
            for name, metrics in results.items()
        ],
        "before": _summary(before, results[before]),
        "after": _summary(head, results[head]),
        "classes": list(run.data.class_names),
        "counts": counts.tolist(),
        "tested": part.counts.tolist(),
        "groups": np.select(list(groups(counts).values()), list(groups(counts)), "").tolist(),
        "dispersion": spread,
        "worst": worst_classes(part, run.measure(head)),
        "cost": list(_costs(run)),
        "settings": as_typed(config["settings"]),
        "head_settings": as_typed({**note.get("method", {}), **note.get("settings", {})}),
        "provenance": _provenance(run, config),
    }


def _summary(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the detailed sections need of one classifier."""
    return {"name": title(name), **{key: metrics.get(key) for key in (*COLUMNS, "per_class", "bins")}}


def _facts(run: Run, settings: Mapping[str, Any]) -> str:
    """The run in one line."""
    train, part = run.data.train, run.part
    kind = "test" if run.data.test is not None else "held-out"
    return (
        f"{settings['network']}, {settings['epochs']} epochs, seed {settings['seed']}: {len(train):,} training"
        f" examples of {len(train.class_names):,} classes, measured on {len(part):,} {kind} examples"
    )


def _spread(run: Run, head: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The analysis of the draws: from `srepr analyze` if that was of this very head, or made now."""
    file = run.path / "analysis" / "analysis.json"
    kept = read_json(file) if file.exists() else {}
    usual = (kept.get("head"), kept.get("classifier")) == (head, default_classifier(run, head))
    same = usual and kept["metrics"]["after"]["nll"] == metrics["nll"]
    found = kept if same else summary(run, run_draws(run, head=head, samples=SAMPLES))
    return {**{key: found[key] for key in ("samples", "ensemble", "single")}, **found["dispersion"]}


def _costs(run: Run) -> Iterator[dict[str, Any]]:
    """Wall-clock seconds: of stage 1 by the pace in its log, of each head from its note."""
    for branch, spent in seconds_of_training(run.path).items():
        yield {"what": BRANCHES[branch], "seconds": spent}
    for name, classifier in run.classifiers.items():
        if classifier.note:
            yield {"what": f"Stage 2, {title(name)}", "seconds": classifier.note["metrics"]["seconds"]}


def as_typed(settings: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings under their names on the command line, with values to read.

    >>> as_typed({"seed": 0, "optim": {"swa_lr": 0.5}, "data": {"counts": []}, "baseline": True})
    {'seed': '0', 'optim.swa-lr': '0.5', 'counts': '-', 'baseline': 'yes'}
    """

    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value in (None, "", []) else str(value)

    return {flag(name).removeprefix("--"): shown(value) for name, value in flatten(settings).items()}


def _provenance(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    """What someone needs to make the run again."""
    written = (run.path / STAGE_1["swa"]).stat().st_mtime
    return {
        "command": config["command"],
        "data": f"{config['examples']['name']}, sha256 {config['examples']['fingerprint']}",
        "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
        "machine": ", ".join(f"{name} {value}" for name, value in config["machine"].items()),
        "network written": datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }

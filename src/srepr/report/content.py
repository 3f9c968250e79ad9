"""Everything that the page shows of one run, as numbers and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from srepr.bootstrap import change_intervals
from srepr.data.longtail import groups
from srepr.errors import InputError
from srepr.methods import title
from srepr.metrics import COLUMNS
from srepr.report.mistakes import worst_classes
from srepr.report.use import describe_use
from srepr.report.verdict import Change, flips, unjudged, verdict
from srepr.run.analyze import default_classifier, run_draws, summary
from srepr.run.classifiers import Run
from srepr.run.folder import STAGE_1, flag, flatten
from srepr.run.log import seconds_of_training
from srepr.run.schema import Analysis, read_config, read_results
from srepr.storage.files import read_json
from srepr.views import VIEWS, footnotes, too_small

SAMPLES = 10
BRACKETS = "Brackets: 95 % confidence intervals of the change."
OVERALL = {"equal": "balanced accuracy", "natural": "accuracy"}
BRANCHES = {
    "trunk": "Stage 1, before SWA",
    "sgd": "Stage 1, end of the SGD baseline",
    "swa": "Stage 1, SWA",
}


def describe_run(run: Run, *, head: str | None = None, dispersion: bool = True) -> dict[str, Any]:
    """One run: a re-trained classifier, by default that of `srepr.load`, against the stage-1 one that it replaces.

    Without `dispersion`, or without a posterior, no network is drawn from it, and its plots are left out.
    """
    head = run.choose(head, retrained=True)
    before, _, note = run.classifiers[head]
    config, results = read_config(run.path), read_results(run.path)
    for name in {before, head} - results.keys():
        raise InputError(f"{run.path / 'results.json'} has no metrics of {name}. Add them with: srepr evaluate RUN")
    if run.data.test is None:
        results = {name: metrics.get("validation", metrics) for name, metrics in results.items()}
    part, counts = run.part, run.data.counts
    # First: its one pass over the test images also makes the features that everything below reads.
    several = run.networks["swa"].posterior.count > 1
    spread = _spread(run, head, results[head]) if dispersion and several else None
    views = list(_views(run, before, head, results))
    small = too_small(run.measure(head).metrics)
    return {
        "source": Path(config["settings"]["source"]).name,
        "facts": _facts(run, config["settings"]),
        "verdict": " ".join([*(view["verdict"] for view in views), *([unjudged(small)] if small else []), BRACKETS]),
        "views": views,
        "small": small,
        "footnotes": footnotes(small),
        "flips": _flips(run, before, head),
        "classes": list(run.data.class_names),
        "counts": counts.tolist(),
        "tested": part.counts.tolist(),
        "groups": np.select(list(groups(counts).values()), list(groups(counts)), "").tolist(),
        "dispersion": spread,
        "worst": worst_classes(part, run.measure(head)),
        "use": describe_use(run, head),
        "cost": list(_costs(run)),
        "settings": as_typed(config["settings"]),
        "head_settings": as_typed({**note.get("method", {}), **note.get("settings", {})}),
        "choice": note.get("choice"),
        "provenance": _provenance(run, config),
    }


def _views(run: Run, before: str, head: str, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The verdict, every classifier and the two that are compared; in both views if the part is not balanced.

    The first view has the head as it is. Classifiers that were measured before there were views are without numbers.
    """
    both = run.judge(before), run.judge(head)
    for view in both[0].views or [""]:
        old, new = (judged.views[view] if view else judged.plain for judged in both)
        intervals = change_intervals(old, new, run.part.labels, run.data.counts, equal=view == "equal")
        changes = {key: Change(old.metrics[key], new.metrics[key], *interval) for key, interval in intervals.items()}
        sentence = verdict(title(head), changes, OVERALL.get(view, ""))
        words, about = VIEWS.get(view, ("", ""))
        shown = {name: metrics.get("views", {}).get(view) if view else metrics for name, metrics in results.items()}
        shown |= {before: old.metrics, head: new.metrics}
        yield {
            "title": words,
            "about": about,
            "overall": OVERALL.get(view, "accuracy, all").capitalize(),
            "verdict": f"{words.capitalize()}: {sentence}" if view else sentence,
            "intervals": intervals,
            "results": [
                {
                    **_numbers(results[name].get("called", name), metrics or {}),
                    "diverged": results[name].get("diverged"),
                }
                for name, metrics in shown.items()
            ],
            "before": _numbers(results[before].get("called", before), old.metrics, "per_class", "bins"),
            "after": _numbers(head, new.metrics, "per_class", "bins"),
        }


def _numbers(name: str, metrics: Mapping[str, Any], *more: str) -> dict[str, Any]:
    return {"name": title(name), **{key: metrics.get(key) for key in (*COLUMNS, *more)}}


def _flips(run: Run, before: str, head: str) -> str:
    """The examples that changed sides, as the classes come."""
    both = (run.judge(name) for name in (before, head))
    was, now = ((judged.views.get("natural") or judged.plain).predicted.numpy() == run.part.labels for judged in both)
    return flips(int((~was & now).sum()), int((was & ~now).sum()), len(run.part))


def _facts(run: Run, settings: Mapping[str, Any]) -> str:
    """The run in one line."""
    train, part = run.data.train, run.part
    kind = "test" if run.data.test is not None else "held-out"
    length = "frozen" if settings.get("freeze") == "body" else f"{settings.get('epochs', 0)} epochs"
    return (
        f"{settings['network']}, {length}, seed {settings.get('seed', 0)}: {len(train):,} training"
        f" examples of {len(train.class_names):,} classes, measured on {len(part):,} {kind} examples"
    )


def _spread(run: Run, head: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The analysis of the draws: from `srepr analyze` if that was of this very head, or made now."""
    file = run.path / "analysis" / "analysis.json"
    kept = read_json(file, Analysis) if file.exists() else {}
    usual = (kept.get("head"), kept.get("classifier")) == (head, default_classifier(run, head))
    same = usual and kept["metrics"]["after"].get("nll") == metrics.get("nll")
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
    written, data = (run.path / STAGE_1["swa"]).stat().st_mtime, config.get("examples", {})
    return {
        "command": config.get("command", ""),
        "data": f"{data.get('name', '')}, sha256 {data.get('fingerprint', '')}",
        "versions": ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items()),
        "machine": ", ".join(f"{name} {value}" for name, value in config.get("machine", {}).items()),
        "network written": datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }

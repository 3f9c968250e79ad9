"""The model card: what a model is, what it was trained on, how well it works, and its limits.

`gather` collects the facts, which go into every exported file as JSON; `model_card` writes them as Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from srepr.classifier import Classifier
from srepr.data.longtail import LIMITS, groups
from srepr.methods import title
from srepr.metrics import COLUMNS
from srepr.run.folder import provenance
from srepr.run.load import find_head
from srepr.run.schema import read_config, read_made, read_results
from srepr.views import VIEWS, footnotes, too_small

LEVELS = (0.8, 0.9, 0.95)
"""Coverages whose thresholds an exported file contains."""


def gather(path: Path, head: str | None, classifier: Classifier) -> dict[str, Any]:
    """The facts about a classifier of a run folder, or of an exported file, which brings its own along."""
    about = classifier.description
    return {
        **(read_made(path) if path.suffix == ".safetensors" else _of_run(path, head)),
        "network": about.network,
        "class_names": about.class_names,
        "counts": about.counts,
        "shape": about.shape,
        **({"texts": True} if about.tokenizer else {}),
        "normalisation": {"mean": about.mean, "std": about.std},
        "temperature": classifier.temperature,
        "prior": classifier.prior,
        "sets": [] if classifier.held is None else [asdict(classifier.thresholds(level)) for level in LEVELS],
        "exported with": provenance()["versions"],
    }


def _of_run(run: Path, head: str | None) -> dict[str, Any]:
    config = read_config(run)
    settings = config["settings"]
    kept = ("source", "seed", "epochs", "batch_size", "mixup")
    name, note = find_head(run, head)
    results = run / "results.json"
    if not note:
        note = {"metrics": read_results(run).get(name, {}) if results.exists() else {}}
    return {
        "head": name,
        "command": config.get("command"),
        "versions": config.get("versions"),
        "data": config.get("examples"),
        "training": {key: settings[key] for key in kept if key in settings} | settings.get("optim", {}),
        **note,  # stage1, method, settings, metrics
    }


def model_card(facts: Mapping[str, Any]) -> str:
    r"""The facts as a page of Markdown.

    >>> facts = {"network": "mlp", "class_names": ["a", "b"], "counts": [200, 3], "shape": [4], "temperature": 20.0,
    ...          "normalisation": {"mean": [0.0], "std": [1.0]}, "prior": None, "metrics": {"acc": 0.5, "ece": 0.1}}
    >>> print(model_card(facts).splitlines()[0])
    # A classifier of 2 classes: mlp
    """
    head = facts.get("head")
    name = " with the head ".join([facts["network"], *([title(head)] if head else [])])
    sections = {
        f"# A classifier of {len(facts['class_names']):,} classes: {name}": _what(facts),
        "## Data": _data(facts),
        "## Metrics": _metrics(facts),
        "## Calibration": _calibration(facts),
        "## Sets of labels": _sets(facts),
        "## Intended use and limits": _limits(facts),
        "## How it was made": _how(facts),
    }
    return "\n\n".join(part for pair in sections.items() for part in pair) + "\n"


def _what(facts: Mapping[str, Any]) -> str:
    shape = facts["shape"]
    kind = f"images {shape} (channels, height, width)" if len(shape) == 3 else f"vectors of {shape[0]} numbers"
    if facts.get("texts"):
        kind = f"texts, of which it reads the first {shape[0]} tokens,"
    return (
        f"It takes {kind} and gives a probability for each class in one forward pass. The logits z also define a "
        f"Dirichlet, alpha = exp(z / {facts['temperature']:g}): a smaller sum of alpha is a less certain model."
    )


def _data(facts: Mapping[str, Any]) -> str:
    counts = np.asarray(facts["counts"])
    source = facts.get("training", {}).get("source")
    rows = [
        f"| {name} ({LIMITS[name]}) | {inside.sum():,} | {counts[inside].sum():,} |"
        for name, inside in groups(counts).items()
    ]
    return "\n".join(
        [
            f"Trained on {counts.sum():,} examples" + (f" of `{Path(source).name}`" if source else "") + ", the "
            f"largest class with {counts.max():,} and the smallest with {counts.min():,}.",
            "",
            "| classes with training examples | classes | examples |",
            "|---|---|---|",
            *rows,
        ]
    )


def _metrics(facts: Mapping[str, Any]) -> str:
    metrics = facts.get("metrics") or {}
    parts = {"test": metrics, "validation": metrics.get("validation", {})}
    rows, notes = [], []
    for part, found in parts.items():
        views = {f"{part}, {VIEWS[view].title}": seen for view, seen in found.get("views", {}).items()}
        small = too_small(found)
        notes += [f"\\{note} ({part})." for note in footnotes(small)]
        for name, measured in (views or {part: found}).items():
            if measured.get("n"):
                cells = [
                    column.cell(measured.get(key)) + ("\\*" if key in small else "") for key, column in COLUMNS.items()
                ]
                rows.append(f"| {' | '.join([name, format(measured['n'], ','), *cells])} |")
    if not rows:
        return "Not measured: there was no test set."
    heading = f"| set | examples | {' | '.join(column.title for column in COLUMNS.values())} |"
    table = "\n".join([heading, "|---" * (2 + len(COLUMNS)) + "|", *rows])
    legend = "Accuracy in per cent; many, medium and few by the number of training examples, as above."
    return "\n\n".join([table, legend, *notes])


def _calibration(facts: Mapping[str, Any]) -> str:
    fitted = [row["temperature"] for row in facts.get("choice", {}).get("candidates", []) if row["chosen"]]
    told = (
        f"The logits are divided by the temperature {fitted[0]:g}, fitted on held-out examples.\n\n" if fitted else ""
    )
    metrics = facts.get("metrics") or {}
    equal = (
        metrics.get("views", {}).get("equal") if "method" in facts else None
    )  # stage 1 does not expect equal classes
    measured = equal or metrics
    bins = [row for row in measured.get("bins", []) if row["count"]]
    if not bins:
        return f"{told}Not measured."
    rows = [f"| {row['confidence']:.3f} | {row['accuracy']:.3f} | {row['count']:,.0f} |" for row in bins]
    where = f"the test set, {VIEWS['equal'].title}" if equal else "the test set"
    heading = f"{told}Expected calibration error {measured['ece']:.3f} on {where}, over these bins:"
    return "\n".join([heading, "", "| confidence | accuracy | examples |", "|---|---|---|", *rows])


def _sets(facts: Mapping[str, Any]) -> str:
    sets = facts.get("sets") or []
    if not sets:
        return "Not calibrated: there are no held-out examples."
    rows = [
        f"| {one['coverage']:g} | {min(one['minimum']):.3g} to {max(one['minimum']):.3g} | {len(one['borrowed']):,} |"
        for one in sets
    ]
    mix = "the class prior below" if facts.get("prior") else "the class mix of the training data"
    return "\n".join(
        [
            "A label is in the set if its probability is at least its minimum, or if no label is more probable. The "
            f"set contains the truth with the coverage, for inputs with {mix}. Form: {sets[0]['form']}. The minimum "
            "of each label is in the exported file, under `sets`. Classes with few held-out examples borrow theirs.",
            "",
            "| coverage | minimum | classes that borrow |",
            "|---|---|---|",
            *rows,
        ]
    )


def _limits(facts: Mapping[str, Any]) -> str:
    counts = np.asarray(facts["counts"])
    fewest = facts["class_names"][int(counts.argmin())]
    prior = facts.get("prior")
    mix = (
        "The probabilities assume the class prior of its training: equal shares for a re-trained head, the shares of "
        "the training data for a network of stage 1."
        if prior is None
        else f"The probabilities assume a given class prior (shares from {min(prior):.3g} to {max(prior):.3g}); the "
        "metrics above were measured without it."
    )
    return (
        "Use it for inputs like its training data. It answers every input with one of its classes. Rare classes "
        f"({fewest}: {counts.min():,} training examples) can be much less accurate than the average: check their own "
        f"accuracy first. {mix}"
    )


def _how(facts: Mapping[str, Any]) -> str:
    training = facts.get("training", {})
    steps = {
        "Command": f"`{facts['command']}`" if facts.get("command") else None,
        "Seed": training.get("seed"),
        "Method": _words(facts.get("method")),
        "Settings of the head": _words(facts.get("settings")),
        "Settings of the training": _words({k: v for k, v in training.items() if k not in ("source", "seed")}),
        "Trained with": _words(facts.get("versions")),
        "Exported with": _words(facts.get("exported with")),
    }
    told = [f"- {name}: {value}" for name, value in steps.items() if value is not None]
    return "\n".join(told) or "Not recorded."


def _words(settings: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) if settings else None

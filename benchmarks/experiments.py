"""What was tried on stage 2: the heads `x-*` of run folders, each below its method as it is: results/experiments.md.

srepr retrain RUN --method srepr --lr 0.02 --name x-lr      an experiment, kept in its run folder
python -m benchmarks.experiments RUN...
"""

import argparse
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS, processor
from srepr.config import Retrain, stage2_epochs
from srepr.methods import METHODS, TITLES
from srepr.storage.files import read_json

NUMBERS = ("many", "medium", "few", "acc", "nll", "ece")


def tried(made: dict[str, Any], usual: dict[str, Any]) -> tuple[str, str]:
    """The method that an experiment changed, the nearest one, and the change as it is typed after `--method`."""
    choices = made["method"].items()
    changes = {name: sorted(choices - asdict(method).items()) for name, method in METHODS.items()}
    method = min(METHODS, key=lambda name: (len(changes[name]), METHODS[name].head != made["method"]["head"]))
    words = [f'--{name} "{value}"' if " " in str(value) else f"--{name} {value}" for name, value in changes[method]]
    for name, value in made["settings"].items():
        if value != usual[name] and name != "seed":
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return method, " ".join(words).replace("--distill False", "--no-distill")


def table(run: Path) -> str:
    """A section about one run folder: each method that was changed, as it is and changed."""
    config, results = read_json(run / "config.json"), read_json(run / "results.json")
    settings = config["settings"]
    notes = [read_json(note) for note in sorted((run / "heads").glob("x-*.json"))]
    usual = Retrain(epochs=stage2_epochs(settings["epochs"]), batch_size=settings["batch_size"])
    experiments = [(*tried(made, asdict(usual)), made["metrics"]) for made in notes]
    rows = [("SWA", results["swa"])]
    for method in METHODS:
        changed = [(f"`--method {name} {change}`", metrics) for name, change, metrics in experiments if name == method]
        rows += [(TITLES[method], results[method]), *changed] if changed else []
    command = re.sub(r" --(data-dir|out) \S+", "", config["command"])
    lines = [f"### {settings['source']}, {settings['epochs']} epochs, seed {settings['seed']}", "", f"`{command}`", ""]
    lines += ["| | Many | Medium | Few | All | NLL | ECE |", "|---|---:|---:|---:|---:|---:|---:|"]
    for label, metrics in rows:
        shares = [f"{100 * metrics[key]:.2f}" if metrics.get(key) is not None else "-" for key in NUMBERS[:4]]
        scores = [f"{metrics[key]:.3f}" if key in metrics else "-" for key in NUMBERS[4:]]
        lines.append("| " + " | ".join([label, *shares, *scores]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    arguments = parser.parse_args()
    sections = [table(run) for run in arguments.run]
    text = f"""# Experiments

Methods as they are, and below each the options that were given to `srepr retrain RUN` instead of its defaults.
Machine: {processor()}.

"""
    (RESULTS / "experiments.md").write_text(text + "\n".join(sections))
    print("\n".join(sections))


if __name__ == "__main__":
    main()

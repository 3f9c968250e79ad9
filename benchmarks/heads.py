"""Every head on one run folder: the named methods, and {cbs, grw, la} x {deterministic, stochastic, + distillation}.

python -m benchmarks.heads RUN [--data-dir D]      writes results/SOURCE-N-epochs.json and .md
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import cell
from benchmarks.__main__ import RESULTS, processor
from srepr import runs
from srepr.methods import METHODS, Method
from srepr.stage2 import retrain_run

BALANCES = ("cbs", "grw", "la")
NUMBERS = ("many", "medium", "few", "acc", "nll", "ece")


def rows() -> dict[str, Method]:
    """The methods of the table and the steps of the ablation."""
    found = dict(METHODS)
    for balance in BALANCES:
        found[f"{balance}-plain"] = Method(head="linear", balance=balance)
        found[f"{balance}-stochastic"] = Method(head="linear", balance=balance, representation="swag")
        found[f"{balance}-distilled"] = Method(head="linear", balance=balance, representation="swag", distill=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    config = runs.read_json(arguments.run / "config.json")
    settings = config["settings"]
    retrain_run(arguments.run, rows(), data_dir=arguments.data_dir)

    results: dict[str, dict[str, Any]] = runs.read_json(arguments.run / "results.json")
    train = f"srepr train {settings['source']} --epochs {settings['epochs']} --seed {settings['seed']} --baseline"
    table = []
    for name, metrics in results.items():
        note = arguments.run / "heads" / f"{name}.json"
        made = runs.read_json(note) if note.exists() else None
        table.append(
            {
                "name": name,
                "stage1": made["stage1"] if made else name,
                "method": name if name in METHODS else made["method"]["head"] if made else None,
                **(
                    {key: made["method"][key] for key in ("balance", "representation", "distill")}
                    if made
                    else {"balance": None, "representation": None, "distill": None}
                ),
                "epochs": settings["epochs"],
                "seed": settings["seed"],
                **{key: metrics.get(key) for key in NUMBERS},
                "seconds": metrics.get("seconds"),
                "command": train if made is None else f"{train}; python -m benchmarks.heads RUN",
            }
        )
    name = f"{settings['source']}-{settings['epochs']}-epochs"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")
    lines = ["| | Many | Medium | Few | All | NLL | ECE | seconds |", "|---|---|---|---|---|---|---|---|"]
    for row in table:
        accuracies = [f"{100 * row[key]:.2f}" if row[key] is not None else "-" for key in NUMBERS[:4]]
        scores = [f"{row[key]:.3f}" for key in NUMBERS[4:]]
        seconds = "-" if row["seconds"] is None else cell(row["seconds"])
        lines.append("| " + " | ".join([row["name"], *accuracies, *scores, seconds]) + " |")
    text = f"""# {settings["source"]}, {settings["epochs"]} epochs of stage 1, seed {settings["seed"]}

- stage 1: `{train}`
- stage 2: `python -m benchmarks.heads RUN`; all heads read one cache of features, whose making is in the seconds of
  the first that needs it
- machine: {processor()}; {", ".join(f"{key} {value}" for key, value in config["versions"].items())}

"""
    (RESULTS / f"{name}.md").write_text(text + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

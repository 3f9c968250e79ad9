"""Pretrained networks at their defaults, through the commands, beside logistic regression on the same features.

python -m benchmarks.pretrained icons --source ICONS --seeds 0 1 2 3 4    a folder of class folders
python -m benchmarks.pretrained debian-text --source debian-text.csv --network hf:FOLDER
python -m benchmarks.pretrained cifar100-lt --data-dir D --network efficientnet-lite0 --seeds 0 1 2

Each seed runs `srepr train`, `srepr retrain` and `srepr report`, timed, in a folder of `--out`. Then the methods that
Auto has compared are run by themselves, with the penalty that was best for them in its comparison.
What follows -- goes to `srepr train`: --precision bf16-mixed, or --freeze none to fine-tune. The rows are kept in
results/pretrained.json under the name of the set and of the start; results/pretrained.md shows all of them. Nothing is
chosen on test examples.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.__main__ import RESULTS, about
from benchmarks.own_data import adjusted_regression, scores
from srepr.config import Retrain
from srepr.run.classifiers import Run, open_run
from srepr.storage.files import read_json, write_json

BALANCED, ADJUSTED = "LogisticRegression, balanced", "LogisticRegressionCV, adjusted"
MEASURES = ("balanced_acc", "nll", "ece")
NAMES = {"swa": "plain", "crt-alone": "cRT", "la-alone": "LA", "srepr-alone": "SRepr", "auto": "Auto"}


def timed(*words: object) -> float:
    began = time.monotonic()
    command = Path(sys.executable).with_name("srepr")
    subprocess.run([command, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def regressions(run: Run, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Logistic regressions on the features of the run's network, without augmentation."""
    frozen, settings = run.networks["swa"], Retrain(samples=1)
    train, test = (
        frozen.features(part, "deterministic", settings, augment=False).epoch(0) for part in (run.data.train, run.part)
    )
    plain = LogisticRegression(class_weight="balanced", max_iter=5000, random_state=seed)
    yield BALANCED, scores(plain.fit(train.mean, train.labels).predict_proba(test.mean), test.labels)
    if np.bincount(train.labels).min() >= 2:
        yield ADJUSTED, scores(adjusted_regression(train.mean, train.labels, test.mean, seed), test.labels)


def measure(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    out = arguments.out / f"{arguments.name}-{arguments.start}-seed{seed}"
    where = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
    network = ["--network", arguments.network] if arguments.network else []
    seconds = timed(
        "train", arguments.source or arguments.name, *where, *network, "--seed", seed, "--out", out, *arguments.options
    )
    draws = ["--samples", arguments.samples] if arguments.samples else []
    again = timed("retrain", out, *where, *draws)
    shown = 0.0 if arguments.brief else timed("report", out, *where, "-o", out / "report.html")
    compared = read_json(out / "heads" / "auto.json").get("choice", {}).get("candidates") or [
        {"method": "la"},
        {"method": "crt"},
    ]
    for one in () if arguments.brief else compared:
        set_to = {"--penalty": one.get("penalty"), "--distill-weight": one.get("distill_weight")}
        options = [word for name, value in set_to.items() if value is not None for word in (name, value)]
        timed("retrain", out, *where, *draws, "--name", f"{one['method']}-alone", "--method", one["method"], *options)
    facts = {"set": arguments.name, "start": arguments.start, "seed": seed, "date": about("pretrained")["date"]}
    facts["options"] = " ".join(arguments.options + [f"(retrain: --samples {arguments.samples})"] * bool(draws))
    results = read_json(out / "results.json")
    rows = [{**facts, "model": NAMES[name], **equal(results[name])} for name in NAMES if name in results]
    if not (arguments.untimed or arguments.brief):
        rows[-1] |= {"train": seconds, "retrain": again, "report": shown}
    run = open_run(out, data_dir=arguments.data_dir, quiet=True)
    return rows + [{**facts, "model": name, **found} for name, found in regressions(run, seed)]


def equal(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics in which every class counts the same, and the accuracy of each group of classes."""
    found = metrics.get("views", {}).get("equal", metrics)
    return {name: found[name] for name in ("many", "medium", "few", *MEASURES)}


def markdown(facts: dict[str, str], rows: list[dict[str, Any]]) -> str:
    titles = ("set", "start", "model", "many", "medium", "few", "balanced accuracy", "NLL", "ECE", "minutes")
    lines = [f"| {' | '.join(titles)} |", "|" + len(titles) * "---|"]
    for key in dict.fromkeys((row["set"], row["start"], row["model"]) for row in rows):
        group = [row for row in rows if (row["set"], row["start"], row["model"]) == key]
        cells = [cell(group, name, 100, 1) for name in ("many", "medium", "few", "balanced_acc")]
        cells += [cell(group, name, 1, 3) for name in ("nll", "ece")]
        minutes = [(row["train"] + row["retrain"] + row["report"]) / 60 for row in group if "train" in row]
        lines.append(f"| {' | '.join([*key, *cells])} | {f'{mean(minutes):.1f}' if minutes else ''} |")
    about_it = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    used = {(row["set"], row["start"], row.get("options", "")): None for row in rows}
    options = [f"- {name}, {start}: `{words or 'the defaults'}`" for name, start, words in used]
    return f"""# Pretrained networks

By the commands `srepr train`, `srepr retrain` and `srepr report`, at their defaults but for the options of `srepr
train` below; the row of Auto has their minutes where they had the machine for themselves. Every class counts the same
in every measure; accuracy in per cent, mean and standard deviation over the seeds. A seed draws another split of the
icons, and other training images of CIFAR. Logistic regression is on the features of the same network; cRT, LA and
SRepr have the penalty that was best for them in the comparison of Auto, and no temperature. Nothing was chosen on test
examples. Seconds and dates are in pretrained.json. ImageNet has images of many classes of CIFAR, so these numbers are
not to be compared with training from scratch.

On frozen CIFAR100-LT, cRT and LA are of the seeds 0 and 1, and SRepr is of the seed 0; on frozen CIFAR10-LT, all three
are of the seed 2. The icons were measured on another machine of this kind, with AVX2. The fine-tuned texts are from
the present recipe. Both fine-tuned CIFARs are from before a fine-tuning started from a classifier with a larger
penalty (docs/train.md), and CIFAR10-LT also from before the head was trained on the validation set. The rows without
cRT and LA come from `--brief`. The icons are those of oxygen; elementary-xfce and Faenza are other themes of Debian,
at 64 pixels, on which nothing was chosen.

{about_it}

""" + "\n".join([*lines, "", "Options of `srepr train`:", "", *options, ""])


def cell(rows: list[dict[str, Any]], name: str, times: float, digits: int) -> str:
    values = [times * row[name] for row in rows if row.get(name) is not None]
    if not values:
        return "-"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def kept(file: Path) -> list[dict[str, Any]]:
    return read_json(file)["rows"] if file.exists() else []


def main() -> None:
    words, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the set")
    parser.add_argument("--source", help="folder or file; default: the benchmark of that name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--network", default="")
    parser.add_argument("--start", default="frozen", help="what the table calls it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, help="of `srepr retrain`, where its default takes too long")
    parser.add_argument("--brief", action="store_true", help="only Auto and logistic regression, untimed")
    parser.add_argument("--untimed", action="store_true", help="of runs that share the machine, or were begun before")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    arguments = parser.parse_args(words.split())
    arguments.options = options.split()
    file = RESULTS / "pretrained.json"
    for seed in arguments.seeds:
        key = (arguments.name, arguments.start, seed)
        if any((row["set"], row["start"], row["seed"]) == key for row in kept(file)):
            continue
        found = measure(arguments, seed)
        rows = kept(file) + found  # another one may have written meanwhile
        facts = about("pretrained") | {"command": "python -m benchmarks.pretrained, as its first lines show"}
        write_json(file, {"about": facts, "rows": rows})
        file.with_suffix(".md").write_text(markdown(facts, rows))
        print(*found, sep="\n", flush=True)


if __name__ == "__main__":
    main()

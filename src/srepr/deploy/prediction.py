"""`srepr predict`: a classifier and inputs in, a row for each input out, as soon as it is known."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from srepr import runs
from srepr.classifier import Classifier
from srepr.data.loading import batches
from srepr.deploy.unlabelled import Unlabelled
from srepr.errors import InputError
from srepr.progress import Progress

Row = dict[str, Any]
Format = Literal["csv", "jsonl"]


def columns(top: int = 1) -> list[str]:
    """The names of what is told of each input.

    The uncertainty is the mutual information, the precision that of the Dirichlet (`srepr.classifier.Prediction`).

    >>> columns(top=2)
    ['input', 'label', 'probability', 'uncertainty', 'precision', 'label_2', 'probability_2']
    """
    more = [f"{what}_{rank}" for rank in range(2, top + 1) for what in ("label", "probability")]
    return ["input", "label", "probability", "uncertainty", "precision", *more]


def predict(
    classifier: Classifier,
    inputs: Unlabelled,
    *,
    top: int = 1,
    batch_size: int = 64,
    workers: int = 0,
    quiet: bool = True,
) -> Iterator[Row]:
    """A row for each input, in order, with six digits of every number; images that are skipped are told at the end.

    >>> from srepr.data import load
    >>> from srepr.models import resnet8
    >>> test = load("digits-lt").test
    >>> inputs = Unlabelled([f"digit {index}" for index in range(len(test))], test)
    >>> rows = predict(Classifier(resnet8(10, channels=1)), inputs)
    >>> next(rows)["input"]
    'digit 0'
    """
    classes = len(inputs.examples.class_names)
    if not 1 <= top <= classes:
        raise InputError(f"--top is {top}: it must lie in 1 .. {classes}, the number of classes.")
    if batch_size < 1:
        raise InputError(f"--batch-size is {batch_size}: at least 1 is needed.")
    return _rows(classifier, inputs, top, batch_size, workers, quiet)


def _rows(
    classifier: Classifier, inputs: Unlabelled, top: int, batch_size: int, workers: int, quiet: bool
) -> Iterator[Row]:
    names, examples = inputs
    parts = [np.arange(begin, min(begin + batch_size, len(names))) for begin in range(0, len(names), batch_size)]
    skipped: list[str] = []
    with Progress("predict", total=len(names), quiet=quiet) as progress:
        # A single batch is read sooner than other processes start.
        for loaded, _, indices in batches(examples, parts, workers=workers if len(parts) > 1 else 0):
            good = ~loaded.flatten(1)[:, 0].isnan()
            skipped += [names[index] for index in indices[~good.numpy()]]
            answer = classifier.predict(loaded[good])
            best = answer.probabilities.topk(top)
            measures = (best.values, best.indices, answer.mutual_information, answer.precision)
            told = zip(indices[good.numpy()], *(values.tolist() for values in measures), strict=True)
            for index, shares, labels, information, precision in told:
                first, *others = (
                    (examples.class_names[k], six_digits(p)) for k, p in zip(labels, shares, strict=True)
                )
                values = [names[index], *first, six_digits(information), six_digits(precision), *chain(*others)]
                yield dict(zip(columns(top), values, strict=True))
            progress.advance(len(indices))
    if skipped:
        which = f"{skipped[0]} is the first" if len(skipped) > 1 else skipped[0]
        print(f"srepr: went on without {len(skipped):,} bad images ({which})", file=sys.stderr)


def six_digits(value: float) -> float:
    """The number without the digits that single precision does not have.

    >>> six_digits(0.9123456478118896)
    0.912346
    """
    return float(f"{value:.6g}")


def write_rows(rows: Iterable[Row], names: list[str], out: Path | None, form: Format) -> None:
    """Write rows as they come: a file appears when it is whole, standard output gets line by line.

    >>> write_rows([{"input": "1.jpg", "label": "wren"}], ["input", "label"], None, "csv")
    input,label
    1.jpg,wren
    """

    def write(stream: TextIO) -> None:
        table = csv.DictWriter(stream, names, lineterminator="\n")
        if form == "csv":
            table.writeheader()
        for row in rows:
            if form == "csv":
                table.writerow(row)
            else:
                stream.write(json.dumps(runs.plain(row), ensure_ascii=False) + "\n")
            stream.flush()

    def write_file(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as stream:
            write(stream)

    if out is None:
        write(sys.stdout)
    elif out.parent.is_dir():
        runs.write_whole(out, write_file)
    else:
        raise InputError(f"{out.parent} is not a folder. Make it, or choose another place with --out.")

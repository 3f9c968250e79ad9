"""`srepr predict`: label images, tables and arrays with a trained model."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from srepr.errors import InputError, tell


@dataclass(frozen=True, kw_only=True)
class PredictCommand:
    """Predict label, probability and uncertainty of images, texts, vectors or whole folders, one row per input."""

    EXAMPLE: ClassVar[str] = "srepr predict runs/birds photos -o birds.csv --top 3"

    model: Positional[Annotated[Path, arg(metavar="RUN|MODEL.safetensors")]]
    """Run folder, or a model written by `srepr export`."""
    inputs: Positional[Annotated[tuple[Path, ...], arg(metavar="INPUT...")]]
    """Images, folders (searched recursively), a CSV with a column `path` or `text` or with numbers, a .jsonl or .txt
    file of texts, or an .npz or .npy file."""
    head: str | None = None
    """Head of the run; default: auto, else srepr, else the newest on the averaged network. swa and sgd are the
    networks of stage 1."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Output file, .csv or .jsonl; default: standard output, or none with --html."""
    format: Literal["csv", "jsonl"] | None = None
    """csv, or jsonl (one JSON object per line); default: by the suffix of the file."""
    html: Path | None = None
    """Write a page with the most doubtful inputs and their predictions."""
    top: int = 1
    """Number of labels per input, the most probable first."""
    prior: str | None = None
    """Class prior of the deployment: estimate (from the inputs), uniform, train, a file, or a list such as
    0.7,0.2,0.1."""
    coverage: float | None = None
    """Add the set of labels that contains the truth with this probability, such as 0.9."""
    sets: str | None = None
    """Form of the sets: marginal, class, pas, fuzzy or interpolated (default)."""
    costs: Path | None = None
    """CSV file with the cost of each decision (columns) for each true class (rows): decide by expected cost."""
    reject: float | None = None
    """Share of inputs to send to a person, the most doubtful: adds a column `reject`."""
    reject_by_class: Annotated[bool, FlagCreatePairsOff] = False
    """Reject this share of each predicted class, so that rare classes are not rejected more often."""
    batch_size: int = 64
    """Inputs per batch."""
    workers: int = 2
    """Processes that decode image files."""
    skip_bad_images: Annotated[bool, FlagCreatePairsOff] = False
    """Skip images that cannot be decoded, and report how many."""

    def run(self) -> None:
        """Predict, and write row by row."""
        from srepr.data.unlabelled import read_unlabelled
        from srepr.decisions.conformal import FORM
        from srepr.decisions.rejection import mark
        from srepr.deploy.costs import read_costs
        from srepr.deploy.predict import about_decisions, write_beside, write_rows
        from srepr.deploy.prior import in_words, read_prior
        from srepr.prediction import columns
        from srepr.report.predictions import Doubtful, write_predictions
        from srepr.run.load import load

        self._check()
        classifier = load(self.model, self.head)
        about = classifier.description
        inputs = read_unlabelled(self.inputs, about, skip_bad_images=self.skip_bad_images)
        costs = None if self.costs is None else read_costs(self.costs, about.class_names)
        printed = self.out is None and self.html is None
        quiet = printed and sys.stdout.isatty()  # the rows on the screen are progress enough
        how: dict[str, Any] = {"batch_size": self.batch_size, "workers": self.workers, "quiet": quiet}
        if self.coverage is not None:
            classifier.thresholds(self.coverage, self.sets or FORM)  # a mistake in them is told at once
        estimate, told = None, list[str]()
        if self.prior == "estimate":
            estimate = classifier.estimate_prior(inputs, **how)
            told.append(in_words(estimate, about.class_names))
            tell(told[-1])
            classifier = classifier.with_prior(estimate)
        elif self.prior is not None:
            classifier = classifier.with_prior(read_prior(self.prior, about))
        thresholds = None
        if self.coverage is not None:
            thresholds = classifier.thresholds(self.coverage, self.sets or FORM)
            if thresholds.note:
                told.append(thresholds.note)
                tell(told[-1])
        rows = classifier.rows(inputs, top=self.top, thresholds=thresholds, costs=costs, **how)
        names = columns(self.top, sets=thresholds is not None, costs=costs is not None)
        form = self.format or ("jsonl" if self.out is not None and self.out.suffix == ".jsonl" else "csv")
        if self.reject is not None:
            fair = {"by_class": self.reject_by_class}
            rule = None if classifier.held is None else classifier.rejection(self.reject, **fair)
            rows, names = mark(rows, about.class_names, self.reject, rule, **fair), [*names, "reject"]
        doubtful = Doubtful(inputs.names)
        if self.html is not None:
            rows = doubtful.passing(rows)
        if printed or self.out is not None:
            write_rows(rows, names, self.out, form)
        if self.out is not None:
            write_beside(self.out, about_decisions(about.class_names, estimate, thresholds))
        if self.html is not None:
            for _ in rows:  # those that no file has taken
                pass
            write_predictions(self.html, self.model.name, inputs, doubtful, names, thresholds, told)
            print(f"The page is {self.html}")

    def _check(self) -> None:
        """Refuse what cannot work before anything is read."""
        from srepr.storage.files import check_output

        if not self.inputs:
            raise InputError(
                "there is nothing to predict. Pass images, folders, texts or arrays in a file after the model."
            )
        if self.sets is not None and self.coverage is None:
            raise InputError("`sets` is the form of sets of labels. Set their `coverage` too, for example to 0.9.")
        if self.reject_by_class and self.reject is None:
            raise InputError("`reject_by_class` needs a share: set `reject`, for example to 0.1.")
        if self.html is not None:
            check_output(self.html, "html")
            if self.out is not None and os.path.realpath(self.html) == os.path.realpath(self.out):
                raise InputError("`html` and `out` name the same file. Choose two.")

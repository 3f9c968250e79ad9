"""`srepr evaluate`: the metrics of everything in a run folder, or of one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from srepr.cli.output import show_results
from srepr.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """The metrics of every classifier in a run folder, or of one saved classifier on other data (--data FILE)."""

    EXAMPLE: ClassVar[str] = "srepr evaluate runs/cifar100 --json"

    what: Positional[Annotated[Path, arg(metavar="RUN|MODEL.safetensors")]]
    """Run folder, or a model written by srepr."""
    data: Path | None = None
    """What to evaluate a saved model on: arrays x and y (.npz), or texts and labels (.csv, .jsonl)."""
    data_dir: Path | None = None
    """Folder with the run's data, if they have moved."""
    test_prior: str = "test"
    """Re-weight the test set to another class prior: uniform, forward50 or backward50 (any imbalance)."""
    workers: int = 2
    """Processes that decode image files."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Evaluate, then print the table."""
        from srepr.run.evaluate import evaluate_file, evaluate_run

        if self.what.suffix == ".safetensors":
            if self.data is None:
                raise InputError(f"{self.what} is a single model. Pass arrays or texts to evaluate it on with `data`.")
            results = {self.what.stem: evaluate_file(self.what, self.data)}
        else:
            results = evaluate_run(
                self.what, data_dir=self.data_dir, workers=self.workers, prior=self.test_prior, quiet=self.json
            )
        show_results(results, str(self.what), as_json=self.json)

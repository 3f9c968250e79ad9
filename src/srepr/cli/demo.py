"""`srepr demo`: the whole method in a minute."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from srepr.cli.output import show_results
from srepr.config import RECIPES, Retrain
from srepr.methods import METHODS


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """The whole method on real handwritten digits, long-tailed and embedded: no download, a minute on two cores."""

    EXAMPLE: ClassVar[str] = "srepr demo --out runs/demo"

    out: Path = Path("runs/demo")
    """Run folder."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> None:
        """Train with the baseline, re-train with every method, print the table and write the report."""
        from srepr.report.page import write_report
        from srepr.run.retrain import retrain_run
        from srepr.run.train import train

        settings = dataclasses.replace(RECIPES["digits-lt"], baseline=True, seed=self.seed)
        stage_1 = train(settings, self.out)
        heads = retrain_run(self.out, METHODS, Retrain(seed=self.seed), quiet=self.json)
        show_results({**stage_1, **heads}, f"digits-lt, seed {self.seed}", as_json=self.json)
        page = self.out / "report.html"
        write_report([self.out], page, quiet=self.json)
        if not self.json:
            print(f"The report is {page}")

"""`srepr report`: what re-training changed, class by class, as one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import FlagCreatePairsOff, Positional, arg

from srepr.cli.output import show_json


@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Write a self-contained HTML page about one or several runs: verdict, table, classes, calibration, mistakes."""

    EXAMPLE: ClassVar[str] = "srepr report runs/cifar100 -o report.html"

    run_folders: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]")]]
    """Run folders made by `srepr train`, with a head made by `srepr retrain`."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Output file; default: RUN/report.html, or report.html for several runs."""
    head: str | None = None
    """Classifier to report on; default: srepr, or else the newest on the averaged network."""
    data_dir: Path | None = None
    """Folder with the runs' data, if they have moved."""
    no_dispersion: FlagCreatePairsOff[bool] = False
    """Leave out the plots that need draws from the posterior."""
    workers: int = 2
    """Processes that decode image files."""
    json: bool = False
    """Print the path of the page and the verdicts as JSON."""

    def run(self) -> None:
        """Write the page, then print the verdicts and its path."""
        from srepr.errors import InputError
        from srepr.report.page import write_report

        if not self.run_folders:
            raise InputError("srepr report needs a run folder made by `srepr train`.")
        out = self.out or (self.run_folders[0] / "report.html" if len(self.run_folders) == 1 else Path("report.html"))
        verdicts = write_report(
            self.run_folders,
            out,
            head=self.head,
            data_dir=self.data_dir,
            dispersion=not self.no_dispersion,
            workers=self.workers,
            quiet=self.json,
        )
        if self.json:
            show_json({"report": out, "verdicts": verdicts})
            return
        for folder, verdict in zip(self.run_folders, verdicts, strict=True):
            print(f"{folder}: {verdict}" if len(verdicts) > 1 else verdict)
        print(f"The report is {out}")

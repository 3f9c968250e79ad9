"""`srepr analyze`: the paper's analyses and figures of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from srepr.cli.output import show_json, show_results


@dataclass(frozen=True, kw_only=True)
class AnalyzeCommand:
    """Run the paper's analyses of a head: dispersion and ensemble of the draws, norms, marginals, calibration."""

    EXAMPLE: ClassVar[str] = "srepr analyze runs/cifar100"

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder with a head made by `srepr retrain`."""
    head: str | None = None
    """Re-trained classifier to analyse; default: srepr, or else the newest on the averaged network."""
    classifier: str | None = None
    """Classifier on the draws; default: crt as in the paper, or else the head."""
    samples: int = 10
    """M, the number of draws from the posterior."""
    out: Path | None = None
    """Output folder; default: RUN/analysis."""
    data_dir: Path | None = None
    """Folder with the run's data, if they have moved."""
    workers: int = 2
    """Processes that decode image files."""
    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> None:
        """Analyze, then print the main numbers and the output folder."""
        from srepr.methods import title
        from srepr.run.analyze import analyze_run

        out = self.out or self.run_folder / "analysis"
        analysis = analyze_run(
            self.run_folder,
            out,
            head=self.head,
            classifier=self.classifier,
            samples=self.samples,
            data_dir=self.data_dir,
            workers=self.workers,
            quiet=self.json,
        )
        if self.json:
            show_json(analysis)
            return
        on = title(analysis["classifier"])
        print(f"{analysis['samples']} draws with the classifier of {on}, {analysis['part']} set")
        for line in in_words(analysis):
            print(line)
        metrics = analysis["metrics"]
        show_results(
            {analysis["before"]: metrics["before"], analysis["head"]: metrics["after"]}, "re-training", as_json=False
        )
        print(f"Numbers and figures are in {out}")


def in_words(analysis: Mapping[str, Any]) -> Iterator[str]:
    """The lines about the draws: correlations, dispersion from head to tail, both ends of the ensemble curve.

    >>> spread = {"pearson": 0.25, "per_class": [0.1, 0.2, None]}
    >>> point = {"acc": 0.5, "nll": 1.0, "ece": 0.1}
    >>> for line in in_words({"counts": [500, 5, 5], "dispersion": {"feature": spread, "probability": spread},
    ...                       "ensemble": [{"samples": 1, **point}, {"samples": 9, **point}], "single": point}):
    ...     print(line)
    feature dispersion      0.1 (many), 0.2 (few); correlation with NLL 0.250
    probability dispersion  0.1 (many), 0.2 (few); correlation with NLL 0.250
    1 draw                  accuracy 50.00, NLL 1.000, ECE 0.100
    9 draws                 accuracy 50.00, NLL 1.000, ECE 0.100
    averaged network        accuracy 50.00, NLL 1.000, ECE 0.100
    """
    from srepr.data.longtail import groups
    from srepr.metrics import COLUMNS

    for space, found in analysis["dispersion"].items():
        means = []
        for group, within in groups(analysis["counts"]).items():
            values = [value for value, inside in zip(found["per_class"], within, strict=True) if inside]
            known = [value for value in values if value is not None]
            means += [f"{sum(known) / len(known):.3g} ({group})"] if known else []
        r = "undefined" if found["pearson"] is None else f"{found['pearson']:.3f}"
        yield f"{space + ' dispersion':<24}{', '.join(means)}; correlation with NLL {r}"
    ends = (analysis["ensemble"][0], analysis["ensemble"][-1])
    curve = {"1 draw" if point["samples"] == 1 else f"{point['samples']} draws": point for point in ends}
    for name, point in (curve | {"averaged network": analysis["single"]}).items():
        acc, nll, ece = (COLUMNS[metric].cell(point[metric]) for metric in ("acc", "nll", "ece"))
        yield f"{name:<24}accuracy {acc}, NLL {nll}, ECE {ece}"

"""Figures of an analysis, as PNG and SVG for print: column widths, 8 pt, thin lines, text stored as text.

Colours are Okabe and Ito's, which are colour-blind safe; line styles and markers differ too, for grey print. The same
analysis gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from srepr.data.longtail import groups
from srepr.errors import printable
from srepr.methods import title
from srepr.storage.files import write_whole

COLUMN, PAGE = 3.3, 6.8  # inches
ORANGE, BLUE, SKY = "#E69F00", "#0072B2", "#56B4E9"
STYLES: dict[str, dict[str, Any]] = {
    "before": {"color": ORANGE, "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    "after": {"color": BLUE, "linestyle": "-", "marker": "s"},
}
NAMED = 20  # up to this many classes, the axis shows names and each class has a marker

PRINT: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-9, 9),  # a power of ten above the axis would overlap the band names
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300,
    "svg.fonttype": "none",
    "svg.hashsalt": "srepr",
}

Analysis = dict[str, Any]
Curve = npt.NDArray[np.float64]


def save_figures(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure of an analysis (`srepr.run.analyze.summary`) to the folder, as NAME.png and NAME.svg."""
    files = []
    with matplotlib.style.context(["default", PRINT]):
        for name, draw in FIGURES.items():
            figure = draw(analysis)
            for kind, varying in (("png", "Software"), ("svg", "Date")):
                files.append(folder / f"{name}.{kind}")
                write_whole(files[-1], partial(figure.savefig, format=kind, metadata={varying: None}))
    return files


def _dispersion_by_nll(analysis: Analysis) -> Figure:
    """Box plots of the dispersion by quartile of the NLL (paper, section 3.2)."""
    figure, panels = _panels(2, PAGE, 2.2)
    for axes, (space, unit) in zip(panels, SPACES.items(), strict=True):
        found = analysis["dispersion"][space]
        boxes = [
            {"whislo": box["low"], "q1": box["q1"], "med": box["median"], "q3": box["q3"], "whishi": box["high"]}
            for box in found["quartiles"]
        ]
        axes.bxp(
            [{name: np.nan if value is None else value for name, value in box.items()} for box in boxes],
            showfliers=False,
            patch_artist=True,
            widths=0.55,
            boxprops={"facecolor": SKY, "linewidth": 0.6},
            medianprops={"color": "black", "linewidth": 1.2},
            whiskerprops={"linewidth": 0.6},
            capprops={"linewidth": 0.6},
        )
        r = found["pearson"]
        axes.set_title(f"{space} space, " + ("r undefined" if r is None else f"r = {r:.3f}"))
        axes.set_xticks(range(1, 5), ["Q1", "Q2", "Q3", "Q4"])
        axes.set_xlabel("examples by NLL, Q4 the hardest quarter")
        axes.set_ylabel(unit)
        _from_zero(axes)
    return figure


def _dispersion_by_class(analysis: Analysis) -> Figure:
    """Mean dispersion of each class, most frequent first (paper, appendix B)."""
    figure, panels = _panels(2, PAGE, 2.3)
    for axes, space in zip(panels, SPACES, strict=True):
        _class_axis(axes, analysis)
        _class_curve(axes, analysis, analysis["dispersion"][space]["per_class"], **STYLES["after"])
        axes.set_ylabel(f"{space} dispersion")
        _from_zero(axes)
    return figure


def _ensemble(analysis: Analysis) -> Figure:
    """Accuracy, NLL and ECE of predictions averaged over 1..M draws (paper, section 3.2)."""
    figure, panels = _panels(3, PAGE, 2.0)
    draws = [point["samples"] for point in analysis["ensemble"]]
    for axes, (metric, label, scale) in zip(panels, CURVES, strict=True):
        axes.plot(draws, [scale * point[metric] for point in analysis["ensemble"]], **STYLES["after"], label="draws")
        axes.axhline(scale * analysis["single"][metric], color="0.35", linestyle="--", label="averaged network")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("draws averaged")
        axes.set_ylabel(label)
    panels[-1].legend()
    return figure


def _weight_norms(analysis: Analysis) -> Figure:
    """Norm of each class's weight vector, before and after re-training (paper, appendix B)."""
    figure, (axes,) = _panels(1, COLUMN, 2.3)
    _compare(axes, analysis, "weight_norms", "weight norm")
    axes.legend()
    return figure


def _marginal_likelihood(analysis: Analysis) -> Figure:
    """Mean test probability of each class times K, before and after re-training (paper, appendix B)."""
    figure, (axes,) = _panels(1, COLUMN, 2.3)
    _marginal(axes, analysis)
    axes.legend()
    return figure


def _reliability(analysis: Analysis) -> Figure:
    """Accuracy against confidence in 15 bins, and the gap between them, before and after re-training."""
    figure, panels = _panels(2, PAGE, 3.2)
    for axes, when in zip(panels, STYLES, strict=True):
        bins = [(n, found) for n, found in enumerate(analysis["reliability"][when]) if found["count"]]
        width = 1 / len(analysis["reliability"][when])
        left = [n * width for n, _ in bins]
        accuracy = np.array([found["accuracy"] for _, found in bins])
        gap = np.array([found["confidence"] for _, found in bins]) - accuracy
        bars: dict[str, Any] = {"width": width, "align": "edge", "linewidth": 0.4}
        axes.bar(left, accuracy, **bars, color=STYLES[when]["color"], edgecolor="white", label="accuracy")
        axes.bar(left, gap, bottom=accuracy, **bars, hatch="/////", fill=False, edgecolor="0.2", label="gap")
        axes.plot([0, 1], [0, 1], color="0.35", linestyle=":")
        axes.legend(loc="upper left")
        axes.set_title(f"{_name(analysis, when)}, ECE {analysis['metrics'][when]['ece']:.3f}")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", ylabel="accuracy")
    return figure


def _class_accuracy(analysis: Analysis) -> Figure:
    """Accuracy of each class, before and after re-training, most frequent first."""
    figure, (axes,) = _panels(1, PAGE, 2.4)
    _compare(axes, analysis, "per_class", "accuracy (%)", 100)
    axes.set_ylim(0, 100)
    axes.legend()
    return figure


def _retraining(analysis: Analysis) -> Figure:
    """Weight norms, marginal likelihoods and calibration side by side (paper, appendix B)."""
    figure, (norms, marginal, calibration) = _panels(3, PAGE, 2.3)
    _compare(norms, analysis, "weight_norms", "weight norm")
    _marginal(marginal, analysis)
    calibration.plot([0, 1], [0, 1], color="0.35", linestyle=":", linewidth=0.8)
    for when, style in STYLES.items():
        bins = analysis["reliability"][when]
        enough = sum(found["count"] for found in bins) / 1000  # smaller bins are noise
        bins = [found for found in bins if found["count"] > enough]
        points = [found["confidence"] for found in bins], [found["accuracy"] for found in bins]
        calibration.plot(*points, **style, label=_name(analysis, when))
    calibration.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", ylabel="accuracy")
    calibration.legend()
    return figure


SPACES = {"feature": "cosine distance", "probability": "Jensen-Shannon (nats)"}
CURVES = [("acc", "accuracy (%)", 100), ("nll", "NLL", 1), ("ece", "ECE", 1)]
FIGURES: dict[str, Callable[[Analysis], Figure]] = {
    "dispersion-by-nll": _dispersion_by_nll,
    "dispersion-by-class": _dispersion_by_class,
    "ensemble": _ensemble,
    "weight-norms": _weight_norms,
    "marginal-likelihood": _marginal_likelihood,
    "reliability": _reliability,
    "class-accuracy": _class_accuracy,
    "retraining": _retraining,
}


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in panels:
        axes.locator_params(axis="y", nbins=6)  # ticks that depend on the height would change with the layout
    return figure, panels


def _name(analysis: Analysis, when: str) -> str:
    return title(analysis["before" if when == "before" else "head"])


def _marginal(axes: Axes, analysis: Analysis) -> None:
    _compare(axes, analysis, "marginal", "marginal likelihood × K", len(analysis["counts"]))
    axes.axhline(1, color="black", linestyle=":", linewidth=0.8, zorder=3, label="uniform")


def _compare(axes: Axes, analysis: Analysis, key: str, label: str, scale: float = 1.0) -> None:
    """Plot one value per class, before and after re-training."""
    _class_axis(axes, analysis)
    for when, style in STYLES.items():
        values = [None if value is None else scale * value for value in analysis[key][when]]
        _class_curve(axes, analysis, values, **style, label=_name(analysis, when))
    axes.set_ylabel(label)
    _from_zero(axes)


def _from_zero(axes: Axes) -> None:
    highest = axes.dataLim.ymax
    axes.set_ylim(0, 1.08 * highest if 0 < highest < np.inf else 1)


def _class_axis(axes: Axes, analysis: Analysis) -> None:
    """Classes by decreasing count, with names if there is room, and bands for many, medium and few."""
    order = _by_count(analysis)
    for grey, (name, members) in zip(("1", "0.95", "0.9"), groups(analysis["counts"]).items(), strict=True):
        ranks = np.flatnonzero(members[order])
        if len(ranks):
            axes.axvspan(ranks[0] - 0.5, ranks[-1] + 0.5, color=grey, linewidth=0, zorder=0)
            middle = (ranks[0] + ranks[-1]) / 2
            axes.text(middle, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=7)
    axes.set_xlim(-0.5, len(order) - 0.5)
    axes.set_xlabel("class, the most frequent first")
    if len(order) <= NAMED:
        names = [printable(analysis["classes"][k]) for k in order]
        short = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
        slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        slanted = slanted if max(map(len, short)) > 2 else {}
        axes.set_xticks(range(len(order)), short, parse_math=False, **slanted)


def _class_curve(axes: Axes, analysis: Analysis, values: Sequence[float | None], **style: Any) -> None:
    """Plot one value per class; many classes become dots with a running mean."""
    y = np.array([np.nan if value is None else value for value in values])[_by_count(analysis)]
    if np.isnan(y).all():
        return
    if len(y) > NAMED:
        dots = {"markersize": max(1, 25 / len(y) ** 0.5), "markeredgewidth": 0, "alpha": min(0.4, 10 / len(y) ** 0.5)}
        axes.plot(y, "o", color=style["color"], **dots, rasterized=True)
        y, style = _running_mean(y, len(y) // 10), {**style, "marker": "", "linewidth": 1.4}
    axes.plot(y, clip_on=False, **style)


def _running_mean(y: Curve, width: int) -> Curve:
    """Mean over `width` neighbours, fewer at the ends, ignoring NaN."""
    there = ~np.isnan(y)
    window = np.ones(width)
    sums, counts = np.convolve(np.where(there, y, 0), window, "same"), np.convolve(there, window, "same")
    mean: Curve = np.divide(sums, counts, out=np.full(len(y), np.nan), where=counts > 0)
    return mean


def _by_count(analysis: Analysis) -> npt.NDArray[np.int64]:
    return np.argsort(-np.asarray(analysis["counts"]), kind="stable")

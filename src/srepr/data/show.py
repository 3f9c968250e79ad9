"""Show a data set in the terminal: its sets, its class groups, and a bar chart of the long tail."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srepr.data.dataset import LongTailData
from srepr.data.longtail import LIMITS, groups
from srepr.errors import printable

COLOURS = {"many": "green", "medium": "yellow", "few": "red"}
ROWS, WIDTH = 24, 48


def show(data: LongTailData) -> RenderableType:
    """Sizes, imbalance and class groups, and a bar per class, or for each of 24 ranges of classes of similar size.

    >>> from rich import print
    >>> from srepr.data import load
    >>> print(show(load("digits-lt")))
    digits-lt: 10 classes, 331 train, 597 test
    largest class 120, smallest 2, imbalance 60
    many (more than 100) 1, medium (20 to 100) 4, few (fewer than 20) 5
    <BLANKLINE>
    0 ████████████████████████████████████████████████ 120
    1 ██████████████████████████████▊                   77
    ...
    """
    counts = data.counts
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in data.parts.items())
    split = Text(", ").join(
        Text(f"{name} ({LIMITS[name]}) {members.sum():,}", style=COLOURS[name])
        for name, members in groups(counts).items()
    )
    heading = (
        f"{printable(data.name)}: {len(counts):,} classes, {sizes}\n"
        f"largest class {counts.max():,}, smallest {counts.min():,}, imbalance {counts.max() / counts.min():.3g}"
    )
    if data.skipped:
        heading += f"\n{len(data.skipped):,} unreadable files skipped"
    return Group(Text(heading), split, "", _histogram(data))


def _histogram(data: LongTailData) -> Table:
    counts = data.counts
    by_size = np.argsort(-counts, kind="stable")
    picture = Table.grid(padding=(0, 1))
    picture.add_column(no_wrap=True, max_width=28)
    picture.add_column(no_wrap=True)
    picture.add_column(justify="right", no_wrap=True)
    for members in np.array_split(by_size, min(ROWS, len(by_size))):
        mean = counts[members].mean()
        group = next(name for name, inside in groups([mean]).items() if inside[0])
        first, last = data.class_names[members[0]], data.class_names[members[-1]]
        picture.add_row(
            Text(printable(first if len(members) == 1 else f"{first} .. {last}")),
            Text(_bar(mean / counts.max()), style=COLOURS[group]),
            f"{mean:,.0f}",
        )
    return picture


def _bar(share: float) -> str:
    """Full blocks and one of eighths; never empty, so the tail stays visible."""
    eighths = max(1, round(share * WIDTH * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

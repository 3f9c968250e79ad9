"""Progress and estimated time left, on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PLAIN_SECONDS = 10.0
MARKS = 200
"""Moments of a whole progress that are remembered for the estimate."""


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(42), duration(150), duration(7_500)
    ('42 s', '2 min 30 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """Progress over a known number of steps; `advance` is cheap enough to call after every step.

    The time left is that of the remaining steps at the pace of the recent ones, the later half of those that this
    process has done. The first does not count: it may include what is done only once, as reading data or compiling.
    Before the second, and for steps that are not `alike` in what they cost, there is no estimate.
    """

    def __init__(self, what: str, *, total: int, done: int = 0, alike: bool = True, quiet: bool = False) -> None:
        self.what, self.total, self.done, self.alike, self.quiet = what, total, done, alike, quiet
        self.marks = deque[tuple[float, int]]()  # (time, steps done): from the middle of the steps so far to now
        self.first = done
        self.spoke = time.monotonic()
        self.bar: Bars | None = None

    def __enter__(self) -> Progress:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bars

            left = TextColumn("{task.fields[left]}", style="progress.remaining")
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left)
            self.bar = Bars(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(self.what, total=self.total, completed=self.done, left="")
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, steps: int = 1) -> None:
        """Record `steps` completed steps."""
        self.done += steps
        now = time.monotonic()
        if not self.marks:
            self.first = self.done
        if not self.marks or self.done - self.marks[-1][1] >= self.total / MARKS:
            self.marks.append((now, self.done))
        while len(self.marks) > 1 and self.marks[1][1] <= (self.first + self.done) / 2:
            self.marks.popleft()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, total=self.total, left=self.time_left())
        elif now - self.spoke >= PLAIN_SECONDS and self.done < self.total:
            left = self.time_left()
            self.say(f"{self.what}: {self.done:,} of {self.total:,}{f', about {left} left' if left else ''}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.spoke = time.monotonic()
        if self.bar is not None:
            self.bar.console.print(line, highlight=False)
        elif not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def time_left(self) -> str:
        """Estimated time left, as the class says; empty if there is no estimate."""
        if not self.alike or not self.marks or self.marks[0][1] >= self.done:
            return ""
        when, done = self.marks[0]
        return duration((time.monotonic() - when) / (self.done - done) * (self.total - self.done))

"""Progress and estimated time left, on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PLAIN_SECONDS = 10.0


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
    """Progress over a known number of steps; `advance` is cheap enough to call after every step."""

    def __init__(self, what: str, *, total: int, done: int = 0, quiet: bool = False) -> None:
        self.what, self.total, self.done, self.quiet = what, total, done, quiet
        self.first, self.began = done, time.monotonic()
        self.spoke = self.began
        self.bar: Bars | None = None

    def __enter__(self) -> Progress:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Bars(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(self.what, total=self.total, completed=self.done)
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
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, total=self.total)
        elif time.monotonic() - self.spoke >= PLAIN_SECONDS and self.done < self.total:
            self.say(f"{self.what}: {self.done:,} of {self.total:,}, about {self.time_left()} left")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.spoke = time.monotonic()
        if self.bar is not None:
            self.bar.console.print(line, highlight=False)
        elif not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def time_left(self) -> str:
        """Estimated time left, from the pace since this process started."""
        pace = (time.monotonic() - self.began) / max(self.done - self.first, 1)
        return duration(pace * (self.total - self.done))

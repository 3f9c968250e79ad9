"""What the package promises about speed, measured: `make bench` writes results/benchmarks.md and benchmarks.json.

Each module measures one thing and answers with a `Table`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of measurements under one heading, how they were made, and what they say about the promises."""

    title: str
    how: str
    rows: list[dict[str, str | float]]
    """The same keys in every row: they are the columns."""
    verdicts: list[str]

    def markdown(self) -> str:
        header, *body = [list(self.rows[0]), ["---"] * len(self.rows[0]), *(row.values() for row in self.rows)]
        lines = ["| " + " | ".join(map(cell, values)) + " |" for values in (header, *body)]
        verdicts = [f"- {line}" for line in self.verdicts]
        return "\n".join([f"## {self.title}", "", self.how, "", *lines, "", *verdicts, ""])


def cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def verdict(promise: str, found: str, *, kept: bool) -> str:
    return f"**{'Kept' if kept else 'Not kept'}**: {promise}. Measured: {found}."

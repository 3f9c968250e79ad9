"""How the verbs print: JSON for machines, tables for people."""

from __future__ import annotations

import json
from typing import Any


def show_json(content: object) -> None:
    """Print for machines.

    >>> show_json({"ece": float("inf")})
    {
      "ece": "inf"
    }
    """
    from srepr.runs import plain

    print(json.dumps(plain(content), indent=2, allow_nan=False))


def show(renderable: object) -> None:
    """Print for people; without a terminal the lines are long enough for every table.

    >>> show("digits-lt")
    digits-lt
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    console.print(renderable)


def show_results(results: dict[str, dict[str, Any]], title: str, *, as_json: bool) -> None:
    """The table of a run, or its numbers as JSON."""
    from srepr.tables import results_table

    if as_json:
        show_json(results)
    else:
        show(results_table(results, title))

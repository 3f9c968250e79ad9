"""`srepr predict --html`: the predictions as one self-contained page, with the inputs themselves.

However many inputs there are, the page has the most doubtful of them: those are worth a look.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from srepr.data.unlabelled import Unlabelled
from srepr.decisions.conformal import Thresholds
from srepr.prediction import Row
from srepr.report.mistakes import picture
from srepr.report.template import filled
from srepr.storage.files import write_text

SHOWN = 200
"""Inputs in a page, at most."""
SCRIPTS = ("tools.js", "theme.js", "predictions.js")


class Doubtful:
    """The most doubtful of the rows that pass by, each with the index of its input, and how many there were.

    >>> rows = [{"input": "1.jpg", "uncertainty": 0.1}, {"input": "2.jpg", "uncertainty": 0.7}]
    >>> doubtful = Doubtful(["1.jpg", "bad.jpg", "2.jpg"], most=1)
    >>> len(list(doubtful.passing(rows))), doubtful.total, doubtful.rows()
    (2, 2, [(2, {'input': '2.jpg', 'uncertainty': 0.7})])
    """

    def __init__(self, names: Sequence[str], most: int = SHOWN) -> None:
        self.names, self.most = names, most
        self.total = self.rejected = 0
        self._kept: list[tuple[float, int, Row]] = []

    def passing(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows, which are in the order of the inputs; inputs without a row were skipped."""
        index = -1
        for row in rows:
            index = next(place for place in range(index + 1, len(self.names)) if self.names[place] == row["input"])
            self.total += 1
            self.rejected += row.get("reject", False)
            entry = (row["uncertainty"], -index, row)  # of equal doubts, the first
            if len(self._kept) < self.most:
                heapq.heappush(self._kept, entry)
            else:
                heapq.heappushpop(self._kept, entry)
            yield row

    def rows(self) -> list[tuple[int, Row]]:
        """Indices and rows, the most doubtful first."""
        return [(-place, row) for _, place, row in sorted(self._kept, key=lambda entry: entry[:2], reverse=True)]


def write_predictions(
    out: Path,
    model: str,
    inputs: Unlabelled,
    doubtful: Doubtful,
    columns: Sequence[str],
    thresholds: Thresholds | None = None,
    told: Sequence[str] = (),
) -> None:
    """Write the page about these rows, whole or not at all; `columns` are their keys.

    `told` is what the user was told about the decisions.
    """
    examples, rows = inputs.examples, []
    for index, row in doubtful.rows():
        name = examples.excerpt(index) or row["input"]  # the name of a text is the whole of it
        rows.append({**row, "input": name, "image": picture(examples, index), "values": examples.values(index)})
    sentences = []
    if thresholds is not None:
        sentences.append(f"A set has the right label with a probability of {100 * thresholds.coverage:g} %.")
    sentences += [one[:1].upper() + one[1:] for one in told]
    content: dict[str, Any] = {
        "model": model,
        "columns": list(columns),
        "total": doubtful.total,
        "rejected": doubtful.rejected if "reject" in columns else None,
        "sentences": sentences,
        "rows": rows,
    }
    write_text(out, filled("predictions.html", "predict", model, SCRIPTS, content))

"""`srepr report`: one self-contained page about one or several runs; it fetches nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srepr.errors import InputError
from srepr.metrics import COLUMNS
from srepr.report.content import describe_run
from srepr.report.template import filled
from srepr.run.classifiers import open_run
from srepr.run.folder import sole_writer
from srepr.storage.files import check_output, write_text

SCRIPTS = ("tools.js", "theme.js", "chart.js", "classes.js", "plots.js", "matrix.js", "use.js", "page.js")


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    head: str | None = None,
    data_dir: Path | None = None,
    dispersion: bool = True,
    workers: int = 0,
    quiet: bool = False,
) -> list[str]:
    """Write the page about these run folders to `out`; returns the verdict on each run."""
    if out.is_dir():
        raise InputError(f"{out} is a folder. Name the file to write: {out / 'report.html'}")
    described = []
    for name, folder in zip(names(folders), folders, strict=True):
        run = open_run(folder, data_dir=data_dir, workers=workers, quiet=quiet)
        with sole_writer(folder, reading=True):  # features that are not cached yet are written into it
            described.append({"name": name, **describe_run(run, head=head, dispersion=dispersion)})
    page = render(described)
    out.parent.mkdir(parents=True, exist_ok=True)
    check_output(out)
    write_text(out, page)
    return [run["verdict"] for run in described]


def names(folders: Sequence[Path]) -> list[str]:
    """What to call the runs: their folders' names, with the parent's where two are alike.

    >>> names([Path("a/seed0"), Path("b/seed0"), Path("a/seed1")])
    ['a/seed0', 'b/seed0', 'seed1']
    """
    whole = [Path(os.path.realpath(folder)) for folder in folders]  # resolve() fails on a loop of links
    times = Counter(folder.name for folder in whole)
    return [folder.name if times[folder.name] == 1 else f"{folder.parent.name}/{folder.name}" for folder in whole]


def render(described: Sequence[dict[str, Any]]) -> str:
    """The page for runs as `describe_run` describes them, each with its name.

    >>> page = render([{"name": "</script><img src=x>", "source": "birds"}])
    >>> page.count("<img"), page.count("</script>")
    (0, 2)
    """
    title = ", ".join(dict.fromkeys(run["source"] for run in described))
    columns = {name: column._asdict() for name, column in COLUMNS.items()}
    return filled("page.html", "report", title, SCRIPTS, {"columns": columns, "runs": described})

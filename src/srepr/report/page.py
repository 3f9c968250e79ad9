"""`srepr report`: one self-contained page about one or several runs; it fetches nothing.

The content is one block of JSON in the page. The styles and the scripts that draw it are inlined as well.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from srepr import __version__
from srepr.errors import InputError
from srepr.metrics import COLUMNS
from srepr.report.content import describe_run
from srepr.run.classifiers import open_run
from srepr.run.folder import sole_writer
from srepr.storage.files import check_output, plain, write_text

SCRIPTS = ("tools.js", "chart.js", "classes.js", "plots.js", "matrix.js", "use.js", "page.js")


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
    whole = [folder.resolve() for folder in folders]
    times = Counter(folder.name for folder in whole)
    return [folder.name if times[folder.name] == 1 else f"{folder.parent.name}/{folder.name}" for folder in whole]


def render(described: Sequence[dict[str, Any]]) -> str:
    """The page for runs as `describe_run` describes them, each with its name.

    >>> page = render([{"name": "</script><img src=x>", "source": "birds"}])
    >>> page.count("<img"), page.count("</script>")
    (0, 2)
    """
    files = resources.files(__package__)
    title = f"{', '.join(dict.fromkeys(run['source'] for run in described))}: srepr report"
    # "<" is the only character that can end a script element, and JSON can do without it.
    columns = {name: column._asdict() for name, column in COLUMNS.items()}
    content = {"version": __version__, "columns": columns, "runs": described}
    data = json.dumps(plain(shortened(content)), separators=(",", ":"))
    return Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        data=data.replace("<", "\\u003c"),
        script="\n".join(files.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def shortened(content: Any) -> Any:
    """The content with numbers of six digits: more than a page can show, and half as long."""
    if isinstance(content, dict):
        return {key: shortened(value) for key, value in content.items()}
    if isinstance(content, list):
        return [shortened(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content

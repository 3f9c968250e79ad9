"""Pages that need nothing but themselves: one block of JSON, the styles, and the scripts that draw it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from srepr import __version__
from srepr.decisions.cells import six_digits
from srepr.storage.files import plain


def filled(body: str, verb: str, title: str, scripts: Sequence[str], content: dict[str, Any]) -> str:
    """The page of a command: the shell around a body of this folder, with title, styles, content and scripts.

    >>> page = filled("predictions.html", "predict", "<b>", ["tools.js"], {"rows": ["</script>"]})
    >>> "<title>&lt;b&gt;: srepr predict</title>" in page, page.count("</script>")
    (True, 2)
    """
    files = resources.files(__package__)

    def text(name: str) -> str:
        return files.joinpath(name).read_text(encoding="utf-8")

    data = json.dumps(plain(shortened({"version": __version__, **content})), separators=(",", ":"))
    return Template(text("shell.html")).substitute(
        title=f"{html.escape(title)}: srepr {verb}",
        verb=verb,
        style=text("page.css"),
        body=text(body),
        # "<" is the only character that can end a script element, and JSON can do without it.
        data=data.replace("<", "\\u003c"),
        script="\n".join(map(text, scripts)),
    )


def shortened(content: Any) -> Any:
    """The content with numbers of six digits: more than a page can show, and half as long.

    >>> shortened({"nll": [1 / 3]})
    {'nll': [0.333333]}
    """
    if isinstance(content, dict):
        return {key: shortened(value) for key, value in content.items()}
    if isinstance(content, list):
        return [shortened(value) for value in content]
    return six_digits(content) if isinstance(content, float) else content

"""Docstrings are written for a terminal; this makes Markdown of the two things in them that it would misread.

A bare `>>>` is a quotation in a quotation there, and a shape after a bracket, `KL[a || b] [B]`, a link.
"""

import re
from typing import Any

import griffe

PARTS = re.compile(
    r"""
    (?P<example> ^>>>[ ][\s\S]*?(?=\n\s*\n|\Z) )
    | ^[ ]{4}.* | `[^`]*`                          # code already: left alone
    | (?P<bracket> \][ ](?=\[) )
    """,
    re.MULTILINE | re.VERBOSE,
)


class Markdown(griffe.Extension):
    """Puts a fence around every example, from its first `>>>` to the next empty line, and escapes brackets."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = PARTS.sub(as_markdown, obj.docstring.value)


def as_markdown(part: re.Match[str]) -> str:
    if part["example"]:
        return f"```pycon\n{part['example']}\n```"
    return "] \\" if part["bracket"] else part[0]

"""The re-training methods of the paper as rows of one table: a new method is a row, not code.

Four choices that combine freely (paper, section 4 and appendix A.1, A.2): what is trained (head) and from where it
starts, how the tail gets its chance (balance), which representations it sees, and whether it distils them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from srepr.errors import InputError

Head = Literal["linear", "lws", "lws-per-class", "disalign", "tau-norm", "ncm"]
Start = Literal["stage 1", "random"]
Balance = Literal["cbs", "grw", "la", "none"]
Representation = Literal["deterministic", "swag", "augment"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table.

    >>> Method(head="linear", balance="la").distill
    False
    """

    head: Head
    start: Start = "stage 1"
    balance: Balance = "none"
    representation: Representation = "deterministic"
    distill: bool = False

    def __post_init__(self) -> None:
        choices = {"head": Head, "start": Start, "balance": Balance, "representation": Representation}
        for name, known in choices.items():
            if getattr(self, name) not in get_args(known):
                raise InputError(f"no {name} is called {getattr(self, name)!r}. Known: {', '.join(get_args(known))}")
        if self.distill and self.representation == "deterministic":
            raise InputError("distillation needs several representations. Add --representation swag, or --no-distill.")
        if self.start == "random" and self.head != "linear":
            raise InputError(f"the head {self.head} is made from the stage-1 classifier. Give it --start 'stage 1'.")


METHODS: dict[str, Method] = {
    "crt": Method(head="linear", start="random", balance="cbs"),
    "lws": Method(head="lws", balance="cbs"),
    "la": Method(head="linear", balance="la"),
    "grw": Method(head="linear", balance="grw"),
    "disalign": Method(head="disalign", balance="grw"),
    "srepr": Method(head="linear", balance="la", representation="swag", distill=True),
    "tau-norm": Method(head="tau-norm"),
    "ncm": Method(head="ncm"),
}


def method(name: str, **changes: Any) -> Method:
    """The method of that name, with some of its choices changed (None leaves one as it is).

    >>> method("srepr", balance="cbs", distill=None)
    Method(head='linear', start='stage 1', balance='cbs', representation='swag', distill=True)
    >>> method("sreper")
    Traceback (most recent call last):
    srepr.errors.InputError: no method is called 'sreper'. Known: crt, lws, la, grw, disalign, srepr, tau-norm, ncm
    """
    if name not in METHODS:
        raise InputError(f"no method is called {name!r}. Known: {', '.join(METHODS)}")
    return replace(METHODS[name], **{key: value for key, value in changes.items() if value is not None})

"""The re-training methods of the paper as rows of one table: a new method is a row, not code.

Four choices combine freely (paper, section 4 and appendix A.1, A.2): the head and where it starts, the class
balancing, the representations that the head sees, and whether they are distilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from srepr.errors import InputError, unknown

Start = Literal["stage 1", "random"]
Representation = Literal["deterministic", "swag", "augment"]
CLOSED_FORM = ("tau-norm", "ncm")
"""Heads that need no training."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table.

    >>> Method(head="linear", distill=True)
    Traceback (most recent call last):
    srepr.errors.InputError: distillation needs several representations. Set `representation` to swag, or ...
    """

    head: str
    """A name of `srepr.heads.HEADS`, or of a head in closed form."""
    start: Start = "stage 1"
    balance: str = "none"
    """A name of `srepr.balance.BALANCES`."""
    representation: Representation = "deterministic"
    distill: bool = False

    def __post_init__(self) -> None:
        for name, known in {"start": Start, "representation": Representation}.items():
            if getattr(self, name) not in get_args(known):
                raise unknown(name, getattr(self, name), get_args(known))
        if self.distill and self.representation == "deterministic":
            raise InputError(
                "distillation needs several representations. Set `representation` to swag, or turn distillation off."
            )
        if self.start == "random" and self.head != "linear":
            raise InputError(f"the head {self.head} is made from the stage-1 classifier. Set `start` to 'stage 1'.")

    def expected_prior(self, counts: Sequence[int], rho: float = 1.0) -> list[float]:
        """The class shares that the head expects, pi_k^(1 - rho): what the balancing leaves of the training prior.

        >>> METHODS["la"].expected_prior([16, 4], rho=0.5)
        [4.0, 2.0]
        """
        from srepr.balance import balancing

        # A head in closed form has no loss to balance: by construction it treats all classes alike.
        strength = 1.0 if self.head in CLOSED_FORM else balancing(self.balance, counts, rho).strength
        return [float(count) ** (1 - strength) for count in counts]


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
AUTO = ("la", "crt", "srepr")
"""The methods that `auto` chooses from, the simplest first."""
DEFAULT = ("srepr", "la")
"""What `auto` stands for if there is nothing to choose on: the first of these that the data allow."""
TITLES = {
    "auto": "Auto",
    "sgd": "SGD",
    "swa": "SWA",
    "crt": "cRT",
    "lws": "LWS",
    "la": "LA",
    "grw": "GRW",
    "disalign": "DisAlign",
    "srepr": "SRepr",
    "ncm": "NCM",
    "frozen": "Frozen",
}
"""What the tables call the networks of stage 1 and the methods; others go by their own name."""


def title(name: str) -> str:
    """What the tables call a classifier.

    >>> title("crt"), title("my-head")
    ('cRT', 'my-head')
    """
    return TITLES.get(name, name)


def choices(name: str, *, draws: bool = True, **changes: Any) -> dict[str, Method]:
    """The methods behind a name: one with its changes, or those that `auto` chooses from; `draws` if there are several
    representations.

    >>> list(choices("auto")), list(choices("auto", draws=False)), list(choices("la", balance="grw"))
    (['la', 'crt', 'srepr'], ['la', 'crt'], ['la'])
    """
    if name != "auto":
        return {name: method(name, **changes)}
    for change, value in changes.items():
        if value is not None:
            raise InputError(f"`{change}` changes a named method, and auto chooses among several. Name a `method`.")
    return {name: METHODS[name] for name in AUTO if draws or METHODS[name].representation == "deterministic"}


def method(name: str, **changes: Any) -> Method:
    """The method of that name with some choices changed; None keeps the method's own.

    >>> method("srepr", balance="cbs", distill=None)
    Method(head='linear', start='stage 1', balance='cbs', representation='swag', distill=True)
    """
    from srepr.balance import BALANCES
    from srepr.heads import HEADS

    if name not in METHODS:
        raise unknown("method", name, ("auto", *METHODS))
    chosen = replace(METHODS[name], **{key: value for key, value in changes.items() if value is not None})
    if chosen.head not in (*HEADS, *CLOSED_FORM):
        raise unknown("head", chosen.head, (*HEADS, *CLOSED_FORM))
    if chosen.balance not in BALANCES:
        raise unknown("balance", chosen.balance, BALANCES)
    return chosen

"""What re-training changed, in one sentence made from the numbers: also where it made things worse, or nothing.

A change is claimed if its 95 % confidence interval does not contain 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ACCURACIES = {
    "few": "on the few-shot classes",
    "medium": "on the medium-shot classes",
    "many": "on the many-shot classes",
    "acc": "overall",
}
CHANCE = 0.05


class Change(NamedTuple):
    """A metric before and after, and the 95 % interval of its change."""

    before: float
    after: float
    low: float
    high: float

    def shown(self, *, percent: bool) -> Change:
        """The numbers as they are shown: per cent with one digit after the point, or three digits.

        >>> Change(0.1206, 0.1204, -0.0102, 0.0098).shown(percent=True)
        Change(before=12.1, after=12.0, low=-1.0, high=1.0)
        """
        return Change(*((round(100 * x, 1) if percent else round(x, 3)) + 0.0 for x in self))  # never -0.0

    @property
    def sign(self) -> int:
        """1 or -1 if it clearly rose or fell, 0 if the interval contains 0."""
        return (self.low > 0) - (self.high < 0)


def verdict(name: str, changes: Mapping[str, Change], overall: str = "") -> str:
    """Accuracy, calibration, and what the other classes paid or gained.

    The accuracy is that of the rarest group among the changes or, if `overall` names it, that of all classes.

    >>> found = {"few": Change(0.121, 0.314, 0.15, 0.23), "many": Change(0.75, 0.72, -0.04, -0.02),
    ...          "acc": Change(0.5, 0.51, -0.01, 0.03), "ece": Change(0.3, 0.15, -0.17, -0.13)}
    >>> verdict("SRepr", found)
    'SRepr raises accuracy on the few-shot classes from 12.1 % to 31.4 % (+15.0 to +23.0 points) and lowers ECE from
    0.300 to 0.150 (-0.170 to -0.130), at the price of 3.0 points on the many-shot classes (-4.0 to -2.0).'
    """
    shown = {key: changes[key].shown(percent=True) for key in ACCURACIES if key in changes}
    lead = "acc" if overall else next(iter(shown))
    what = overall or f"accuracy {ACCURACIES[lead]}"
    accuracy, ece = shown.pop(lead), changes["ece"].shown(percent=False)
    if not any(change.sign for change in (accuracy, ece, *shown.values())):
        return f"{name} makes no clear change: {what} goes {_span(accuracy)}, ECE {_span(ece, percent=False)}."

    better, calmer = accuracy.sign, -ece.sign
    sentence = (
        f"{name} {_told(what, accuracy)} {'but' if better * calmer < 0 else 'and'} {_told('ECE', ece, percent=False)}"
    )
    lost = _points({key: change for key, change in shown.items() if change.sign < 0})
    gained = _points({key: change for key, change in shown.items() if change.sign > 0})
    if better + calmer > 0:
        sentence += f", at the price of {lost}" if lost else ""
    else:
        sentence += f", and loses {lost}" if lost else ""
        sentence += f", but gains {gained}" if gained else ""
    return sentence + "."


def unjudged(small: Mapping[str, int]) -> str:
    """That some groups have too few test examples.

    >>> unjudged({"medium": 25, "few": 12})
    'The medium-shot classes have 25 test examples and the few-shot classes have 12: too small to judge.'
    """
    first, *others = (f"the {name}-shot classes have {count}" for name, count in small.items())
    return f"{' and '.join([f'{first} test examples', *others]).capitalize()}: too small to judge."


def flips(gained: int, lost: int, examples: int) -> str:
    """How many examples became right and how many wrong, and whether chance alone explains it (exact sign test).

    >>> flips(41, 12, 597)
    'Of 597 examples 41 became right and 12 became wrong (sign test: p < 0.001).'
    >>> flips(3, 2, 597)
    'Of 597 examples 3 became right and 2 became wrong, which chance alone can explain (sign test: p = 1.000).'
    """
    from scipy.stats import binomtest

    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    chance = ", which chance alone can explain" if p >= CHANCE else ""
    how = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"Of {examples:,} examples {gained:,} became right and {lost:,} became wrong{chance} (sign test: {how})."


def _told(what: str, change: Change, *, percent: bool = True) -> str:
    """'raises WHAT from A to B (interval)', or that there is no clear change."""
    if not change.sign:
        return f"makes no clear change to {what} ({_ends(change, percent)}, {_interval(change, percent)})"
    return f"{'raises' if change.sign > 0 else 'lowers'} {what} {_span(change, percent=percent)}"


def _points(changes: Mapping[str, Change]) -> str:
    """Changes of accuracies as a list in words."""
    return " and ".join(
        f"{abs(change.after - change.before):.1f} points {ACCURACIES[key]} ({change.low:+.1f} to {change.high:+.1f})"
        for key, change in changes.items()
    )


def _span(change: Change, *, percent: bool = True) -> str:
    return f"from {_ends(change, percent)} ({_interval(change, percent)})"


def _ends(change: Change, percent: bool) -> str:
    return " to ".join(f"{x:.1f} %" if percent else f"{x:.3f}" for x in change[:2])


def _interval(change: Change, percent: bool) -> str:
    return f"{change.low:+.1f} to {change.high:+.1f} points" if percent else f"{change.low:+.3f} to {change.high:+.3f}"

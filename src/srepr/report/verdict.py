"""What re-training changed, in one sentence made from the numbers: also where it made things worse, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ACCURACIES = {
    "few": "on the few-shot classes",
    "medium": "on the medium-shot classes",
    "many": "on the many-shot classes",
    "acc": "overall",
}
CHANCE = 0.05


def verdict(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Accuracy on the rarest classes there are, calibration, and what the other classes paid or gained.

    Numbers count as they are shown: what does not differ in a tenth of a per cent, or in the third digit of the ECE,
    stays the same.

    >>> swa = {"many": 0.75, "medium": 0.4, "few": 0.121, "acc": 0.5, "ece": 0.3}
    >>> verdict("SRepr", swa, swa | {"many": 0.72, "few": 0.314, "acc": 0.55, "ece": 0.15})
    'SRepr raises accuracy on the few-shot classes from 12.1 % to 31.4 % and lowers ECE from 0.300 to 0.150, at the
    price of 3.0 points on the many-shot classes.'
    """
    shown = {
        key: (round(100 * before[key], 1), round(100 * after[key], 1))
        for key in ACCURACIES
        if before[key] is not None and after[key] is not None
    }
    rarest = next(iter(shown))
    accuracy, ece = shown.pop(rarest), (round(before["ece"], 3), round(after["ece"], 3))
    where = f"accuracy {ACCURACIES[rarest]}"
    if accuracy[0] == accuracy[1] and ece[0] == ece[1] and all(old == new for old, new in shown.values()):
        return f"{name} changes nothing: {where} stays at {accuracy[0]:.1f} % and ECE at {ece[0]:.3f}."

    better, calmer = sign(accuracy), -sign(ece)
    sentence = (
        f"{name} {change(where, accuracy, '{:.1f} %')} {'but' if better * calmer < 0 else 'and'}"
        f" {change('ECE', ece, '{:.3f}')}"
    )
    lost = points({key: old - new for key, (old, new) in shown.items() if new < old})
    gained = points({key: new - old for key, (old, new) in shown.items() if new > old})
    if better + calmer > 0:
        sentence += f", at the price of {lost}" if lost else ""
    else:
        sentence += f", and loses {lost}" if lost else ""
        sentence += f", but gains {gained}" if gained else ""
    return sentence + "."


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


def sign(pair: tuple[float, float]) -> int:
    """Whether the second number is above (1) or below (-1) the first."""
    return (pair[1] > pair[0]) - (pair[1] < pair[0])


def change(what: str, pair: tuple[float, float], form: str) -> str:
    """'raises WHAT from A to B', or that it leaves it."""
    old, new = (form.format(value) for value in pair)
    if not sign(pair):
        return f"leaves {what} at {old}"
    return f"{'raises' if sign(pair) > 0 else 'lowers'} {what} from {old} to {new}"


def points(differences: Mapping[str, float]) -> str:
    """Differences of accuracies as a list in words."""
    return " and ".join(f"{value:.1f} points {ACCURACIES[key]}" for key, value in differences.items())

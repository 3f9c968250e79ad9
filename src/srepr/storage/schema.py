"""Values of JSON checked against type hints: what a reader expects of a file stands in one type, and nowhere else.

    str, int, float, bool, None, Any, Literal, unions, list[X], tuple[X, ...], dict[str, X]
    a TypedDict     a dict with these keys; others are let through
    a dataclass     an instance of it, from a dict of its fields; others are refused

Numbers that JSON does not have are strings in the files of srepr ("inf", "nan"), and floats when read.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

NON_FINITE = ("inf", "-inf", "nan")
LARGEST = 1 << 1000  # a whole number that still is a float
WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


class Mismatch(ValueError):  # noqa: N818 - it becomes an InputError, which names the file
    """A value is not what its type says; the message names it."""


class Invalid(Mismatch):
    """A text is no JSON at all."""


def parsed_text(text: str | bytes, kind: Any) -> Any:
    """The value of a JSON text, checked; a text that is no JSON is Invalid.

    >>> parsed_text("[1, 2", list[int])
    Traceback (most recent call last):
    srepr.storage.schema.Invalid: Expecting ',' delimiter: line 1 column 6 (char 5)
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise Invalid("it is nested too deeply") from None
    except ValueError as error:  # also a number with thousands of digits
        raise Invalid(str(error)[:200]) from None
    return parsed(value, kind)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def parsed(value: Any, kind: Any, name: str = "") -> Any:
    """The value in the type of the hint; a Mismatch if it does not fit.

    >>> parsed({"acc": 0.5, "nll": "inf"}, dict[str, float])
    {'acc': 0.5, 'nll': inf}
    >>> parsed({"epochs": "ten"}, dict[str, int])
    Traceback (most recent call last):
    srepr.storage.schema.Mismatch: epochs is 'ten', not a whole number
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _of_union(value, inner, name)
    if origin is Literal:
        return value if value in inner and type(value) in map(type, inner) else _refuse(value, name, _words(kind))
    if kind is float:
        fits = value in NON_FINITE if isinstance(value, str) else type(value) in (int, float)
        return _number(value, name) if fits else _refuse(value, name, WORDS[float])
    if kind in WORDS:
        return value if type(value) is kind else _refuse(value, name, WORDS[kind])
    if origin in (list, tuple):
        return _of_list(value, origin, inner, name)
    if not isinstance(value, dict):
        return _refuse(value, name, "an object")
    if origin is dict:
        return {key: parsed(each, inner[1], _below(name, key)) for key, each in value.items()}
    return _of_fields(value, kind, name)


def _number(value: Any, name: str) -> float:
    if isinstance(value, int) and abs(value) > LARGEST:
        return float(_refuse(value, name, WORDS[float]))
    return float(value) if isinstance(value, str) else value


def _of_union(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    problems = []
    for kind in kinds:
        try:
            return parsed(value, kind, name)
        except Mismatch as problem:
            problems.append(problem)
    if isinstance(value, dict | list):  # one of the kinds has its shape, and knows what is wrong in it
        raise max(problems, key=lambda problem: len(str(problem).split(" is ")[0]))
    return _refuse(value, name, " or ".join(map(_words, kinds)))


def _of_list(value: Any, origin: type, inner: tuple[Any, ...], name: str) -> Any:
    if not isinstance(value, list):
        return _refuse(value, name, "a list")
    kinds = [inner[0]] * len(value) if origin is list or inner[1:] == (...,) else list(inner)
    if len(value) != len(kinds):
        return _refuse(value, name, f"a list of {len(kinds)}")
    return origin(parsed(each, kind, f"{name}[{i}]") for i, (each, kind) in enumerate(zip(value, kinds, strict=True)))


def _of_fields(value: dict[str, Any], kind: Any, name: str) -> Any:
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        required = kind.__required_keys__
    else:
        fields = dataclasses.fields(kind)
        no_default = (field.default is field.default_factory is dataclasses.MISSING for field in fields)
        required = {field.name for field, alone in zip(fields, no_default, strict=True) if alone}
        for key in value.keys() - hints.keys():
            raise Mismatch(f"{_below(name, key)} is unknown")
    for key in sorted(required - value.keys()):
        raise Mismatch(f"{_below(name, key)} is missing")
    found = {key: parsed(each, hints[key], _below(name, key)) if key in hints else each for key, each in value.items()}
    return found if is_typeddict(kind) else kind(**found)


def _below(name: str, key: str) -> str:
    return f"{name}.{key[:60]}" if name else key[:60]


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return WORDS.get(kind, "a list" if get_origin(kind) in (list, tuple) else "an object")


def _refuse(value: Any, name: str, expected: str) -> Any:
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else ascii(value)[:60]
    raise Mismatch(f"{name or 'it'} is {shown}, not {expected}")

"""Columns of a DataFrame as numbers: categories become 0 and 1, one column for each value.

A DataFrame is anything with `columns` and `frame[name]`; neither pandas nor polars is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Values = Mapping[Any, list[str]]
"""The values of each column of categories, by the name of the column."""


def has_categories(X: Any) -> bool:
    """Whether X is a DataFrame with a column that does not hold numbers.

    >>> has_categories(np.array([["red"]]))
    False
    """
    return hasattr(X, "columns") and any(_is_category(X[name]) for name in X.columns)


def read_values(X: Any) -> dict[Any, list[str]]:
    """The values that occur in each column of categories; a missing value is one of them."""
    names = [name for name in X.columns if _is_category(X[name])]
    return {name: np.unique(np.asarray(X[name]).astype(str)).tolist() for name in names}


def as_numbers(X: Any, values: Values) -> Array:
    """The table [N, D]: numbers as they are, and 0 or 1 for each value of a category; a new value has only zeros."""
    parts = []
    for name in X.columns:
        column = np.asarray(X[name])[:, None]
        parts.append(column.astype(str) == np.array(values[name]) if name in values else column)
    return np.hstack([part.astype(np.float64) for part in parts])


def _is_category(column: Any) -> bool:
    """Whether a column holds text or objects, or is marked as categories; pandas gives these a kind as numpy does."""
    kind = getattr(column.dtype, "kind", None) or np.asarray(column).dtype.kind
    return kind in "OUST"

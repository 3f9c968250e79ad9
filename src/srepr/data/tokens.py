"""Texts as token numbers: int64 [B, T], as long as the longest text of the batch, and -1 after the end of the others.

The tokenizer is that of the network, as the JSON text of `tokenizers.Tokenizer`; it comes with the network's
description. Under a view, a tenth of the words is left out at random.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from srepr.data.about import About
from srepr.data.examples import Examples, View
from srepr.data.identity import grouped, sha256
from srepr.data.longtail import Indices, Labels
from srepr.data.randomness import Stream, uniforms
from srepr.errors import InputError, check

PAD = -1
DROPPED = 0.1
"""Share of the words that a view leaves out."""
EXCERPT = 280
LARGEST_TOKEN = 1 << 24
"""The library of tokenizers lists every number up to the largest when it writes one."""


@dataclass(frozen=True, eq=False)
class TextExamples(Examples):
    """Examples that are texts. They are read as token numbers once they are `prepared` for a network.

    >>> part = TextExamples(("a wren", "a crow"), np.array([0, 1]), ("wren", "crow"))
    >>> part.counts, part.excerpt(1)
    (array([1, 1]), 'a crow')
    """

    texts: tuple[str, ...]
    labels: Labels
    class_names: tuple[str, ...]
    tokenizer: str = ""
    """JSON text of the network's tokenizer."""
    length: int = 0
    """Largest number of tokens; the rest of a longer text is cut off."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scaled: int | None = None

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """The largest number of tokens; empty as long as no network is known."""
        return (self.length,) if self.tokenizer else ()

    def prepared(self, about: About) -> TextExamples:
        """The same texts with the tokenizer of that network."""
        if not about.tokenizer:
            raise InputError(f"the network {about.network} does not read texts. Name one that does: hf:FOLDER")
        return replace(self, tokenizer=about.tokenizer, length=about.shape[0])

    def load(self, indices: Indices, view: View | None = None) -> Tensor:
        """Token numbers at `indices`, int64 [B, T]; some words are left out if `view` is set."""
        texts = [self.texts[index] for index in indices]
        if view is not None:
            # A word has at least one token: what comes later is cut off.
            words = [text.split()[: 2 * self.length] for text in texts]
            draws = uniforms(*view, indices, max(map(len, words), default=0), stream=Stream.AUGMENT)
            texts = [dropped(*pair) for pair in zip(words, draws, strict=True)]
        return encode(tokenizer(self.tokenizer, self.length), texts)

    def identities(self) -> Labels:
        """A number for each example [N], the same for equal texts."""
        return grouped(self.texts)

    def subset(self, indices: Indices) -> TextExamples:
        """The examples at `indices`, in that order."""
        return replace(self, texts=tuple(self.texts[i] for i in indices), labels=self.labels[indices])

    @property
    def preprocessing(self) -> dict[str, object]:
        """The tokenizer and the largest number of tokens."""
        return {"tokenizer": hashlib.sha256(self.tokenizer.encode()).hexdigest(), "length": self.length}

    def fingerprint(self) -> str:
        """SHA-256 of everything that affects training."""
        return sha256([len(self.class_names), self.texts, self.preprocessing], self.labels)

    def thumbnail(self, index: int) -> Image.Image | None:
        """None: a text is no picture."""
        return None

    def excerpt(self, index: int) -> str:
        """The beginning of the text."""
        text = " ".join(self.texts[index].split())
        return text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…"


def dropped(words: list[str], draws: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """The words without those whose draw is below a tenth; all of them if none would be left.

    >>> dropped(["a", "small", "wren"], np.array([0.5, 0.05, 0.9]))
    'a wren'
    """
    return " ".join([word for word, draw in zip(words, draws, strict=False) if draw >= DROPPED] or words)


@lru_cache(maxsize=4)
def tokenizer(description: str, length: int) -> Any:
    """The tokenizer of that JSON text, which cuts texts off at `length` tokens and does not pad."""
    return _made(description, length)


def portable(description: str, length: int) -> str:
    """The tokenizer as JSON text for use without srepr: it cuts texts off and pads a batch to its longest text."""
    made = _made(description, length)
    made.enable_padding()
    return str(made.to_str(pretty=True))


def _made(description: str, length: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("texts need the package tokenizers. Install it with: pip install 'srepr[hf]'") from None
    try:
        made = Tokenizer.from_str(description)
        numbers = made.get_vocab().values()
        check(max(numbers, default=0) < LARGEST_TOKEN, f"it has a token with the number {max(numbers, default=0)}")
        made.no_padding()
        made.enable_truncation(max_length=length)
        made.encode("a \N{SNOWMAN}")  # without a token for unknown words it fails only when there is one
    except Exception as error:  # of any kind: it has no others
        raise InputError(
            f"the network's tokenizer cannot be used ({str(error)[:200]}). Fetch or train it again."
        ) from None
    return made


def encode(tokenizer: Any, texts: list[str]) -> Tensor:
    """Token numbers [B, T] of texts, with -1 after the end of the shorter ones."""
    # A text of characters that the tokenizer does not know may have no tokens; a network needs one.
    rows = [found.ids or [0] for found in tokenizer.encode_batch_fast(texts)]
    ids = torch.full((len(rows), max(map(len, rows), default=1)), PAD)
    for row, numbers in zip(ids, rows, strict=True):
        row[: len(numbers)] = torch.tensor(numbers)
    return ids

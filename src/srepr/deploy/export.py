"""`srepr export`: a classifier as a single file, in one of three formats.

    safetensors   weights and how to build the network; takes normalised inputs      FILE.safetensors and FILE.json
    torch         a torch.export program; takes raw inputs                            FILE.pt2
    onnx          a graph for any runtime; takes raw inputs                           FILE.onnx

Raw inputs are pixels from 0 to 1, float32 [B, C, H, W], or vectors [B, D] as in the training data, in batches of any
size. For texts they are the `input_ids` and the `attention_mask` [B, T] of the tokenizer, which is written to
FILE.tokenizer.json. Each file contains the model card, which is also written to FILE.md.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from srepr.classifier import Classifier
from srepr.data.about import About
from srepr.data.tokens import PAD, portable
from srepr.deploy.card import gather, model_card
from srepr.deploy.prior import read_prior
from srepr.errors import InputError, check, reading
from srepr.run.checkpoints import save_classifier
from srepr.run.folder import load_run_data
from srepr.run.load import load
from srepr.storage.files import check_output, plain, write_json, write_text, write_whole

Format = Literal["safetensors", "torch", "onnx"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torch": ".pt2", "onnx": ".onnx"}
RAW_IMAGES = "float32 [B, C, H, W], pixels from 0 to 1, not normalised"
RAW_VECTORS = "float32 [B, D], not normalised"
RAW_TEXTS = "input_ids and attention_mask, int64 [B, T], of the tokenizer beside this file"
SHORT = (7, 3)
"""Numbers of tokens of the texts that a program is traced with."""

Raw = tuple[Tensor, ...]
"""The inputs of an exported model: one tensor, or those of a tokenizer."""


class FromRaw(nn.Module):
    """From raw inputs to `probabilities` and `logits` [B, K]; includes the normalisation.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,) * 4, std=(1.0,) * 4)
    >>> {name: output.shape for name, output in FromRaw(Classifier(nn.Linear(4, 2)), about)(torch.zeros(5, 4)).items()}
    {'probabilities': torch.Size([5, 2]), 'logits': torch.Size([5, 2])}
    """

    mean: Tensor
    std: Tensor

    def __init__(self, classifier: Classifier, about: About) -> None:
        super().__init__()
        self.classifier = classifier
        channelwise = (-1,) + (1,) * (len(about.shape) - 1)
        self.register_buffer("mean", torch.tensor(about.mean).view(channelwise))
        self.register_buffer("std", torch.tensor(about.std).view(channelwise))
        self.eval()

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Of raw inputs [B, ...]."""
        logits = self.classifier((inputs - self.mean) / self.std)
        return {"probabilities": logits.softmax(-1), "logits": logits}


class FromTokens(nn.Module):
    """From token numbers and their attention mask [B, T] to `probabilities` and `logits` [B, K].

    >>> class Length(nn.Module):
    ...     def forward(self, ids):
    ...         return torch.stack([(ids >= 0).sum(1), (ids < 0).sum(1)], 1).float()
    >>> FromTokens(Classifier(Length()))(torch.zeros(1, 3).long(), torch.tensor([[1, 1, 0]]))["logits"]
    tensor([[2., 1.]])
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Of what a tokenizer gives for B texts."""
        logits = self.classifier(torch.where(attention_mask > 0, input_ids, PAD))
        return {"probabilities": logits.softmax(-1), "logits": logits}


def export(
    path: Path,
    out: Path,
    form: Format,
    *,
    head: str | None = None,
    prior: str | None = None,
    opset: int | None = None,
) -> list[Path]:
    """Export the classifier of a run folder or of an exported file; returns the files, the model first.

    >>> export(Path("nowhere"), Path("model.onnx"), "onnx")
    Traceback (most recent call last):
    srepr.errors.InputError: nowhere is not a folder. Pass a run folder made by `srepr train`.
    """
    classifier = load(path, head)
    about = classifier.description
    if prior is not None:
        classifier = classifier.with_prior(read_prior(prior, about))
    if opset is not None and form != "onnx":
        raise InputError("`opset` is for the format onnx. Leave it out.")
    check(out.name not in ("", ".."), f"{out} is a folder. Choose the name of a file with `out`.")
    out = out if out.suffix == SUFFIXES[form] else out.with_name(out.name + SUFFIXES[form])
    if out == path:
        raise InputError(f"{out} is the model itself. Choose another `out`.")
    check_output(out)
    with reading(path, "Make it again"):
        facts = plain(gather(path, head, classifier))
        facts["model_card"] = card = model_card(facts)
    page, note = out.with_suffix(".md"), out.with_suffix(".json")
    if form == "safetensors":
        save_classifier(out, classifier, facts)
        write_json(note, facts)
        written = [out, note, page]
    else:
        raw = FromTokens(classifier) if about.tokenizer else FromRaw(classifier, about)
        images = len(about.shape) == 3
        facts["inputs"] = RAW_TEXTS if about.tokenizer else RAW_IMAGES if images else RAW_VECTORS
        if form == "torch":
            with exporting(form):
                content = torch_program(raw, about, facts)
        else:
            from srepr.integrations.onnx import onnx_graph

            trials = trial_inputs(path, raw, about)
            with exporting(form):
                content = onnx_graph(raw, trials, facts, opset=opset)
        write_whole(out, lambda temporary: temporary.write_bytes(content))
        written = [out, page]
        if about.tokenizer:
            written.append(out.with_suffix(".tokenizer.json"))
            write_text(written[-1], portable(about.tokenizer, about.shape[0]))
    write_text(page, card)
    return written


@contextlib.contextmanager
def exporting(form: Format) -> Iterator[None]:
    """Turn what torch raises about a network that it cannot export into an InputError; it cannot follow all code.

    >>> with exporting("onnx"):
    ...     torch.export.export(nn.Linear(2, 3), (torch.zeros(1, 4),))
    Traceback (most recent call last):
    srepr.errors.InputError: torch cannot export this network as onnx (...). Export it as safetensors.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        origin = error.__cause__ or error
        reason = f"{type(origin).__name__}: {str(origin)[:200]}"
        raise InputError(
            f"torch cannot export this network as {form} ({reason}). Export it as safetensors."
        ) from error


def torch_program(raw: nn.Module, about: About, facts: dict[str, Any]) -> bytes:
    """The bytes of a .pt2 file for `torch.export.load`; the facts and the model card are its extra files.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,) * 4, std=(1.0,) * 4)
    >>> content = torch_program(FromRaw(Classifier(nn.Linear(4, 2)), about), about, {"model_card": "# Two classes"})
    >>> torch.export.load(io.BytesIO(content)).module()(torch.zeros(3, 4))["logits"].shape
    torch.Size([3, 2])
    """
    batch = torch.export.Dim("batch")
    if about.tokenizer:
        tokens = torch.export.Dim("tokens", min=2, max=about.shape[0])
        example, sizes = token_inputs(), ({0: batch, 1: tokens},) * 2
        program = torch.export.export(raw, example, dynamic_shapes=sizes)
    else:
        program = torch.export.export(raw, (torch.zeros(2, *about.shape),), dynamic_shapes=({0: batch},))
    extra_files = {"srepr.json": json.dumps(facts), "model_card.md": facts["model_card"]}
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=extra_files)
    return content.getvalue()


def token_inputs() -> Raw:
    """The token numbers and the attention mask of two short texts."""
    ids = torch.ones(2, max(SHORT), dtype=torch.int64)
    return ids, (torch.arange(max(SHORT)) < torch.tensor(SHORT).unsqueeze(1)).long()


def trial_inputs(path: Path, raw: nn.Module, about: About) -> list[Raw]:
    """Raw inputs to check an export with, in batches of one and five: random ones and, if available, training data.

    >>> about = About(network="mlp", options={"inputs": 4}, class_names=("a", "b"), counts=(9, 3), shape=(4,),
    ...               mean=(0.0,) * 4, std=(1.0,) * 4)
    >>> raw = FromRaw(Classifier(nn.Linear(4, 2)), about)
    >>> [len(batch) for (batch,) in trial_inputs(Path("model.safetensors"), raw, about)]
    [1, 5]
    """
    if about.tokenizer:
        return trial_texts(path, about)
    assert isinstance(raw, FromRaw)
    batches = [torch.rand(5, *about.shape, generator=torch.Generator().manual_seed(0))]
    with contextlib.suppress(InputError, OSError):
        batches.append(training_examples(path) * raw.std + raw.mean)
    return [(batch[:size],) for batch in batches for size in (1, 5)]


def trial_texts(path: Path, about: About) -> list[Raw]:
    """Texts to check an export with: short ones, and if available training data, one at a time and together."""
    batches = [token_inputs()]
    with contextlib.suppress(InputError, OSError):
        ids = training_examples(path)
        batches.append((ids.clamp(min=0), (ids >= 0).long()))
    return [tuple(tensor[:size] for tensor in batch) for batch in batches for size in (1, 5)]


def training_examples(path: Path) -> Tensor:
    """The first five inputs, or as many as there are, that the run was trained on."""
    part = load_run_data(path).train
    return part.load(np.arange(len(part))[:5])

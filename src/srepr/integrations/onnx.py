"""Export a classifier as an ONNX graph and verify it in onnxruntime."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from srepr.errors import InputError

OLDEST_OPSET = 18
TOLERANCE = 1e-4
NAMED = ("class_names", "normalisation", "inputs", "model_card", "temperature", "prior", "sets")


def onnx_graph(
    raw: nn.Module, trials: Sequence[tuple[Tensor, ...]], facts: dict[str, Any], *, opset: int | None = None
) -> bytes:
    """Bytes of an .onnx file with outputs `probabilities` and `logits`, for any batch size.

    Its input is `inputs` or, for texts of any length, `input_ids` and `attention_mask`. `raw` returns a dict of the
    outputs. onnxruntime must agree with it to 1e-4 on each batch in `trials`. The metadata holds all `facts` under
    `srepr`, and those in `NAMED` under their own names.

    >>> onnx_graph(nn.Identity(), [(torch.ones(1, 2),)], {}, opset=3)
    Traceback (most recent call last):
    srepr.errors.InputError: `opset` is 3: it must lie in 18 .. ...
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error.name} is not installed. Install it with: pip install 'srepr[onnx]'") from None
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"`opset` is {opset}: it must lie in {OLDEST_OPSET} .. {newest}.")
    texts = len(trials[0]) > 1
    names = ["input_ids", "attention_mask"] if texts else ["inputs"]
    sizes = {0: "batch", 1: "tokens"} if texts else {0: "batch"}
    with _quiet():
        program = torch.onnx.export(
            raw,
            tuple(torch.ones(2, *tensor.shape[1:], dtype=tensor.dtype) for tensor in trials[0]),
            dynamo=True,
            input_names=names,
            output_names=["probabilities", "logits"],
            dynamic_shapes=tuple(sizes for _ in names),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    named = {
        "srepr": facts,
        **{name: facts[name] for name in NAMED if name in facts},
    }
    onnx.helper.set_model_props(
        graph, {name: value if isinstance(value, str) else json.dumps(value) for name, value in named.items()}
    )
    content: bytes = graph.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # the C++ binding exports no common class
        raise InputError(f"onnxruntime cannot load the graph ({error}). Try a lower `opset`.") from None
    for batch in trials:
        with torch.no_grad():
            expected = raw(*batch)
        feeds = {name: tensor.numpy() for name, tensor in zip(names, batch, strict=True)}
        for name, found in zip(expected, session.run(list(expected), feeds), strict=True):
            # Also relative: float32 cannot resolve 1e-4 in logits of 1000.
            if not np.allclose(found, expected[name].numpy(), rtol=TOLERANCE, atol=TOLERANCE):
                raise InputError(
                    f"the {name} of onnxruntime differ from torch's by more than {TOLERANCE:g}: nothing was written. "
                    "Try another `opset`, or another version of onnxruntime."
                )
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's progress messages and its warnings about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

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


def onnx_graph(raw: nn.Module, trials: Sequence[Tensor], facts: dict[str, Any], *, opset: int | None = None) -> bytes:
    """Bytes of an .onnx file with input `inputs` and outputs `probabilities` and `logits`, for any batch size.

    `raw` returns a dict of these outputs. onnxruntime must agree with it to 1e-4 on each batch in `trials`. The
    metadata holds all `facts` under `srepr`, and class names, normalisation, inputs and model card under their own
    names.

    >>> onnx_graph(nn.Identity(), [torch.ones(1, 2)], {}, opset=3)
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
    example = torch.zeros(2, *trials[0].shape[1:])
    with _quiet():
        program = torch.onnx.export(
            raw,
            (example,),
            dynamo=True,
            input_names=["inputs"],
            output_names=["probabilities", "logits"],
            dynamic_shapes=({0: "batch"},),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    named = {
        "srepr": facts,
        **{name: facts[name] for name in ("class_names", "normalisation", "inputs", "model_card")},
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
            expected = raw(batch)
        for name, found in zip(expected, session.run(list(expected), {"inputs": batch.numpy()}), strict=True):
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

"""A classifier as an ONNX graph, tried in onnxruntime before anyone gets it."""

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
    """The bytes of an .onnx file with the input `inputs` and the outputs `probabilities` and `logits`, any batch size.

    `raw` answers with a dict of these outputs. On each of the trial batches onnxruntime must agree with it to 1e-4.
    The facts are in the file's metadata: class names, normalisation and model card by name, everything as `srepr`.

    >>> class Doubling(nn.Module):
    ...     def forward(self, inputs):
    ...         return {"probabilities": (2 * inputs).softmax(-1), "logits": 2 * inputs}
    >>> facts = {"class_names": ["a", "b"], "normalisation": {}, "inputs": "float32 [B, 2]", "model_card": "# Double"}
    >>> graph = onnx_graph(Doubling(), [torch.ones(1, 2), torch.ones(3, 2)], facts)
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error.name} is not installed. Install it with: pip install 'srepr[onnx]'") from None
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"--opset is {opset}: it must lie in {OLDEST_OPSET} .. {newest}.")
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
    except Exception as error:  # of a binding: there is no class of it to name
        raise InputError(f"onnxruntime does not take the graph ({error}). Try a lower --opset.") from None
    for batch in trials:
        with torch.no_grad():
            expected = raw(batch)
        for name, found in zip(expected, session.run(list(expected), {"inputs": batch.numpy()}), strict=True):
            # Also relative: logits of a thousand do not have 1e-4 in single precision.
            if not np.allclose(found, expected[name].numpy(), rtol=TOLERANCE, atol=TOLERANCE):
                raise InputError(
                    f"the {name} of onnxruntime differ from torch's by more than {TOLERANCE:g}: nothing was written. "
                    "Try another --opset, or another version of onnxruntime."
                )
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about its own progress and about packages that it does not need."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

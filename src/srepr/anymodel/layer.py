"""The function from features to logits, recognised from one batch: W x + b or a cosine, perhaps with a factor.

    logits = factor * layer(x) + (a number for each example),      layer(x) = W x + b   or   s cos(x, w_k)

Equivalent layers (weight or spectral normalisation, a weight [L, K], a hand-written cosine, a log-softmax or a scale
after it) are recognised by their outputs, not by their class.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from srepr.errors import InputError
from srepr.heads import build
from srepr.models.call import call, eval_mode
from srepr.models.cosine import Cosine
from srepr.models.split import feature_extractor

CLOSE = 1e-3  # of the largest logit: far above rounding, far below any other function


def recognise(model: nn.Module, name: str, inputs: Any) -> tuple[nn.Linear | Cosine, float]:
    """The plain layer from features to logits, and the factor in it that the model applies after its classifier.

    >>> class Scaled(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    ...     def forward(self, x):
    ...         return (20 * self.fc(x)).log_softmax(1)
    >>> layer, factor = recognise(Scaled(), "fc", torch.randn(8, 4))
    >>> layer, round(factor, 3)
    (Linear(in_features=4, out_features=3, bias=True), 20.0)
    """
    classifier, seen = model.get_submodule(name), []
    hook = classifier.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    try:
        with torch.no_grad(), eval_mode(model):
            logits = call(model, inputs)
            features, outputs = seen[0] if seen else (logits, logits)
            if len(seen) != 1 or features.dim() != 2:  # refused there, or pooled
                features = call(feature_extractor(model, name), inputs)
                outputs = classifier(features)
            candidates = [(layer, ratio(outputs, layer(features))) for layer in plain_layers(classifier, features)]
    finally:
        hook.remove()
    if not logits.isfinite().all():
        raise InputError("the logits of the model are not finite: has its training diverged?")
    factor = ratio(logits, outputs)
    if factor is None:
        raise InputError(
            f"the model makes something else than logits of the output of {name}, by a softmax for example: let it"
            " return that output itself"
        )
    for layer, scale in candidates:
        if scale is not None:
            for tensor in [layer.scale] if isinstance(layer, Cosine) else layer.parameters():
                tensor.data.mul_(scale * factor)
            return layer, factor
    raise InputError(
        f"the classifier {name!r}, a {type(classifier).__name__}, is neither W x + b nor a cosine: only such a layer"
        " can be re-trained"
    )


def plain_layers(classifier: nn.Module, features: Tensor) -> list[nn.Linear | Cosine]:
    """The functions of features [B, L] that a layer with this weight may compute: W x + b or cosines, W or W^T."""
    if isinstance(classifier, Cosine):
        return [copy.deepcopy(classifier)]
    weight, bias = classifier.weight, getattr(classifier, "bias", None)
    assert isinstance(weight, Tensor)
    layers: list[nn.Linear | Cosine] = []
    for matrix in (weight, weight.T):
        if matrix.shape[1] == features.shape[1]:
            linear = build("linear", weight=matrix, bias=bias)
            assert isinstance(linear, nn.Linear)
            layers += [linear, Cosine(matrix, 1.0)]
    return layers


def ratio(outputs: Tensor, of: Tensor) -> float | None:
    """The factor f in `outputs = f * of + (a number for each row)`, 1 if nearly so; None if no factor fits.

    >>> ratio(torch.tensor([[2.0, 4.0, 6.0]]), torch.tensor([[1.0, 2.0, 3.0]]))
    2.0
    >>> ratio(torch.tensor([[2.0, 4.0, 9.0]]), torch.tensor([[1.0, 2.0, 3.0]])) is None
    True
    """
    if outputs.shape != of.shape:
        return None
    a, b = (part.double() - part.double().mean(1, keepdim=True) for part in (outputs, of))
    limit = CLOSE * a.abs().max().item()
    if torch.allclose(a, b, rtol=0, atol=limit):
        return 1.0
    factor = (a * b).sum() / (b * b).sum()
    return factor.item() if factor and torch.allclose(a, factor * b, rtol=0, atol=limit) else None

"""Any nn.Module as features + classifier: find the final linear layer, take its input, put another in its place.

    logits = classifier(features(x)),   features: input -> [B, L],   classifier: [B, L] -> [B, K]

Nothing here changes the model that is given. Names are dotted module names in the unwrapped model, as in
`model.named_modules()`; a model that is itself one linear layer has the classifier "".
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from srepr.errors import InputError
from srepr.models.call import call, eval_mode, logits_in

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)
EMBEDDINGS_AND_NORMS = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
CONVENTIONAL = ("fc", "classifier", "head", "heads", "linear", "score")


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of (Distributed)DataParallel, AveragedModel, torch.compile and Lightning Fabric.

    >>> layer = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(layer)) is layer
    True
    """
    while True:
        known = ["module"] if isinstance(model, WRAPPERS) else ["_original_module", "_forward_module", "_orig_mod"]
        inside = [name for name in known if name in model._modules]
        if not inside:
            return model
        model = model.get_submodule(inside[0])


def duplicate(model: nn.Module) -> nn.Module:
    """A copy of the unwrapped model; what a pass with gradients has left in it is copied without its history.

    >>> layer = nn.Linear(2, 2)
    >>> layer.last = layer(torch.zeros(1, 2))
    >>> duplicate(layer).last.requires_grad
    False
    """
    model = unwrap(model)
    left = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    copies = {id(tensor): tensor.detach().clone() for tensor in left if not tensor.is_leaf}
    for buffer in filter(is_lazy, model.buffers()):  # torch copies lazy parameters, but not lazy buffers
        copies[id(buffer)] = UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)  # type: ignore[call-arg]
    return copy.deepcopy(model, copies)


def find_classifier(model: nn.Module, example: Any = None, *, name: str | None = None) -> str:
    """The dotted name of the layer that makes the logits: nn.Linear, or any leaf module with a matrix `weight`.

    With `example`, one batch of inputs (a tensor, or a dict of keyword arguments), the model says so itself: the layer
    is the one whose output is the model's, or the only one whose output has that shape, or would after a pooling of
    what lies between batch and classes. Without, it is read off the
    structure: among the layers under a conventional name (fc, classifier, head, ...), or among all where there is no
    such name, the only one whose output no later layer could take in. A `name` that is given is only checked.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    '2'
    >>> find_classifier(nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)}))
    Traceback (most recent call last):
    srepr.errors.InputError: the classifier could be a or b: say which with classifier="b"
    """
    model = unwrap(model)
    linear = {key: module for key, module in model.named_modules(remove_duplicate=name is None) if is_linear(module)}
    if not linear:
        raise InputError(f"{type(model).__name__} has no linear layer: only models that end in one can be split")
    if name is not None:
        if name not in linear:
            raise InputError(f"classifier={name!r} is not a linear layer of the model: choose from {_listing(linear)}")
        return name
    found = _by_structure(linear) if example is None else _by_output(model, linear, example)
    if not found:
        shape = 'no linear layer has an output of the shape of the logits: say which it is with classifier="..."'
        raise InputError(f"{shape}, from {_listing(linear)}")
    if len(found) > 1:
        raise InputError(f'the classifier could be {_listing(found)}: say which with classifier="{found[-1]}"')
    return found[0]


def is_linear(module: nn.Module) -> bool:
    """Whether a module can be a classifier: nn.Linear, or a leaf with a matrix `weight`, no embedding and no norm.

    >>> is_linear(nn.Linear(2, 2)), is_linear(nn.Embedding(2, 2)), is_linear(nn.BatchNorm1d(2))
    (True, False, False)
    """
    if isinstance(module, nn.Linear):
        return True
    weight = getattr(module, "weight", None)
    matrix = isinstance(weight, Tensor) and weight.dim() == 2
    return matrix and not any(module.children()) and not isinstance(module, EMBEDDINGS_AND_NORMS)


def _by_structure(linear: Mapping[str, nn.Module]) -> list[str]:
    names = [name for name in linear if name.split(".")[0] in CONVENTIONAL] or list(linear)
    sizes = [_sizes(linear[name]) for name in names]
    return [name for i, name in enumerate(names) if not any(sizes[i][1] & taken for taken, _ in sizes[i + 1 :])]


def _sizes(module: nn.Module) -> tuple[set[int], set[int]]:
    """The possible sizes of a layer's input and output: which is which is known for nn.Linear only."""
    if isinstance(module, nn.Linear):
        return {module.in_features}, {module.out_features}
    weight = module.weight
    assert isinstance(weight, Tensor)
    return set(weight.shape), set(weight.shape)


def _by_output(model: nn.Module, linear: Mapping[str, nn.Module], example: Any) -> list[str]:
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output}))
        for name, module in linear.items()
    ]
    try:
        with torch.no_grad(), eval_mode(model):
            logits = call(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = {name: output for name, output in outputs.items() if isinstance(output, Tensor)}
    fitting = {name: output for name, output in outputs.items() if output.shape == logits.shape}
    return (
        [name for name, output in fitting.items() if output is logits]
        or [name for name, output in fitting.items() if torch.equal(output.to(logits), logits)]
        or list(fitting)
        or [name for name, z in outputs.items() if z.dim() > 2 and (len(z), z.shape[-1]) == logits.shape]
    )


def _listing(names: Mapping[str, nn.Module] | list[str]) -> str:
    *others, last = list(names)[-6:]
    return ", ".join(["..."] * (len(names) > 6) + others) + " or " * bool(others) + last


def replace_classifier(model: nn.Module, name: str, head: nn.Module) -> nn.Module:
    """A copy of the unwrapped model with `head` in the place of the classifier.

    The rest of the copy shares nothing with the head, also where the classifier's weight was tied to an embedding.
    What the model does to the classifier's output, a temperature for example, it does to the head's.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> replace_classifier(model, "2", nn.Linear(8, 5))(torch.zeros(1, 4)).shape
    torch.Size([1, 5])
    """
    changed = duplicate(model)
    return swap(changed, changed.get_submodule(find_classifier(changed, name=name)), head)


def swap(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put `new` wherever the model has `old`, in place and in its mode: a module may have several names.

    >>> swap(nn.Sequential(layer := nn.ReLU(), nn.Flatten(), layer), layer, nn.Tanh())
    Sequential(
      (0): Tanh()
      (1): Flatten(start_dim=1, end_dim=-1)
      (2): Tanh()
    )
    """
    new.train(old.training)
    if model is old:
        return new
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                setattr(parent, key, new)
    return model


def feature_extractor(model: nn.Module, name: str) -> nn.Module:
    """A copy of the unwrapped model that is called like it and answers with the input [B, L] of its classifier.

    It has the model's own parameters under their own names, without the classifier's: draws from a posterior go in
    through `torch.func.functional_call`, and `update_batchnorm`, `fold_batchnorm` and `torch.compile` work on it.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> features = feature_extractor(model, "2")
    >>> features(torch.zeros(1, 4)).shape, [name for name, _ in features.named_parameters()]
    (torch.Size([1, 8]), ['0.weight', '0.bias'])
    """
    classifier = unwrap(model).get_submodule(find_classifier(model, name=name))
    tap = _Tap(name, classifier)
    body = replace_classifier(model, name, tap)
    # Bound methods, not closures: a deep copy of the body then has hooks that belong to its own tap.
    body.register_forward_pre_hook(tap.open)
    body.register_forward_hook(tap.close)
    return body


class _Tap(nn.Module):
    """Stands in for the classifier: keeps what it is given, and answers with zeros in the shape of the logits.

    The zeros let the rest of the model's forward pass go through, whatever it does to logits. Where the classifier is
    given a sequence [B, T, L] and the model pools its logits, the features take their place and are pooled instead.
    """

    def __init__(self, name: str, classifier: nn.Module) -> None:
        super().__init__()
        assert isinstance(classifier.weight, Tensor)
        self.name = name
        self.sizes = sum(classifier.weight.shape)  # L + K, in whichever order the layer keeps them
        self.seen: Tensor | None = None

    def open(self, model: nn.Module, args: Any) -> None:
        self.seen = None

    def forward(self, features: Tensor) -> Tensor:
        if self.seen is not None:
            raise InputError(
                f"{self.name} is called more than once for an input: only models that call it once can be split"
            )
        self.seen = features
        if features.dim() > 2:
            return features
        return features.new_zeros(len(features), self.sizes - features.shape[1])

    def close(self, model: nn.Module, args: Any, output: Any) -> Tensor:
        features, self.seen = self.seen, None
        if features is None:
            raise InputError(
                f'the model never calls {self.name}: name the layer that makes the logits with classifier="..."'
            )
        pooled = features if features.dim() == 2 else logits_in(model, output)
        if pooled.dim() != 2:
            raise InputError(
                f"{self.name} is given features of shape {list(features.shape)}: only [B, L] can be split"
            )
        return pooled

"""Split any nn.Module into features and classifier: find its final linear layer, take its input, replace it.

    logits = classifier(features(x)),   features: input -> [B, L],   classifier: [B, L] -> [B, K]

Only `swap` changes the model it gets. Names are dotted module names in the unwrapped model, as in
`model.named_modules()`; a model that is a single linear layer has the classifier "".
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """The model inside (Distributed)DataParallel, AveragedModel, torch.compile and Lightning Fabric wrappers.

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
    """Copy of the unwrapped model; tensors that a forward pass left in it are copied without autograd history.

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
    """Dotted name of the layer that computes the logits: nn.Linear, or any leaf module with a matrix `weight`.

    With `example`, one batch of inputs (a tensor, or a dict of keyword arguments), the model is run. The classifier is
    then the layer whose output is the model's, or the only one whose output has that shape, possibly after pooling the
    axes between batch and classes. Without it, the structure decides: among the layers under a conventional name (fc,
    classifier, head, ...), or among all if there is none, the only one whose output fits no later layer. `name` skips
    the search and is only checked.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    '2'
    >>> find_classifier(nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)}))
    Traceback (most recent call last):
    srepr.errors.InputError: the classifier could be a or b: choose one with classifier="b"
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
        shape = 'no linear layer has an output of the shape of the logits: set classifier="..."'
        raise InputError(f"{shape}, from {_listing(linear)}")
    if len(found) > 1:
        raise InputError(f'the classifier could be {_listing(found)}: choose one with classifier="{found[-1]}"')
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
    """Possible input and output sizes of a layer; only nn.Linear distinguishes them."""
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
    """Copy of the unwrapped model with `head` as its classifier.

    The rest of the copy shares nothing with the head, even if the classifier's weight was tied to an embedding.
    Operations on the classifier's output, such as a temperature, apply to the head's.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> replace_classifier(model, "2", nn.Linear(8, 5))(torch.zeros(1, 4)).shape
    torch.Size([1, 5])
    """
    changed = duplicate(model)
    return swap(changed, changed.get_submodule(find_classifier(changed, name=name)), head)


def swap(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Replace `old` by `new` in place, in the mode of `old` and under all of its names.

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
    """Copy of the unwrapped model that returns the input [B, L] of its classifier instead of the logits.

    It keeps the model's parameters and their names, without the classifier's. Posterior draws are applied with
    `torch.func.functional_call`; `update_batchnorm`, `fold_batchnorm` and `torch.compile` work on it.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> features = feature_extractor(model, "2")
    >>> features(torch.zeros(1, 4)).shape, [name for name, _ in features.named_parameters()]
    (torch.Size([1, 8]), ['0.weight', '0.bias'])
    """
    classifier = unwrap(model).get_submodule(find_classifier(model, name=name))
    tap = _Tap(name, classifier)
    body = replace_classifier(model, name, tap)
    # Bound methods, not closures: the hooks of a deep copy then belong to its own tap.
    body.register_forward_pre_hook(tap.open)
    body.register_forward_hook(tap.close)
    return body


class _Tap(nn.Module):
    """Replaces the classifier: stores its input and returns zeros in the shape of the logits.

    The zeros let the rest of the model's forward pass run. If the classifier gets a sequence [B, T, L] and the model
    pools its logits, the tap returns the features, which are pooled instead.
    """

    def __init__(self, name: str, classifier: nn.Module) -> None:
        super().__init__()
        assert isinstance(classifier.weight, Tensor)
        self.name = name
        self.sizes = sum(classifier.weight.shape)  # L + K, in either order
        self.seen: Tensor | None = None

    def open(self, model: nn.Module, args: Any) -> None:
        self.seen = None

    def forward(self, features: Tensor) -> Tensor:
        if self.seen is not None:
            raise InputError(f"{self.name} is called more than once per input, which is not supported")
        self.seen = features
        if features.dim() > 2:
            return features
        return features.new_zeros(len(features), self.sizes - features.shape[1])

    def close(self, model: nn.Module, args: Any, output: Any) -> Tensor:
        features, self.seen = self.seen, None
        if features is None:
            raise InputError(
                f'the model never calls {self.name}: set classifier= to the layer that computes the logits, "..."'
            )
        pooled = features if features.dim() == 2 else logits_in(model, output)
        if pooled.dim() != 2:
            raise InputError(
                f"{self.name} is given features of shape {list(features.shape)}: only [B, L] can be split"
            )
        return pooled


@contextmanager
def inputs_of(model: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """What a layer of the unwrapped model is given within the block, call by call.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> with inputs_of(model, "2") as features:
    ...     _ = model(torch.zeros(5, 4))
    >>> features[0].shape
    torch.Size([5, 8])
    """
    given: list[Tensor] = []
    layer = unwrap(model).get_submodule(name)
    hook = layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        yield given
    finally:
        hook.remove()


def feature_length(network: nn.Module, classifier: str) -> int:
    """L, the length of what the classifier takes in.

    >>> feature_length(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "1")
    8
    """
    weight = network.get_submodule(classifier).weight
    assert isinstance(weight, Tensor)
    return weight.shape[1]

"""How the library takes in "data" and calls "any model".

Data is a DataLoader, a Dataset, a pair of arrays or an iterable of batches; a batch is (inputs, labels), or a dict
that holds "labels" (Hugging Face). A model takes the input, several as its arguments, or the dict as keywords, and
answers with logits in one of the usual wrappings. Everything else in the library sees only `loader`, `split`, `call`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from srepr.errors import InputError


def loader(data: Any, *, batch_size: int = 256) -> Iterable[Any]:
    """Batches of the data, in order, that can be read again and again; a DataLoader is taken as it is.

    Numpy inputs of any float precision become torch's default dtype, which is what a model expects.

    >>> batches = loader((np.zeros((5, 2)), [0, 1, 1, 0, 2]), batch_size=3)
    >>> [labels.tolist() for inputs, labels in batches]
    [[0, 1, 1], [0, 2]]
    """
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, str | bytes | Mapping):
        raise InputError(f"the data is a {type(data).__name__}: pass a DataLoader, a Dataset or (inputs, labels)")
    if isinstance(data, Iterator):
        raise InputError("a generator can be read only once: pass a DataLoader or a Dataset")
    if isinstance(data, tuple | list):
        if len(data) != 2 or not isinstance(data[0], np.ndarray | Tensor):
            return data  # a list of batches
        inputs, labels = torch.as_tensor(data[0]), as_labels(data[1])
        if isinstance(data[0], np.ndarray) and inputs.is_floating_point():
            inputs = inputs.to(torch.get_default_dtype())
        if len(inputs) != len(labels):
            raise InputError(f"there are {len(inputs)} inputs but {len(labels)} labels: pass one label for each input")
        return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return DataLoader(data, batch_size=batch_size)
    if isinstance(data, Iterable):
        return data
    raise InputError(f"the data is a {type(data).__name__}: pass a DataLoader, a Dataset or (inputs, labels)")


def split(batch: Any) -> tuple[Any, Tensor]:
    """The inputs and the int64 labels [B] of one batch.

    >>> split((torch.zeros(2, 3), torch.tensor([4, 0])))[1]
    tensor([4, 0])
    >>> split({"input_ids": torch.tensor([[7, 8]]), "labels": torch.tensor([1])})
    ({'input_ids': tensor([[7, 8]])}, tensor([1]))
    """
    if isinstance(batch, Mapping):
        for key in ("labels", "label"):
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, as_labels(batch[key])
        raise InputError(f"the batch has no 'labels' among {sorted(batch)}: rename the column of the labels")
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], as_labels(batch[1])
    raise InputError(
        "a batch must be (inputs, labels), ((input, input), labels) or a dict with 'labels': check the Dataset or its"
        " collate_fn"
    )


def as_labels(values: Any, classes: int | None = None) -> Tensor:
    """Labels as an int64 tensor [B], checked to be class numbers, and below `classes` where that is given.

    >>> as_labels(np.array([2, 0], dtype=np.uint8), classes=3)
    tensor([2, 0])
    >>> as_labels([0.0, 1.0])
    Traceback (most recent call last):
    srepr.errors.InputError: labels are float64: pass whole class numbers 0, 1, ..., one for each example
    """
    if isinstance(values, Tensor):
        whole = not (values.is_floating_point() or values.is_complex())
    else:
        values = np.asarray(values)
        whole = values.dtype.kind in "biu"
    if not whole:
        raise InputError(f"labels are {values.dtype}: pass whole class numbers 0, 1, ..., one for each example")
    labels = values.long() if isinstance(values, Tensor) else torch.from_numpy(values.astype(np.int64))
    if labels.dim() != 1:
        raise InputError(f"labels have shape {list(labels.shape)}: pass one class number for each example, [B]")
    if len(labels) and labels.min() < 0:
        raise InputError(f"label {int(labels.min())} is negative: number the classes 0, 1, ...")
    if classes is not None and len(labels) and labels.max() >= classes:
        raise InputError(
            f"label {int(labels.max())} is out of range: with {classes} classes the last is {classes - 1}"
        )
    return labels


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The model's logits; the inputs are brought to the device and the precision of its first floating-point weight.

    A dict is given as keywords, a tuple or list as arguments.

    >>> call(nn.Linear(3, 2), torch.zeros(4, 3, dtype=torch.float64)).shape
    torch.Size([4, 2])
    >>> call(nn.Bilinear(3, 1, 2), (torch.zeros(4, 3), torch.zeros(4, 1))).shape
    torch.Size([4, 2])
    """
    like = next((tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point()), None)
    if like is not None:
        inputs = placed(inputs, like)
    if isinstance(inputs, Mapping):
        return logits_in(model, model(**inputs))
    return logits_in(model, model(*inputs) if isinstance(inputs, tuple | list) else model(inputs))


def logits_in(model: nn.Module, output: Any) -> Tensor:
    """The logits in what the model has returned: bare, first in a tuple, or as `.logits` or ["logits"].

    >>> logits_in(nn.Identity(), {"loss": None, "logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(f"{type(model).__name__} returns no logits: return a tensor, or an object with .logits")
    return output


def placed(inputs: Any, like: Tensor) -> Any:
    """The inputs on the device, and where they are floating-point in the dtype, of a weight of the model.

    >>> placed({"x": torch.zeros(2), "ids": torch.tensor([1])}, torch.zeros(1, dtype=torch.float16))["x"].dtype
    torch.float16
    """
    if isinstance(inputs, Tensor):
        dtype = like.dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(like.device, dtype, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {name: placed(value, like) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return [placed(value, like) for value in inputs]
    return inputs


def to_device(inputs: Any, device: torch.device | str) -> Any:
    """The inputs with every tensor in them, however nested in dicts, tuples and lists, on the device.

    >>> to_device({"ids": torch.tensor([1]), "name": "a"}, "cpu")
    {'ids': tensor([1]), 'name': 'a'}
    """
    if isinstance(inputs, Tensor):
        return inputs.to(device, non_blocking=True)
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        moved = [to_device(value, device) for value in inputs]
        return moved if isinstance(inputs, list) else tuple(moved)
    return inputs


def count_labels(data: Any, classes: int | None = None) -> list[int]:
    """Examples of each class: from the labels a dataset keeps in memory where it does, else by one pass over it.

    >>> count_labels((torch.zeros(5, 2), torch.tensor([0, 1, 1, 3, 0])))
    [2, 2, 0, 1]
    >>> count_labels((torch.zeros(2, 2), torch.tensor([0, 1])), classes=3)
    [1, 1, 0]
    """
    batches = loader(data)
    stored = None
    if isinstance(batches, DataLoader):
        # A subset sampler leaves examples out; any other only reorders or re-weighs the dataset's.
        sampler = getattr(batches.batch_sampler, "sampler", batches.sampler)
        stored = None if isinstance(sampler, SubsetRandomSampler) else _stored_labels(batches.dataset)
    if stored is None:
        stored = torch.cat([torch.empty(0, dtype=torch.int64), *(split(batch)[1].cpu() for batch in batches)])
    labels = as_labels(stored, classes)
    if not len(labels):
        raise InputError("the data has no examples: check where it is read from")
    return torch.bincount(labels, minlength=classes or 0).tolist()


def _stored_labels(dataset: Any) -> Tensor | None:
    """The labels that a dataset keeps beside its inputs, or None where it keeps none that can be trusted."""
    if isinstance(dataset, Subset):
        stored = _stored_labels(dataset.dataset)
        return None if stored is None else stored[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if isinstance(dataset, TensorDataset):
        labels: Any = dataset.tensors[-1]
    elif getattr(dataset, "target_transform", None) is None:
        labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
    else:
        return None
    try:
        stored = as_labels(labels).cpu()
    except InputError:  # `labels` may be class names, soft labels or nothing: the batches decide
        return None
    return stored if len(stored) == len(dataset) else None

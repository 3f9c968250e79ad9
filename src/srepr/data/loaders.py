"""Data that the library accepts: a DataLoader, a Dataset, a set of `srepr.data`, a pair of arrays or batches.

A batch is (inputs, labels), or a dict with "labels" (Hugging Face). The rest of the library sees only `loader`,
`shuffled` and `split`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from srepr.data.examples import Examples
from srepr.data.longtail import MOST_CLASSES
from srepr.errors import InputError, check

ACCEPTED = "pass a DataLoader, a Dataset or (inputs, labels)"


class ExampleDataset(Dataset[tuple[Tensor, Tensor]]):
    """A set of `srepr.data` as a Dataset: plain, or augmented anew whenever it is read, as torch's seed says.

    >>> from srepr.data import load
    >>> inputs, label = ExampleDataset(load("digits-lt").train)[0]
    >>> inputs.shape, label
    (torch.Size([1, 8, 8]), tensor(0))
    """

    def __init__(self, examples: Examples, *, augment: bool = False) -> None:
        self.examples, self.augment = examples, augment
        self.labels, self.class_names = examples.labels, examples.class_names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, labels = self.__getitems__([index])
        return inputs[0], labels[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch, which is faster than its examples one by one."""
        rows = np.asarray(indices)
        view = (int(torch.randint(1 << 62, ())), 0) if self.augment else None
        return self.examples.load(rows, view), torch.from_numpy(self.labels[rows])


class NamedDataset(TensorDataset):
    """Inputs and class numbers, and the names of these classes."""

    def __init__(self, inputs: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> None:
        super().__init__(inputs, labels)
        self.class_names = class_names


def loader(data: Any, *, batch_size: int = 256) -> Iterable[Any]:
    """Batches of the data, in order, that can be iterated repeatedly. A DataLoader is returned unchanged.

    A set of `srepr.data` is read plain, as for evaluation. Floating-point numpy inputs are cast to torch's default
    dtype, which models expect. Labels of (inputs, labels) may be class names (see `numbers`).

    >>> batches = loader((np.zeros((5, 2)), [0, 1, 1, 0, 2]), batch_size=3)
    >>> [labels.tolist() for inputs, labels in batches]
    [[0, 1, 1], [0, 2]]
    """
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Examples):
        return DataLoader(ExampleDataset(data), batch_size=batch_size, collate_fn=_whole)
    if isinstance(data, str | bytes | Mapping):
        raise InputError(f"the data is a {type(data).__name__}: {ACCEPTED}")
    if isinstance(data, Iterator):
        raise InputError("a generator can be read only once: pass a DataLoader or a Dataset")
    if isinstance(data, tuple | list):
        if not _is_pair(data):
            return data  # a list of batches
        values, names = numbers(data[1])
        try:
            inputs, labels = torch.as_tensor(data[0]), as_labels(values)
        except (TypeError, RuntimeError) as error:
            raise InputError(f"the inputs are no numbers ({str(error)[:200]}): {ACCEPTED}") from None
        if isinstance(data[0], np.ndarray) and inputs.is_floating_point():
            inputs = inputs.to(torch.get_default_dtype())
        if len(inputs) != len(labels):
            raise InputError(f"there are {len(inputs)} inputs but {len(labels)} labels: pass one label for each input")
        pairs = TensorDataset(inputs, labels) if names is None else NamedDataset(inputs, labels, names)
        return DataLoader(pairs, batch_size=batch_size)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return DataLoader(data, batch_size=batch_size)
    if isinstance(data, Iterable):
        return data
    raise InputError(f"the data is a {type(data).__name__}: {ACCEPTED}")


def shuffled(data: Any, *, batch_size: int = 256, seed: int | None = None) -> Iterable[Any]:
    """Batches in random order: a new order on every pass, or always the same one with `seed`.

    A DataLoader, a stream or a list of batches keeps its own order. A set of `srepr.data` is augmented anew on every
    pass, as torch's seed says.

    >>> [labels.tolist() for _, labels in shuffled((torch.zeros(5, 2), [0, 0, 0, 1, 1]), seed=0)]
    [[0, 1, 1, 0, 0]]
    """
    batches = loader(data, batch_size=batch_size)
    if batches is data or not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return batches
    dataset: Any = ExampleDataset(data, augment=True) if isinstance(data, Examples) else batches.dataset
    check(len(dataset) > 0, "the data is empty: check its path or Dataset")
    if seed is None:
        return DataLoader(dataset, batch_size=batch_size, shuffle=True, collate_fn=batches.collate_fn)
    order = np.random.default_rng(seed).permutation(len(dataset))
    return DataLoader(Subset(dataset, order.tolist()), batch_size=batch_size, collate_fn=batches.collate_fn)


def _whole(batch: Any) -> Any:
    return batch  # as `__getitems__` gives it


def split(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and int64 labels [B] of one batch.

    >>> split((torch.zeros(2, 3), torch.tensor([4, 0])))[1]
    tensor([4, 0])
    >>> split({"input_ids": torch.tensor([[7, 8]]), "labels": torch.tensor([1])})
    ({'input_ids': tensor([[7, 8]])}, tensor([1]))
    """
    if isinstance(batch, Mapping):
        for key in ("labels", "label"):
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, as_labels(batch[key])
        raise InputError(f"the batch has no 'labels' among {sorted(batch)}: rename the label column")
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], as_labels(batch[1])
    raise InputError(
        "a batch must be (inputs, labels), ((input, ...), labels) or a dict with 'labels': check the Dataset or its"
        " collate_fn"
    )


def as_labels(values: Any, classes: int | None = None) -> Tensor:
    """Labels as an int64 tensor [B], checked to be class numbers, and below `classes` if set.

    >>> as_labels(np.array([2, 0], dtype=np.uint8), classes=3)
    tensor([2, 0])
    >>> as_labels([0.0, 1.0])
    Traceback (most recent call last):
    srepr.errors.InputError: labels are float64: pass integer class numbers 0, 1, ..., one per example
    """
    if isinstance(values, Tensor):
        whole = not (values.is_floating_point() or values.is_complex())
    else:
        values = np.asarray(values)
        whole = values.dtype.kind in "biu"
    if not whole:
        raise InputError(f"labels are {values.dtype}: pass integer class numbers 0, 1, ..., one per example")
    labels = values.long() if isinstance(values, Tensor) else torch.from_numpy(values.astype(np.int64))
    if labels.dim() != 1:
        raise InputError(f"labels have shape {list(labels.shape)}: pass one class number for each example, [B]")
    if len(labels) and labels.min() < 0:
        raise InputError(f"label {int(labels.min())} is negative: class numbers start at 0")
    largest = int(labels.max()) if len(labels) else 0
    if classes is not None and largest >= classes:
        raise InputError(f"label {largest} is out of range: with {classes} classes the last is {classes - 1}")
    check(largest < MOST_CLASSES, f"label {largest} is too large: number the classes 0, 1, ...")
    return labels


def numbers(labels: Any, names: Sequence[str] | None = None) -> tuple[Any, tuple[str, ...] | None]:
    """Labels that are class names as class numbers, and the names; other labels as they are, and None.

    Class k is the k-th of `names`, by default of the different labels in sorted order.

    >>> numbers(["wren", "crow", "wren"])
    (array([1, 0, 1]), ('crow', 'wren'))
    >>> numbers([1, 0, 1])
    ([1, 0, 1], None)
    """
    if isinstance(labels, Tensor):
        return labels, None
    array = np.asarray(labels)
    if array.dtype.kind not in "UTO" or not array.size or not all(isinstance(label, str) for label in array.flat):
        return labels, None
    array = array.astype(str)
    known = np.unique(array) if names is None else np.asarray(names, dtype=str)
    strange = np.setdiff1d(array, known)
    if len(strange):
        few = ", ".join([*known[:5].tolist(), *(["..."] if len(known) > 5 else [])])
        raise InputError(
            f"label {str(strange[0])!r} is none of the {len(known)} classes ({few}): correct or remove it"
        )
    order = np.argsort(known)
    return order[np.searchsorted(known[order], array)], tuple(known.tolist())


def numbered(data: Any, names: Sequence[str] | None) -> Any:
    """The data; if it is (inputs, labels) with class names as labels, with the numbers that these have in `names`.

    >>> numbered((torch.zeros(1, 2), ["wren"]), names=("crow", "wren"))[1]
    array([1])
    """
    if not _is_pair(data) or numbers(data[1])[1] is None:
        return data
    if names is None:
        raise InputError("the labels are class names, and those of the classes are not known: pass class numbers")
    return data[0], numbers(data[1], names)[0]


def class_names(data: Any, classes: int) -> tuple[str, ...] | None:
    """Names of the classes of a set of `srepr.data`, or of labels that are names; None if they have none.

    >>> class_names((torch.zeros(2, 2), ["wren", "crow"]), classes=2)
    ('crow', 'wren')
    """
    check(classes >= 2, "the classifier has a single output: at least two classes are needed")
    if _is_pair(data):
        names = numbers(data[1])[1]
    else:
        while isinstance(data, DataLoader | Subset):
            data = data.dataset
        names = data.class_names if isinstance(data, Examples | ExampleDataset | NamedDataset) else None
    if names is not None and len(names) != classes:
        raise InputError(
            f"the data names {len(names)} classes, and the classifier has {classes}: give it one output for each, or"
            " pass class numbers for labels"
        )
    return names


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], np.ndarray | Tensor)


def count_labels(data: Any, classes: int | None = None) -> list[int]:
    """Examples per class, from labels that the dataset keeps in memory if possible, else from one pass over it.

    >>> count_labels((torch.zeros(5, 2), torch.tensor([0, 1, 1, 3, 0])))
    [2, 2, 0, 1]
    >>> count_labels((torch.zeros(2, 2), torch.tensor([0, 1])), classes=3)
    [1, 1, 0]
    """
    batches = loader(data)
    stored = None
    if isinstance(batches, DataLoader):
        # A subset sampler skips examples; any other only reorders or reweights them.
        sampler = getattr(batches.batch_sampler, "sampler", batches.sampler)
        stored = None if isinstance(sampler, SubsetRandomSampler) else _stored_labels(batches.dataset)
    if stored is None:
        stored = torch.cat([torch.empty(0, dtype=torch.int64), *(split(batch)[1].cpu() for batch in batches)])
    labels = as_labels(stored, classes)
    if not len(labels):
        raise InputError("the data is empty: check its path or Dataset")
    return torch.bincount(labels, minlength=classes or 0).tolist()


def _stored_labels(dataset: Any) -> Tensor | None:
    """Labels that the dataset keeps in memory, or None if there are none or they cannot be trusted."""
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
    except InputError:  # `labels` may be class names, soft labels or missing: use the batches
        return None
    return stored if len(stored) == len(dataset) else None

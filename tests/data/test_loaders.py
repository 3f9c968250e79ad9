"""Every form of data gives the same batches; a wrong one is named."""

from collections import UserDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from srepr.data.examples import ArrayExamples
from srepr.data.inputs import seeded
from srepr.data.loaders import as_labels, class_names, count_labels, loader, numbered, numbers, shuffled, split
from srepr.errors import InputError

X = torch.arange(10, dtype=torch.float32).view(5, 2)
Y = torch.tensor([0, 2, 2, 1, 0])


class Rows(Dataset):
    """Dict rows, as a Hugging Face data set gives them."""

    def __init__(self, key="labels"):
        self.key = key

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"x": X[index], self.key: int(Y[index])}


class Kept(Dataset):
    """Labels beside the inputs, as torchvision keeps them; reading an example fails."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        raise AssertionError("the labels are known without reading an example")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y.tolist(), strict=True))


class OnlyIndexable:
    """Not a torch Dataset, but can be indexed: what `datasets.Dataset` is."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], int(Y[index])


class Reiterable:
    def __iter__(self):
        return iter([(X[:3], Y[:3]), (X[3:], Y[3:])])


NAMES = ("crow", "owl", "wren")

SOURCES = {
    "set of srepr.data": ArrayExamples(X.numpy(), Y.numpy(), NAMES),
    "tensors": (X, Y),
    "list of tensors": [X, Y],
    "numpy": (X.numpy(), Y.numpy()),
    "numpy float64, list": (X.numpy().astype(np.float64), Y.tolist()),
    "dataset": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=2),
    "dict rows": Rows(),
    "dict rows, label": Rows("label"),
    "iterable dataset": Stream(),
    "indexable": OnlyIndexable(),
    "iterable of batches": Reiterable(),
    "list of batches": [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "list of three batches": [(X[:3], Y[:3]), (X[3:4], Y[3:4]), (X[4:], Y[4:])],
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_examples_twice(name):
    batches = loader(SOURCES[name], batch_size=2)
    for _ in range(2):
        parts = [split(batch) for batch in batches]
        inputs = torch.cat([part["x"] if isinstance(part, dict) else part for part, _ in parts])
        assert torch.equal(inputs, X)
        assert inputs.dtype == torch.float32
        assert torch.equal(torch.cat([labels for _, labels in parts]), Y)


def test_a_loader_is_returned_as_it_is_and_a_dataset_gets_the_batch_size():
    assert loader(SOURCES["loader"], batch_size=4) is SOURCES["loader"]
    assert [len(labels) for _, labels in loader((X, Y), batch_size=4)] == [4, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((batch for batch in [(X, Y)]), "a generator can be read only once: pass a DataLoader or a Dataset"),
        (iter([(X, Y)]), "only once"),
        ((X, Y[:3]), "5 inputs but 3 labels"),
        ({"train": (X, Y)}, "dict"),
        ("cifar10-lt", "str"),
        (3, "int"),
        ((X, Y.float()), "float32"),
    ],
)
def test_data_that_cannot_be_read_is_named(data, message):
    with pytest.raises(InputError, match=message):
        loader(data)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": X}, r"no 'labels' among \['x'\]"),
        (X, "a batch must be"),
        ((X, Y, Y), "a batch must be"),
        ((X, Y.double()), "float64"),
        ((X, Y - 1), "label -1 is negative"),
        ((X, Y[:, None]), r"shape \[5, 1\]"),
        ((X[0], 1), r"shape \[\]"),
        ((X, ["cat"] * 5), "labels are <U3"),
    ],
)
def test_a_batch_without_proper_labels_is_named(batch, message):
    with pytest.raises(InputError, match=message):
        split(batch)


def test_split_takes_any_mapping_and_leaves_it_whole():
    batch = UserDict({"x": X, "labels": Y.to(torch.uint8)})
    inputs, labels = split(batch)
    assert list(inputs) == ["x"]
    assert labels.dtype == torch.int64
    assert set(batch) == {"x", "labels"}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, bool])
def test_labels_of_every_whole_dtype_become_int64(dtype):
    labels = as_labels(np.array([1, 0], dtype=dtype))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 0]


def test_a_label_beyond_the_classes_is_named():
    assert as_labels([2], classes=3).tolist() == [2]
    with pytest.raises(InputError, match="label 3 is out of range: with 3 classes the last is 2"):
        as_labels([0, 3], classes=3)
    with pytest.raises(InputError, match=r"label 2000000000 is too large: number the classes 0, 1, \.\.\.$"):
        count_labels((X[:2], [0, 2 * 10**9]))


def order_of(batches):
    """The numbers of the rows, in the order in which they come."""
    return [int(row[0]) // 2 for inputs, _ in map(split, batches) for row in inputs]


@pytest.mark.parametrize("name", ["tensors", "dataset", "indexable"])
def test_shuffled_is_a_new_order_in_every_pass_and_with_a_seed_one_order(name):
    torch.manual_seed(0)
    new = shuffled(SOURCES[name], batch_size=2)
    passes = [order_of(new) for _ in range(5)]
    assert {tuple(sorted(rows)) for rows in passes} == {(0, 1, 2, 3, 4)}
    assert len({tuple(rows) for rows in passes}) > 1
    orders = [[order_of(shuffled(SOURCES[name], batch_size=2, seed=seed)) for _ in range(2)] for seed in range(5)]
    assert all(first == again for first, again in orders)
    assert {tuple(sorted(rows)) for rows, _ in orders} == {(0, 1, 2, 3, 4)}
    assert len({tuple(rows) for rows, _ in orders}) > 1
    assert [len(labels) for _, labels in shuffled(SOURCES[name], batch_size=2, seed=0)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["loader", "iterable dataset", "iterable of batches", "list of batches"])
@pytest.mark.parametrize("seed", [None, 0])
def test_what_has_an_order_of_its_own_keeps_it(name, seed):
    assert order_of(shuffled(SOURCES[name], seed=seed)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", SOURCES)
def test_counts_are_the_same_from_every_source(name):
    assert count_labels(SOURCES[name]) == [2, 1, 2]
    assert count_labels(SOURCES[name], classes=5) == [2, 1, 2, 0, 0]


@pytest.mark.parametrize("attributes", [{"targets": Y.tolist()}, {"labels": Y.numpy()}, {"targets": Y}])
def test_labels_kept_by_a_dataset_are_counted_without_reading_it(attributes):
    assert count_labels(Kept(**attributes)) == [2, 1, 2]
    assert count_labels(Subset(Subset(Kept(**attributes), [0, 1, 2]), [1, 2])) == [0, 0, 2]


class Misleading(OnlyIndexable, Dataset):
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"labels": ["cat", "dog", "owl"]},
        {"labels": [0, 1, 2]},
        {"targets": np.eye(5)},
        {"targets": [0] * 5, "target_transform": lambda label: label + 1},
    ],
)
def test_attributes_that_are_not_the_labels_are_not_believed(attributes):
    assert count_labels(Misleading(**attributes)) == [2, 1, 2]


def test_samplers_that_leave_examples_out_count_and_those_that_reweigh_do_not():
    subset, data = SubsetRandomSampler([1, 2, 3]), TensorDataset(X, Y)
    assert count_labels(DataLoader(data, sampler=subset, batch_size=2)) == [0, 1, 2]
    assert count_labels(DataLoader(data, batch_sampler=BatchSampler(subset, 2, drop_last=False))) == [0, 1, 2]
    only_the_first = WeightedRandomSampler([1.0, 0, 0, 0, 0], num_samples=5)
    assert count_labels(DataLoader(data, sampler=only_the_first)) == [2, 1, 2]


def test_counting_nothing_or_too_many_classes_is_named():
    with pytest.raises(InputError, match="the data is empty"):
        count_labels([])
    with pytest.raises(InputError, match="out of range"):
        count_labels((X, Y), classes=2)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=50))
def test_counts_are_numpys(labels):
    counts = count_labels((torch.zeros(len(labels), 1), labels), classes=10_000)
    assert counts == np.bincount(labels, minlength=10_000).tolist()


# Sets of `srepr.data`

IMAGES = ArrayExamples(
    np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), np.arange(40) % 3, NAMES, padding=2
)


def taken(batches, seed):
    with seeded(batches, seed):
        return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def test_a_set_is_read_plain_and_in_order():
    inputs, labels = taken(loader(IMAGES, batch_size=16), seed=0)
    assert torch.equal(inputs, IMAGES.load(np.arange(40)))
    assert labels.tolist() == IMAGES.labels.tolist()


@pytest.mark.parametrize("order", [None, 3], ids=["shuffled anew", "in one order"])
def test_a_shuffled_set_is_augmented_anew_and_follows_from_the_seed(order):
    batches = shuffled(IMAGES, batch_size=16, seed=order)
    (first, labels), (again, _), (other, others) = (taken(batches, seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert sorted(labels.tolist()) == sorted(IMAGES.labels.tolist())
    assert (labels.tolist() == others.tolist()) == (order is not None)
    assert not torch.equal(first, other)
    plain = {image.numpy().tobytes() for image in IMAGES.load(np.arange(40))}
    assert len(plain & {image.numpy().tobytes() for image in first}) < 10  # one place of 25 is the middle


# Labels that are names


@pytest.mark.parametrize("kind", [list, np.array, lambda names: np.array(names, dtype=object)])
def test_names_are_numbered_in_sorted_order(kind):
    labels = kind([NAMES[k] for k in Y])
    assert torch.equal(torch.cat([y for _, y in loader((X, labels), batch_size=2)]), Y)
    assert count_labels((X, labels)) == [2, 1, 2]
    assert class_names((X, labels), 3) == NAMES
    assert class_names(Subset(loader((X, labels)).dataset, [0]), 3) == NAMES
    assert class_names(shuffled((X, labels), seed=0), 3) == NAMES


@given(st.lists(st.text(max_size=3), min_size=1, max_size=30))
def test_numbers_lead_back_to_the_names(labels):
    found, names = numbers(labels)
    assert list(names) == sorted(set(names))
    assert [names[k] for k in found] == np.array(labels).tolist()


def test_names_in_another_order_have_the_numbers_of_that_order():
    order = ("wren", "crow", "owl")
    assert numbered((X[:2], ["owl", "wren"]), order)[1].tolist() == [2, 0]
    assert numbered((X, Y), order)[1] is Y
    with pytest.raises(InputError, match=r"label 'dodo' is none of the 3 classes \(wren, crow, owl\)"):
        numbered((X[:1], ["dodo"]), order)
    with pytest.raises(InputError, match="those of the classes are not known: pass class numbers"):
        numbered((X[:1], ["owl"]), None)


@pytest.mark.parametrize("data", [IMAGES, loader(IMAGES), (X, [NAMES[k] for k in Y])])
def test_as_many_names_as_outputs_are_needed(data):
    assert class_names(data, 3) == NAMES
    with pytest.raises(InputError, match="the data names 3 classes, and the classifier has 4: give it one output"):
        class_names(data, 4)


def test_numbers_have_no_names():
    assert class_names((X, Y), 9) is class_names(Rows(), 9) is class_names([(X, Y)], 9) is None
    assert numbers([1, 0]) == ([1, 0], None)
    with pytest.raises(InputError, match="labels are object"):
        loader((X, np.array(["crow", None, "owl", "owl", "wren"])))

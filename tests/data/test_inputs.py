"""A sweep sees every example once and can be made again to the bit; the caller's generators never notice."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from srepr.data.examples import ArrayExamples
from srepr.data.inputs import ExampleInputs, LoaderInputs
from srepr.errors import InputError

N = 150
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
LABELS = np.sort(np.random.default_rng(1).integers(0, 3, N))
EXAMPLES = ArrayExamples(IMAGES, LABELS, ("a", "b", "c"), (0.5,) * 3, (0.25,) * 3, padding=2, flip=True)
NUMBERED = TensorDataset(torch.arange(20.0), torch.arange(20) % 4)


def swept(inputs, view=0):
    """All inputs and all labels of a sweep."""
    parts = list(inputs.sweep(view))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


class Stream(IterableDataset):
    """Data whose number nobody knows in advance."""

    def __iter__(self):
        return iter([(torch.tensor(float(i)), i % 4) for i in range(20)])


def test_a_plain_sweep_is_the_evaluation_view_in_order():
    x, y = swept(ExampleInputs(EXAMPLES, seed=3, augment=False))
    assert torch.equal(x, EXAMPLES.load(np.arange(N)))
    assert y.tolist() == LABELS.tolist()


def test_an_augmented_sweep_is_a_function_of_seed_and_view():
    x, y = swept(ExampleInputs(EXAMPLES, seed=3), view=1)
    assert y.tolist() == LABELS.tolist()
    assert torch.equal(x, swept(ExampleInputs(EXAMPLES, seed=3), view=1)[0])
    for other in (
        swept(ExampleInputs(EXAMPLES, seed=3), view=2),
        swept(ExampleInputs(EXAMPLES, seed=4), view=1),
        swept(ExampleInputs(EXAMPLES, seed=3, augment=False)),
    ):
        assert not torch.equal(x, other[0])


@pytest.mark.parametrize(("count", "taken"), [(2, 128), (128, 128), (4000, 128)])
def test_calibration_takes_whole_batches_of_distinct_examples_again_and_again(count, taken):
    """150 examples are one whole batch of 128 and a rest, which is left out."""
    vectors = ArrayExamples(np.arange(N, dtype=np.float32)[:, None], LABELS, ("a", "b", "c"))
    first, again = (torch.cat(list(ExampleInputs(vectors, seed=0).calibration(count))) for _ in range(2))
    assert torch.equal(first, again)
    assert len(first.unique()) == len(first) == taken
    assert not torch.equal(first.sort(0).values, first)


def test_the_fingerprint_tells_everything_that_decides_a_sweep():
    pixel = IMAGES.copy()
    pixel[7, 0, 3, 3] ^= 1
    label = LABELS.copy()
    label[-1] = 0
    settings = {"class_names": EXAMPLES.class_names, "mean": EXAMPLES.mean, "std": EXAMPLES.std}
    different = [
        ExampleInputs(EXAMPLES, seed=0),
        ExampleInputs(EXAMPLES, seed=1),
        ExampleInputs(EXAMPLES, seed=0, augment=False),
        ExampleInputs(EXAMPLES.subset(np.arange(N - 1)), seed=0),
        ExampleInputs(ArrayExamples(pixel, LABELS, padding=2, flip=True, **settings), seed=0),
        ExampleInputs(ArrayExamples(IMAGES, label, padding=2, flip=True, **settings), seed=0),
        ExampleInputs(ArrayExamples(IMAGES, LABELS, padding=1, flip=True, **settings), seed=0),
        ExampleInputs(ArrayExamples(IMAGES, LABELS, padding=2, flip=False, **settings), seed=0),
    ]
    assert len({inputs.fingerprint() for inputs in different}) == len(different)
    assert ExampleInputs(EXAMPLES, seed=0, workers=2).fingerprint() == different[0].fingerprint()


@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_a_shuffling_loader_is_repeatable_and_its_generators_stay_where_they_were(own):
    generator = torch.Generator().manual_seed(5) if own else None
    inputs = LoaderInputs(DataLoader(NUMBERED, batch_size=8, shuffle=True, generator=generator), seed=0)
    torch.manual_seed(1)
    before = [torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()]
    own_before = generator.get_state() if own else None
    x, y = swept(inputs)
    assert x.sort().values.tolist() == NUMBERED.tensors[0].tolist()
    assert y.tolist() == (x.long() % 4).tolist()
    assert torch.equal(x, swept(inputs)[0])
    assert not torch.equal(x, swept(inputs, view=1)[0])
    next(inputs.sweep(0))  # and left there
    list(inputs.calibration(3))
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1:] == [np.random.get_state()[1].tolist(), random.getstate()]
    assert not own or torch.equal(own_before, generator.get_state())


def test_a_weighted_sampler_is_repeatable():
    sampler = WeightedRandomSampler([1.0] * 20, 20, generator=torch.Generator())
    inputs = LoaderInputs(DataLoader(NUMBERED, batch_size=8, sampler=sampler), seed=0)
    assert torch.equal(swept(inputs)[0], swept(inputs)[0])


def test_an_error_in_the_data_gives_the_generator_back():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("no such image")

    before = torch.random.get_rng_state()
    with pytest.raises(OSError, match="no such image"):
        list(LoaderInputs(DataLoader(Broken(torch.zeros(2))), seed=0).sweep(0))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("count", "batches"), [(1, 1), (8, 1), (9, 2), (4000, 3)])
def test_calibration_stops_when_it_has_enough(count, batches):
    inputs = LoaderInputs(DataLoader(NUMBERED, batch_size=8), seed=0)
    assert len(list(inputs.calibration(count))) == batches


@pytest.mark.parametrize("loader", [DataLoader(NUMBERED), DataLoader(Stream()), [NUMBERED.tensors]])
def test_the_length_is_known_or_counted(loader):
    assert len(LoaderInputs(loader, seed=0)) == 20


def test_a_loader_with_nothing_in_it_is_refused():
    with pytest.raises(InputError, match="the data is empty"):
        list(LoaderInputs([], seed=0).sweep(0))

"""Every form of model gives the same logits, where its weights are and in their precision; a wrong one is named."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from srepr.errors import InputError
from srepr.models.call import call, eval_mode, to_device

X = torch.arange(10, dtype=torch.float32).view(5, 2)


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(2 * x)


Output = namedtuple("Output", ["loss", "logits"])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: z,
        lambda z: (z, "aux"),
        lambda z: [z],
        lambda z: {"loss": 0, "logits": z},
        lambda z: SimpleNamespace(logits=z),
        lambda z: Output(loss=0, logits=z),
    ],
)
def test_call_finds_the_logits_in_every_wrapping(wrap):
    assert torch.equal(call(Wrapped(wrap), X), 2 * X)
    assert torch.equal(call(Wrapped(wrap), {"x": X}), 2 * X)


@pytest.mark.parametrize("wrap", [lambda z: None, lambda z: {"loss": z}, lambda z: ()])
def test_call_names_a_model_without_logits(wrap):
    with pytest.raises(InputError, match="Wrapped returns no logits"):
        call(Wrapped(wrap), X)


def test_to_device_reaches_nested_tensors_and_keeps_the_structure():
    moved = to_device({"a": X, "b": [X, (X, "text")], "c": None}, "meta")
    assert moved["a"].is_meta
    assert moved["b"][0].is_meta
    assert moved["b"][1][0].is_meta
    assert moved["b"][1][1] == "text"
    assert isinstance(moved["b"][1], tuple)
    assert moved["c"] is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inputs_are_brought_to_the_precision_of_the_weights_and_whole_numbers_stay(dtype):
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(7, 2, dtype=dtype), nn.Linear(2, 3, dtype=dtype)

        def forward(self, ids, weights):
            return self.fc(self.table(ids) * weights)

    for inputs in ({"ids": torch.tensor([6]), "weights": X[:1]}, (torch.tensor([6]), X[:1])):
        assert call(Embedding(), inputs).dtype == dtype


def test_flags_come_back_after_the_block_and_after_an_error_in_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2).eval())
    for error in (None, ZeroDivisionError):
        try:
            with eval_mode(model):
                assert not any(module.training for module in model.modules())
                if error:
                    raise error
        except ZeroDivisionError:
            assert error
        assert [module.training for module in model.modules()] == [True, True, True, False]

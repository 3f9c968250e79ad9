"""PosteriorCallback inside a real Trainer: what it captures, and that a resumed training captures the same."""

import warnings

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import srepr
from srepr.errors import InputError
from srepr.integrations.lightning import PosteriorCallback

DATA = TensorDataset(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7 % 4)


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, inputs):
        return self.model(inputs)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [sgd], [torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)]


class Diary(lightning.Callback):
    """The weights at the end of each epoch and the rates it was trained with, kept independently."""

    def __init__(self):
        self.weights, self.rates = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append({name: p.detach().numpy().astype(np.float64) for name, p in pl_module.named_parameters()})


def fit(*callbacks, epochs=6, checkpoint=None, **options):
    torch.manual_seed(0)
    module = Lit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=epochs,
            callbacks=list(callbacks),
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
            **options,
        )
        validation = DataLoader(DATA, batch_size=25)
        trainer.fit(module, DataLoader(DATA, batch_size=16), validation, ckpt_path=checkpoint)
    return module


@pytest.mark.parametrize(
    ("start", "every", "captured"), [(0.5, 1, [3, 4, 5]), (2, 1, [2, 3, 4, 5]), (0, 2, [0, 2, 4]), (0.75, 3, [4])]
)
def test_the_moments_are_those_of_the_weights_at_the_ends_of_epochs(start, every, captured):
    """numpy's mean and variance of what another callback wrote down."""
    diary, callback = Diary(), PosteriorCallback(start, every=every)
    fit(diary, callback)
    assert callback.posterior.count == len(captured)
    for name, mean in callback.posterior.mean().items():
        seen = np.stack([diary.weights[epoch][name] for epoch in captured])
        np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(callback.posterior.variance()[name], seen.var(0), rtol=1e-5, atol=1e-14)


def test_the_learning_rate_is_held_from_the_start_on():
    diary = Diary()
    fit(diary, PosteriorCallback(4, lr=0.025))
    steps = len(DataLoader(DATA, batch_size=16))
    assert diary.rates == pytest.approx(np.repeat([0.1, 0.05, 0.025, 0.0125, 0.025, 0.025], steps))


def test_a_resumed_training_reaches_the_same_bits(tmp_path):
    """From checkpoints before the first capture, amid the captures and after the last, written by the validation."""
    whole = PosteriorCallback(0.5, module="model", lr=0.02)
    fit(whole, ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1))
    expected = whole.posterior.state_dict()
    for epoch in (1, 3, 5):
        resumed = PosteriorCallback(0.5, module="model", lr=0.02)
        fit(resumed, checkpoint=tmp_path / f"epoch={epoch}.ckpt")
        state = resumed.posterior.state_dict()
        assert {name: tensor.numpy().tobytes() for name, tensor in state.items()} == {
            name: tensor.numpy().tobytes() for name, tensor in expected.items()
        }


def test_the_posterior_of_the_network_inside_can_be_retrained():
    callback = PosteriorCallback(0.5, module="model", lr=0.05)
    module = fit(callback)
    better = srepr.retrain(callback.posterior, DataLoader(DATA, batch_size=16), epochs=2)
    assert better(DATA.tensors[0]).shape == (50, 4)
    assert {name.removeprefix("model.") for name in better.state_dict()} == module.model.state_dict().keys()


def test_another_fit_begins_another_posterior():
    callback = PosteriorCallback(0.5)
    fit(callback, epochs=4)
    fit(callback, epochs=4)
    assert callback.posterior.count == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1.5}, "^`start` is 1.5: "),
        ({"start": -1}, "^`start` is -1: "),
        ({"every": 0}, "^`every` is 0: "),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PosteriorCallback(**options)


def test_what_does_not_fit_the_training_is_refused_before_it_begins():
    with pytest.raises(InputError, match=r"Lit has no 'network': choose from model"):
        fit(PosteriorCallback(module="network"))
    with pytest.raises(InputError, match="share of max_epochs"):
        fit(PosteriorCallback(0.5), epochs=-1, max_steps=1)

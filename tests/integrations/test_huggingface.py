"""PosteriorCallback inside a real transformers.Trainer, and text from end to end.

The text is real and long-tailed by nature: the descriptions of the functions of SciPy, to be told apart by the module
that they come from (about 330 of scipy.special, about 20 of scipy.spatial.distance).
"""

import inspect
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import srepr
from srepr.errors import InputError
from srepr.integrations.huggingface import PosteriorCallback

MODULES = "special stats signal linalg ndimage optimize interpolate fft integrate cluster.hierarchy spatial.distance"
HELD_OUT = 10


@pytest.fixture(scope="module")
def corpus():
    """Tokenized texts of training and test, as many of each class in the test, and what pads a batch of them."""
    texts, labels = [], []
    for label, name in enumerate(MODULES.split()):
        module = import_module(f"scipy.{name}")
        described = (inspect.getdoc(getattr(module, key)) for key in module.__all__ if callable(getattr(module, key)))
        texts += (found := sorted({text.split("Parameters\n")[0] for text in described if text}))
        labels += [label] * len(found)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out = [order[np.array(labels)[order] == label][:HELD_OUT] for label in range(len(MODULES.split()))]
    parts = order[~np.isin(order, held_out)], np.concatenate(held_out)
    tokenizer = BertTokenizer().train_new_from_iterator([texts[i] for i in parts[0]], 2000, show_progress=False)
    train, test = (
        [{**tokenizer(texts[i], truncation=True, max_length=24), "labels": labels[i]} for i in part] for part in parts
    )
    return train, test, DataCollatorWithPadding(tokenizer)


def trainer(folder, train, collator, *callbacks, **options):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=24,
        num_labels=len(MODULES.split()),
    )
    settings = {
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **options,
    }
    return Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(str(folder), **settings),
        train_dataset=train,
        data_collator=collator,
        callbacks=list(callbacks),
    )


class Diary(TrainerCallback):
    """The weights and the rate after each step, kept independently."""

    def __init__(self):
        self.weights, self.rates = [], []

    def on_optimizer_step(self, args, state, control, *, model, optimizer, **others):
        self.weights.append(model.classifier.weight.detach().numpy().astype(np.float64))
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_text_from_end_to_end(corpus, tmp_path):
    """Re-training the classifier of a finished Trainer makes the rare modules count.

    Measured on the training texts: 110 others tell only the seeds apart. The balanced accuracy there rose by 7 to
    26 points with each of five seeds.
    """
    train, test, collator = corpus
    callback = PosteriorCallback(0.5, lr=1e-3)
    session = trainer(tmp_path, train, collator, callback, num_train_epochs=6, learning_rate=2e-3)
    session.train()
    assert callback.posterior.count == 3
    batches = DataLoader(train, batch_size=32, collate_fn=collator)
    better = srepr.retrain(callback.posterior, batches, "srepr", penalty=0.001, samples=4)

    padded = collator(test[:3])
    assert {"input_ids", "attention_mask", "token_type_ids", "labels"} <= padded.keys()
    assert better(**padded).logits.shape == (3, 11)
    assert better.config is not None
    counts = np.bincount([example["labels"] for example in train]).tolist()
    before, after = (srepr.evaluate(model, batches, counts) for model in (session.model, better))
    assert after["balanced_acc"] > before["balanced_acc"]


@pytest.mark.parametrize(
    ("options", "captured"),
    [({"start": 0.5}, [12, 16]), ({"start": 1}, [8, 12, 16]), ({"start": 0.5, "steps": 3}, [9, 12, 15])],
)
def test_the_moments_are_those_of_the_captured_weights(corpus, tmp_path, options, captured):
    """numpy's mean and variance of what another callback wrote down; four epochs of four steps."""
    train, _, collator = corpus
    diary, callback = Diary(), PosteriorCallback(**options)
    trainer(tmp_path, train[:128], collator, diary, callback, num_train_epochs=4).train()
    seen = np.stack([diary.weights[step - 1] for step in captured])
    assert callback.posterior.count == len(captured)
    np.testing.assert_allclose(callback.posterior.mean()["classifier.weight"], seen.mean(0), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(callback.posterior.variance()["classifier.weight"], seen.var(0), rtol=1e-4, atol=1e-14)


def test_the_learning_rate_is_held_from_the_start_on(corpus, tmp_path):
    train, _, collator = corpus
    diary = Diary()
    trainer(tmp_path, train[:128], collator, diary, PosteriorCallback(0.5, lr=2e-4), num_train_epochs=2).train()
    falling = 1e-3 * (1 - np.arange(8) / 8)
    assert diary.rates == pytest.approx([*falling[:4], *[2e-4] * 4])


def test_a_resumed_training_reaches_the_same_bits(corpus, tmp_path):
    """From checkpoints before the first capture and amid the captures, written at the ends of epochs and between."""
    train, _, collator = corpus
    options = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 2}
    whole = PosteriorCallback(0.5)
    trainer(tmp_path, train[:128], collator, whole, **options).train()
    expected = {name: tensor.numpy().tobytes() for name, tensor in whole.posterior.state_dict().items()}
    for step in (6, 12, 14):
        resumed = PosteriorCallback(0.5)
        session = trainer(tmp_path, train[:128], collator, resumed, **options)
        session.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        state = resumed.posterior.state_dict()
        assert {name: tensor.numpy().tobytes() for name, tensor in state.items()} == expected

    (tmp_path / "checkpoint-12" / "posterior.safetensors").unlink()
    session = trainer(tmp_path, train[:128], collator, PosteriorCallback(0.5), **options)
    with pytest.raises(InputError, match=r"checkpoint-12/posterior.safetensors is missing: resume from a checkpoint"):
        session.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))


def test_data_without_a_length_needs_steps(corpus, tmp_path):
    train, _, collator = corpus

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(train[:64])

    with pytest.raises(InputError, match="have no end: give `steps`"):
        trainer(tmp_path, Stream(), collator, PosteriorCallback(0.5), max_steps=2).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"start": 1.0}, "^`start` is 1.0: "), ({"start": -1}, "^`start` is -1: "), ({"steps": 0}, "^`steps` is 0: ")],
)
def test_settings_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PosteriorCallback(**options)

"""`srepr.fit` and `srepr.collect` against a plain loop, the formula of the rates, and an optimum in closed form."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import srepr
from srepr.anymodel import fit as fitting
from srepr.data import ArrayExamples
from srepr.errors import InputError
from srepr.methods import METHODS
from srepr.representation import Diverged

COUNTS = [30, 9, 4]
Y = torch.arange(3).repeat_interleave(torch.tensor(COUNTS))
X = torch.randn(43, 2, generator=torch.Generator().manual_seed(0)) + 3 * F.one_hot(Y, 3)[:, :2]
QUICK = {"epochs": 5, "stage2_epochs": 1, "samples": 2, "quiet": True}


def network(*, normalised=False):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(6)] if normalised else []
    return nn.Sequential(nn.Linear(2, 6), *norm, nn.ReLU(), nn.Linear(6, 3))


def bits(module):
    return {name: tensor.tolist() for name, tensor in module.state_dict().items()}


@pytest.fixture
def posteriors(monkeypatch):
    """Those that stage 2 of a fit is given."""
    seen = []

    def retrain(posterior, *args, **options):
        seen.append(posterior)
        return srepr.retrain(posterior, *args, **options)

    monkeypatch.setattr(fitting, "retrain", retrain)
    return seen


def rate(t, epochs, captured_from, *, lr, swa_lr, warmup):
    """Of a step that ends t epochs into the schedule (paper, section 2.2)."""
    if t > captured_from:
        return swa_lr
    return lr * min(1.0, t / warmup) * (1 + math.cos(math.pi * t / epochs)) / 2


@pytest.mark.parametrize("given", [{}, {"lr": 0.3, "swa_lr": 0.02, "warmup_epochs": 3.0, "swa_start": 0.5}])
def test_the_rates_of_stage_1_are_those_of_the_schedule(given):
    seen = []
    hook = register_optimizer_step_pre_hook(lambda sgd, *_: seen.append(sgd.param_groups[0]["lr"]))
    srepr.fit(network(), (X, Y), epochs=8, batch_size=16, method="tau-norm", quiet=True, **given)
    hook.remove()
    lr, start = given.get("lr", 0.1), given.get("swa_start", 0.75)
    how = {"lr": lr, "swa_lr": given.get("swa_lr", lr / 5), "warmup": given.get("warmup_epochs", 0.8)}
    assert seen == pytest.approx([rate((i + 1) / 3, 8, 8 * start, **how) for i in range(24)])


@pytest.mark.parametrize(("epochs", "captures"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (10, 3), (40, 10)])
def test_the_last_quarter_is_captured(epochs, captures, posteriors):
    srepr.fit(network(), (X, Y), epochs=epochs, method="tau-norm", quiet=True)
    assert posteriors[0].count == captures


def test_the_posterior_is_that_of_a_plain_loop(posteriors):
    """SGD with Nesterov momentum and weight decay written out (Sutskever et al. 2013), moments by numpy."""
    model, batches = network().double(), [(X[:20], Y[:20]), (X[20:], Y[20:])]
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    speed, captured = dict.fromkeys(weights, 0.0), []
    for step in range(16):
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        x, y = batches[step % 2]
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, x.double()), y)
        step_size = rate((step + 1) / 2, 8, 6, lr=0.2, swa_lr=0.04, warmup=0.8)
        for name, slope in zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True):
            slope = slope + 0.01 * leaves[name].detach()
            speed[name] = 0.8 * speed[name] + slope
            weights[name] = leaves[name].detach() - step_size * (slope + 0.8 * speed[name])
        if step in (13, 15):
            captured.append(weights | {})
    srepr.fit(model, batches, epochs=8, lr=0.2, weight_decay=0.01, momentum=0.8, method="tau-norm", quiet=True)
    for name, mean in posteriors[0].mean().items():
        states = np.stack([state[name].numpy() for state in captured])
        np.testing.assert_allclose(mean, states.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(posteriors[0].variance()[name], states.var(0), rtol=1e-6, atol=1e-15)


def squares(outputs, labels):
    return 0.5 * (outputs - F.one_hot(labels, 3)).square().sum(1).mean()


def ridge(decay):
    """The minimum of squares + decay / 2 |W|^2 for outputs W x, in closed form."""
    x, targets = X.double(), F.one_hot(Y, 3).double()
    return torch.linalg.solve(x.T @ x + decay * len(x) * torch.eye(2).double(), x.T @ targets).T


@pytest.mark.parametrize("batch_size", [43, 8])
def test_collecting_around_an_optimum_stays_around_it(batch_size):
    """All examples in a step: nothing moves. A few: the weights wander, as widely as the rate allows."""
    model = nn.Linear(2, 3, bias=False).double()
    model.weight.data = ridge(0.1)
    spreads = []
    for lr in (0.001, 0.004):
        posterior = srepr.collect(
            model, (X, Y), epochs=40, lr=lr, weight_decay=0.1, batch_size=batch_size, loss=squares, quiet=True
        )
        assert posterior.count == 40
        away, spread = posterior.mean()["weight"] - ridge(0.1), posterior.variance()["weight"].sqrt()
        if batch_size == 43:
            assert away.abs().max() < 1e-12
            assert spread.max() < 1e-12
        else:
            assert away.norm() < spread.norm()
            spreads.append(spread.mean().item())
    assert not spreads or 1.3 < spreads[1] / spreads[0] < 4


def test_fit_is_stage_1_and_then_retrain(posteriors):
    options = {"method": "srepr", "solver": "sgd", "balance": "grw", "samples": 3, "temperature": 10.0}
    fitted = srepr.fit(
        network(), (X, Y), epochs=6, lr=0.05, seed=3, quiet=True, stage2_lr=0.02, stage2_batch_size=8, **options
    )
    again = srepr.retrain(posteriors[0], (X, Y), epochs=10, lr=0.02, batch_size=8, seed=3, **options)
    assert bits(fitted) == bits(again)
    srepr.fit(network(), (X, Y), epochs=6, lr=0.05, seed=4, quiet=True)
    assert not torch.equal(posteriors[0].mean()["0.weight"], posteriors[1].mean()["0.weight"])


@pytest.mark.parametrize(
    ("train", "options", "expected"),
    [
        ((X, Y), {"batch_size": 32}, 32),
        ((X, Y), {}, 128),
        ((X, Y), {"batch_size": 32, "stage2_batch_size": 8}, 8),
        (DataLoader(TensorDataset(X, Y), batch_size=16), {}, 16),
        (DataLoader(TensorDataset(X, Y), batch_size=16), {"batch_size": 32}, 16),
    ],
)
def test_stage_2_has_the_batches_of_stage_1_unless_it_is_told_otherwise(posteriors, train, options, expected):
    """43 examples: the steps of batches of 8, 16, 32 and more are all different."""
    fitted = srepr.fit(network(), train, method="la", solver="sgd", **QUICK, **options)
    for size in (8, 16, 32, 128):
        again = srepr.retrain(posteriors[0], train, "la", solver="sgd", epochs=1, samples=2, batch_size=size)
        assert (bits(fitted) == bits(again)) == (size == expected)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_a_fit(method):
    better = srepr.fit(network(normalised=True), (X, Y), method=method, **QUICK)
    assert better(X).isfinite().all()
    assert not better.training


def test_the_tail_gains():
    """Three overlapping classes of 300, 30 and 10: by the averaged network, and by the finished one."""
    generator = torch.Generator().manual_seed(0)

    def draw(counts):
        y = torch.arange(3).repeat_interleave(torch.tensor(counts))
        return 2 * F.one_hot(y, 3).float() + torch.randn(len(y), 3, generator=generator), y

    train, test = draw([300, 30, 10]), draw([500] * 3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    before = srepr.fit(model, train, epochs=20, method="tau-norm", tau=0.0, quiet=True)
    after = srepr.fit(model, train, epochs=20, quiet=True)
    results = [srepr.evaluate(module, test, [300, 30, 10]) for module in (before, after)]
    for name, better in (("few", 1), ("acc", 1), ("nll", -1), ("ece", -1)):
        assert better * results[1][name] > better * results[0][name]


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], int(Y[i])


class Noisy(Rows):
    """Augments by numpy's and Python's global generators, as people do."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * float(np.random.randn()) + random.random(), y


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y.tolist(), strict=True)


SOURCES = {
    "arrays": (X.numpy(), Y.numpy()),
    "dataset": Rows(),
    "augmented": Noisy(),
    "loader": DataLoader(Rows(), batch_size=21, shuffle=True),  # 43 = 21 + 21 + 1: the last has no statistics
    "workers": DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=1),
    "stream": Stream(),
    "stream loader": DataLoader(Stream(), batch_size=16),
    "list of batches": [(X[:20], Y[:20]), (X[20:], Y[20:])],
    "dicts": [{"input": X[:20], "labels": Y[:20]}, {"input": X[20:], "labels": Y[20:]}],
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_form_of_data_is_repeatable(name):
    """Wherever the global generators stand."""
    found = []
    for state in range(2):
        model = network(normalised=True)
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(state)
        found.append(bits(srepr.fit(model, SOURCES[name], batch_size=16, **QUICK)))
    assert found[0] == found[1]
    assert srepr.collect(network(), SOURCES[name], epochs=2, lr=0.01, quiet=True).count == 2


def test_a_dataset_is_shuffled_and_a_loader_keeps_its_order():
    orders = {"dataset": [], "loader": []}
    for name, data in (("dataset", Rows()), ("loader", DataLoader(Rows(), batch_size=43))):
        remember = lambda logits, labels, name=name: orders[name].append(labels.tolist()) or logits.sum()  # noqa: E731
        srepr.collect(network(), data, epochs=2, lr=0.01, loss=remember, quiet=True)
    assert orders["loader"] == [Y.tolist()] * 2
    assert len({tuple(order) for order in (*orders["dataset"], Y.tolist())}) == 3
    assert [sorted(order) for order in orders["dataset"]] == [sorted(Y.tolist())] * 2


@pytest.mark.parametrize("counts", [[5, 1], [2, 1, 1]])
def test_two_classes_and_classes_of_one_example(counts):
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, len(counts)))
    assert srepr.fit(model, (X[: len(y)], y), **QUICK)(X).shape == (43, len(counts))


def too_late(logits, labels):
    pytest.fail("a step was taken before this was refused")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"epochs": 0}, "^`epochs` is 0: at least 1"),
        ({"epochs": 4, "method": "srepr"}, "^`epochs` is 4: a single capture has no spread to draw from; at least 5"),
        ({"epochs": 1, "method": "la", "representation": "swag"}, "^`epochs` is 1: a single capture"),
        ({"lr": -1}, "^`lr` is -1: it must be above 0$"),
        ({"swa_lr": 0.0}, "^`swa_lr` is 0.0: it must be above 0$"),
        ({"batch_size": 0}, "^`batch_size` is 0: at least 1"),
        ({"swa_start": 1.0}, "^`swa_start` is 1.0: it must be"),
        ({"method": "sreper"}, r"^unknown method 'sreper'; did you mean srepr\? Known: auto, crt"),
        ({"sampels": 3}, r"^unknown setting of retrain 'sampels'; did you mean samples\? Known: "),
        ({"method": "la", "balance": "even"}, "^unknown balance 'even'"),
        ({"balance": "grw"}, "^`balance` changes a named method, and auto chooses among several"),
        ({"stage2_epochs": 0}, "epochs` is 0: at least 1 is needed$"),
        ({"stage2_lr": 0.0}, "lr` is 0.0: it must be above 0$"),
        ({"seed": -1}, "^`seed` is -1: "),
        ({"classifier": "9"}, "classifier='9' is not a linear layer"),
        ({"train": (X[:39], Y[:39])}, "class 2 has 0 training examples"),
        ({"train": (X, Y + 1)}, "label 3 is out of range: with 3 classes the last is 2"),
        ({"train": (X, Y.float())}, "labels are"),
        ({"train": []}, "the data is empty"),
        ({"train": iter([])}, "a generator can be read only once"),
        ({"model": network().requires_grad_(False)}, "no parameter of the model requires a gradient"),
        ({"model": nn.Sequential(nn.ReLU())}, "has no linear layer"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(change, complaint):
    settings = {"model": network(), "train": (X, Y), "loss": too_late, **QUICK, **change}
    with pytest.raises(InputError, match=complaint) as error:
        srepr.fit(**settings)
    assert "--" not in str(error.value)


@pytest.mark.parametrize("solver", ["exact", "sgd"])
def test_a_class_without_examples_is_no_matter_to_sampling(solver):
    assert srepr.fit(network(), (X[:39], Y[:39]), method="crt", solver=solver, **QUICK)(X).isfinite().all()


def test_fit_holds_out_a_tenth_of_each_class_that_can_spare_it(monkeypatch):
    """Of 300, 30 and 4 examples 30, 3 and none; a DataLoader keeps all of its examples."""
    seen = []

    def retrain(posterior, train, *_, **options):
        seen.append((train, options))
        return posterior.model

    monkeypatch.setattr("srepr.anymodel.fit.retrain", retrain)
    x, y = torch.randn(334, 4), torch.arange(3).repeat_interleave(torch.tensor([300, 30, 4]))
    for train in ((x, y), DataLoader(TensorDataset(x, y), batch_size=64)):
        srepr.fit(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), train, epochs=5, quiet=True)
    (kept, options), (loader, others) = seen
    assert [int(label) for _, label in options["validation"]] == [0] * 30 + [1] * 3
    assert len(kept) == 334 - 33
    assert loader is train
    assert others["validation"] is None


def test_collect_wants_two_captures_and_knows_its_labels():
    with pytest.raises(InputError, match=r"^`epochs` is 1: at least two captures are needed"):
        srepr.collect(network(), (X, Y), epochs=1, lr=0.1)
    with pytest.raises(InputError, match="label 3 is out of range"):
        srepr.collect(network(), (X, Y + 1), lr=0.1, quiet=True)


def test_batches_of_one_are_refused_where_they_have_no_statistics():
    for model in (network(normalised=True), network()):
        if isinstance(model[1], nn.BatchNorm1d):
            with pytest.raises(InputError, match="two examples, which BatchNorm needs: raise `batch_size`"):
                srepr.fit(model, (X, Y), batch_size=1, **QUICK)
        else:
            srepr.collect(model, (X, Y), batch_size=1, epochs=2, lr=0.01, quiet=True)


def test_a_single_example_is_too_few_whatever_the_batch_size():
    with pytest.raises(InputError, match="which BatchNorm needs: there are too few training examples: add some"):
        srepr.fit(network(normalised=True), (X[:1], Y[:1]), method="crt", **QUICK)


def test_a_divergence_names_the_rate():
    said = r"the training diverged: the loss became nan in epoch 1, step 1, at a learning rate of {}. Lower `{}`\.$"
    data = (1e10 * X, Y)
    with pytest.raises(Diverged, match=said.format(r"1e\+20", "lr")):
        srepr.collect(network(), data, epochs=2, lr=1e20, quiet=True)
    with pytest.raises(Diverged, match=said.format(r"1e\+20", "swa_lr")):
        srepr.fit(network(), data, epochs=5, swa_lr=1e20, swa_start=0.0, quiet=True)
    with pytest.raises(Diverged, match=said.format(r"\S+", "lr")):
        srepr.fit(network(), data, epochs=5, lr=1e20, quiet=True)


def test_class_counts_may_be_given_and_are_then_not_read():
    class Unlabelled(Rows):
        reads = 0

        def __getitem__(self, i):
            Unlabelled.reads += 1
            return super().__getitem__(i)

    options = {"method": "tau-norm", "epochs": 1, "quiet": True}
    srepr.fit(network(), Unlabelled(), class_counts=COUNTS, **options)
    spared = Unlabelled.reads
    srepr.fit(network(), Unlabelled(), **options)
    assert Unlabelled.reads - spared == spared + len(X)


def test_progress_is_shown_unless_it_is_not_wanted(capsys, monkeypatch):
    monkeypatch.setattr("srepr.progress.PLAIN_SECONDS", 0.0)
    srepr.collect(network(), TensorDataset(X, Y), epochs=2, lr=0.01, batch_size=8)
    assert "collect: 1 of 12" in capsys.readouterr().err
    srepr.collect(network(), TensorDataset(X, Y), epochs=2, lr=0.01, quiet=True)
    assert capsys.readouterr().err == ""


def test_an_optimizer_of_ones_own_follows_the_schedule():
    seen = []
    hook = register_optimizer_step_pre_hook(lambda adam, *_: seen.append((type(adam), adam.param_groups[0]["lr"])))
    adam = {"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.02)}
    srepr.fit(network(), (X, Y), epochs=8, batch_size=16, method="tau-norm", quiet=True, **adam)
    hook.remove()
    how = {"lr": 0.02, "swa_lr": 0.004, "warmup": 0.8}
    assert {kind for kind, _ in seen} == {torch.optim.AdamW}
    assert [lr for _, lr in seen] == pytest.approx([rate((i + 1) / 3, 8, 6, **how) for i in range(24)])
    with pytest.raises(InputError, match="`optimizer` returned int"):
        srepr.collect(network(), (X, Y), lr=0.1, optimizer=len)


@pytest.mark.parametrize("by", ["name", "gradient"])
def test_frozen_layers_keep_weights_and_statistics(by):
    given = network(normalised=True)
    given(torch.randn(20, 2))  # statistics of their own
    if by == "gradient":
        given[:2].requires_grad_(False)
    before = bits(given)
    posterior = srepr.collect(given, (X, Y), epochs=3, lr=0.1, freeze="0,1" if by == "name" else None, quiet=True)
    better = srepr.retrain(posterior, (X, Y), "la")
    for name, values in bits(better.model).items():
        frozen = name.startswith(("0.", "1."))
        assert (values == before[name]) == frozen, name
    with pytest.raises(InputError, match="unknown layer in `freeze` 'body'"):
        srepr.collect(given, (X, Y), lr=0.1, freeze="body")


def test_a_set_of_vectors_is_the_dataset_of_its_inputs():
    examples = ArrayExamples(X.numpy(), Y.numpy(), ("a", "b", "c"), mean=(0.5,) * X.shape[1])
    pair = TensorDataset(examples.load(np.arange(len(Y))), Y)
    with_set, with_pair = (srepr.fit(network(), train, **QUICK) for train in (examples, pair))
    assert bits(with_set) == bits(with_pair)
    assert srepr.evaluate(with_set, examples, [9, 9, 9]) == srepr.evaluate(with_pair, pair, [9, 9, 9])


def test_a_set_of_images_is_augmented_for_training_and_plain_where_it_is_judged(monkeypatch):
    digits, read = srepr.data.load("digits-lt", protocol="holdout"), ArrayExamples.load
    model = srepr.models.resnet8(10, channels=1)
    trained, judged = [], []

    def load(self, indices, view=None):
        (judged if self is digits.validation else trained).append(view)
        return read(self, indices, view)

    monkeypatch.setattr(ArrayExamples, "load", load)
    options = {"validation": digits.validation, "epochs": 5, "batch_size": 64, "samples": 2, "quiet": True}
    first = srepr.fit(model, digits.train, **options)
    views = trained.copy()
    trained.clear()
    second = srepr.fit(model, digits.train, **options)
    assert bits(first) == bits(second)
    assert views == trained
    assert None not in views
    assert len(set(views)) > 5 * len(digits.train) // 64  # every batch of every epoch has its own
    srepr.evaluate(first, digits.validation, digits.counts)
    assert set(judged) == {None}


def test_names_are_as_good_as_their_numbers():
    names = ("crow", "owl", "wren")
    words = [names[k] for k in Y]
    by_name, by_number = (srepr.fit(network(), (X, labels), **QUICK) for labels in (words, Y))
    assert bits(by_name) == bits(by_number)
    assert by_name.class_names == names
    small = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="the data names 3 classes, and the classifier has 2"):
        srepr.fit(small, (X, words), **QUICK)


def test_a_name_in_the_validation_set_that_is_no_class_is_refused_before_stage_1(posteriors):
    with pytest.raises(InputError, match="label 'dodo' is none of the 3 classes"):
        srepr.fit(network(), (X, list(map(str, Y.tolist()))), validation=(X[:1], ["dodo"]), **QUICK)
    assert posteriors == []

"""Stage 2 against optima known in closed form or found in float64, and `srepr.retrain` as a user calls it."""

import copy
import importlib
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import srepr
from srepr import heads
from srepr.anymodel.retrain import retrain
from srepr.config import Retrain
from srepr.errors import InputError
from srepr.features import Given
from srepr.methods import METHODS, Method
from srepr.representation import Diverged
from srepr.retraining import train_head

COUNTS = [24, 10, 5, 1]
LABELS = np.repeat(np.arange(4), COUNTS)
CHANCE = np.random.default_rng(0)
INPUTS = (CHANCE.normal(size=(40, 3)) + LABELS[:, None]).astype(np.float32)
STACK = CHANCE.normal(size=(3, 40, 5)).astype(np.float32)
WEIGHT = torch.from_numpy(CHANCE.normal(size=(4, 5)).astype(np.float32))
BIAS = torch.from_numpy(CHANCE.normal(size=4).astype(np.float32))
FAST = {"epochs": 2, "batch_size": 16, "samples": 2}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))


@pytest.fixture
def posterior():
    model = network()
    posterior = srepr.Posterior(model)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
        posterior.update(model)
    return posterior


class Pairs(Dataset):
    """A data set that does not tell its labels."""

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, index):
        return torch.from_numpy(INPUTS[index]), int(LABELS[index])


class Dicts(Pairs):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"numbers": x, "scale": torch.tensor(1.0), "labels": y}


class Wordy(nn.Module):
    """Takes keywords and answers with an object, as the models of Hugging Face do."""

    def __init__(self, model):
        super().__init__()
        self.body, self.classifier = model[:-1], model[-1]

    def forward(self, numbers, scale):
        return SimpleNamespace(logits=self.classifier(self.body(numbers * scale[:, None])), loss=None)


def bits(model):
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


# What a head is trained to


def one_hot_world(counts_per_cell):
    """Features that name one of the cells, with this many examples [cells, K] of each class in each."""
    cells, classes = counts_per_cell.shape
    cell = np.repeat(np.arange(cells), counts_per_cell.sum(1))
    labels = np.concatenate([np.repeat(np.arange(classes), row) for row in counts_per_cell])
    return Given(np.eye(cells, dtype=np.float32)[cell], labels)


@pytest.mark.parametrize(
    ("balance", "rho", "tolerance"),
    [("none", 1, 2e-3), ("la", 1, 2e-3), ("la", 0.5, 2e-3), ("grw", 1, 2e-3), ("grw", 0.5, 2e-3), ("cbs", 1, 0.03)],
)
def test_every_balance_finds_its_posterior(balance, rho, tolerance):
    """With a free logit for each cell and class the optimum is a count: n_jk, divided by n_k^rho where balanced."""
    table = np.array([[120, 20, 2], [60, 30, 4], [20, 10, 6]])
    weights = np.ones(3) if balance == "none" else 1.0 / table.sum(0) ** rho
    expected = table * weights
    expected /= expected.sum(1, keepdims=True)
    how = Method(head="linear", balance=balance)
    wanted = Retrain(epochs=150, lr=3.0, weight_decay=0.0, batch_size=table.sum(), rho=rho)
    head = train_head(one_hot_world(table), torch.zeros(3, 3), torch.zeros(3), table.sum(0).tolist(), how, wanted)
    np.testing.assert_allclose(head(torch.eye(3)).softmax(1), expected, atol=tolerance)


@pytest.mark.parametrize("balance", ["none", "la", "grw"])
def test_a_linear_head_is_the_regularised_optimum_of_scipy(balance):
    """L_CE over three representations plus (decay / 2) |phi|^2, minimised by L-BFGS in float64."""
    decay, shares = 0.01, np.array(COUNTS) / sum(COUNTS)
    offset = np.log(shares) if balance == "la" else np.zeros(4)
    weight = 1 / shares if balance == "grw" else np.ones(4)
    weight = weight / (shares * weight).sum()

    def loss(phi):
        z = STACK.astype(np.float64) @ phi[:20].reshape(4, 5).T + phi[20:] + offset
        log_probs = z - special.logsumexp(z, axis=-1, keepdims=True)
        nll = -log_probs[:, np.arange(40), LABELS] * weight[LABELS]
        return nll.mean() + decay / 2 * (phi**2).sum()

    best = optimize.minimize(loss, np.zeros(24), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}).x
    wanted = Retrain(epochs=600, lr=0.5, batch_size=40, weight_decay=decay)
    how = Method(head="linear", balance=balance, representation="swag")
    head = train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, how, wanted)
    np.testing.assert_allclose(np.append(head.weight, head.bias), best, atol=3e-3)


def test_srepr_ends_where_its_loss_is_level():
    """The whole loss from the paper in numpy and scipy, its slope by central differences: the teachers stand still."""
    wanted = Retrain(epochs=800, lr=0.5, batch_size=40, weight_decay=0.01, temperature=2.0)
    head = train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS["srepr"], wanted)
    found = np.append(head.weight.double(), head.bias.double())
    stack, shares = STACK.astype(np.float64), np.array(COUNTS) / sum(COUNTS)

    def logits(phi, features):
        return features @ phi[:20].reshape(4, 5).T + phi[20:]

    log_teachers = special.log_softmax(logits(found, stack) / 2.0, axis=-1)
    mean = np.exp(log_teachers).mean(0)
    precision = 1.5 / (mean * (np.log(mean) - log_teachers.mean(0))).sum(-1)

    def loss(phi):
        log_probs = special.log_softmax(logits(phi, stack) + np.log(shares), axis=-1)
        ce = -log_probs[:, np.arange(40), LABELS].mean()
        a = np.exp(logits(phi, stack.mean(0)) / 2.0) + 1
        total = a.sum(-1, keepdims=True)
        gap = special.digamma(total) - special.digamma(a)
        kl = special.gammaln(total[:, 0]) - special.gammaln(a).sum(-1) - special.gammaln(4) - ((a - 1) * gap).sum(-1)
        kd = ((mean * gap).sum(-1) + kl / precision).mean()
        return 0.5 * ce + 0.5 * kd + 0.005 * (phi**2).sum()

    slope = optimize.approx_fprime(found, loss, 1e-6)
    start = np.append(WEIGHT.double(), BIAS.double())
    assert np.abs(slope).max() < 1e-3 < 0.05 < np.abs(optimize.approx_fprime(start, loss, 1e-6)).max()


TRAINED = ["linear", "lws", "lws-per-class", "disalign"]
KINDS = [("deterministic", False), ("swag", False), ("swag", True), ("augment", False), ("augment", True)]


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("head", [*TRAINED, "tau-norm", "ncm"])
def test_the_choices_combine_freely(head, bias):
    for balance, (representation, distill) in itertools.product(["cbs", "grw", "la", "none"], KINDS):
        how = Method(head=head, balance=balance, representation=representation, distill=distill)
        features = STACK[0] if representation == "deterministic" else STACK
        new = train_head(Given(features, LABELS), WEIGHT, bias, COUNTS, how, Retrain(epochs=1, batch_size=16))
        logits = new(torch.from_numpy(STACK[0]))
        assert logits.shape == (40, 4)
        assert logits.isfinite().all()
        assert not any(parameter.requires_grad for parameter in new.parameters())


@pytest.mark.parametrize("head", TRAINED)
def test_training_lowers_the_loss_that_it_is_given(head):
    """Every head starts as stage 1 and ends with a lower cross-entropy than that, under the balance `none`."""
    features, labels = torch.from_numpy(STACK[0]), torch.from_numpy(LABELS)
    how = Method(head=head, balance="none")
    new = train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, how, Retrain(epochs=20, batch_size=40))
    before = nn.functional.cross_entropy(features @ WEIGHT.T + BIAS, labels)
    assert nn.functional.cross_entropy(new(features), labels) < before - 0.01


@pytest.mark.parametrize("name", ["lws", "la", "grw", "disalign", "srepr"])
def test_a_head_starts_as_the_stage_1_classifier(name):
    """With no step to speak of it ends there, too."""
    new = train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS[name], Retrain(epochs=1, lr=1e-12))
    features = torch.from_numpy(STACK[0])
    torch.testing.assert_close(new(features), features @ WEIGHT.T + BIAS)


def test_crt_starts_at_random_by_its_seed_and_forgets_stage_1():
    def start(seed, weight=WEIGHT):
        wanted = Retrain(epochs=1, lr=1e-12, seed=seed)
        return train_head(Given(STACK[0], LABELS), weight, BIAS, COUNTS, METHODS["crt"], wanted).weight

    assert torch.equal(start(0), start(0, weight=WEIGHT * 100))
    assert (start(0) - start(1)).abs().max() > 0.1
    assert start(0).abs().max() <= 1 / np.sqrt(5)


def test_weight_decay_pulls_on_a_linear_head_only():
    for head in TRAINED:
        how = Method(head=head, balance="none")
        some, none = (
            train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, how, Retrain(epochs=3, weight_decay=decay))
            for decay in (0.3, 0.0)
        )
        assert (bits(some) != bits(none)) == (head == "linear")


def test_the_weight_decay_that_is_not_given_falls_with_the_root_of_the_number_of_classes():
    how = Method(head="linear", balance="none")

    def trained(**decay):
        return bits(train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, how, Retrain(epochs=3, **decay)))

    assert trained() == trained(weight_decay=0.01 / len(COUNTS) ** 0.5) != trained(weight_decay=0.0)
    wanted = [0.01 / 2**0.5, 1e-3, 1e-4]
    assert [Retrain().decay(classes) for classes in (2, 100, 10_000)] == pytest.approx(wanted)


def test_the_distillation_weight_goes_from_cross_entropy_to_distillation():
    """w = 0 is the method without distillation, to the bit; w = 1 never looks at the labels."""

    def trained(labels=LABELS, distill=True, **change):
        how = Method(head="linear", balance="none", representation="swag", distill=distill)
        return bits(train_head(Given(STACK, labels), WEIGHT, BIAS, COUNTS, how, Retrain(epochs=2, **change)))

    assert trained(distill_weight=0.0) == trained(distill=False)
    shifted = np.roll(LABELS, 7)
    assert trained(distill_weight=1.0) == trained(shifted, distill_weight=1.0)
    assert trained() != trained(shifted)


def test_cbs_lets_the_distillation_see_the_balanced_examples():
    how = Method(head="linear", balance="cbs", representation="swag", distill=True)
    wanted = Retrain(epochs=1, batch_size=40, distill_weight=1.0)
    plain = Method(head="linear", balance="none", representation="swag", distill=True)
    balanced, unbalanced = (
        train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, method, wanted) for method in (how, plain)
    )
    assert bits(balanced) != bits(unbalanced)


def test_identical_teachers_are_nothing_special():
    same = np.repeat(STACK[:1], 3, axis=0)
    new = train_head(Given(same, LABELS), WEIGHT, BIAS, COUNTS, METHODS["srepr"], Retrain(epochs=3))
    assert all(parameter.isfinite().all() for parameter in new.parameters())


@pytest.mark.parametrize("classes", [2, 10_000])
@pytest.mark.parametrize("name", METHODS)
def test_two_classes_and_ten_thousand_of_one_example_each(classes, name):
    labels = np.arange(classes)
    features = np.random.default_rng(0).normal(size=(2, classes, 4)).astype(np.float32)
    weight = torch.from_numpy(features[0])
    wanted = Retrain(epochs=1, batch_size=max(2, classes // 2), lr=0.01)
    some = np.arange(0, classes, max(1, classes // 20))
    source = Given(features, labels) if name == "ncm" else Given(features[:, some], labels[some])
    new = train_head(source, weight, None, [1] * classes, METHODS[name], wanted)
    assert new(torch.zeros(1, 4)).shape == (1, classes)
    assert all(tensor.isfinite().all() for tensor in new.state_dict().values())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(METHODS)))
def test_a_head_is_a_function_of_its_seed(seed, name):
    wanted = Retrain(epochs=1, batch_size=16, seed=seed)
    first, again = (
        bits(train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS[name], wanted)) for _ in range(2)
    )
    assert first == again


def test_ncm_and_tau_norm_are_what_they_are_by_hand():
    unit = STACK[0].astype(np.float64) / np.linalg.norm(STACK[0], axis=1, keepdims=True)
    means = np.stack([unit[k == LABELS].mean(0) for k in range(4)])
    cosine = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    ncm = train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, METHODS["ncm"], Retrain())
    np.testing.assert_array_equal(ncm(torch.from_numpy(STACK[0])).argmax(1), cosine.argmax(1))
    norm = train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, METHODS["tau-norm"], Retrain(tau=0.5))
    w = WEIGHT.double().numpy()
    np.testing.assert_allclose(norm.weight, w / np.linalg.norm(w, axis=1, keepdims=True) ** 0.5, rtol=1e-6)


# When it goes wrong


@pytest.mark.parametrize("change", [{"temperature": 1e-3}, {"temperature": 1e-30}, {"lr": 1e6}, {"lr": 1e30}])
def test_a_divergence_names_the_temperature(change):
    temperature = change.get("temperature", 20.0)
    remedy = (
        rf"diverged in epoch \d+, step \d+.* at temperature {temperature:g}\. Raise --temperature, or lower --lr\.$"
    )
    with pytest.raises(Diverged, match=remedy):
        train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS["srepr"], Retrain(batch_size=8, **change))


def test_a_divergence_without_distillation_does_not_speak_of_temperature():
    with pytest.raises(Diverged, match=r"the loss became [^ ]+\d\. Lower --lr\.$"):
        train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS["la"], Retrain(batch_size=8, lr=1e9))


def test_features_without_numbers_diverge_at_once():
    with pytest.raises(Diverged, match="epoch 0, step 0: the loss became nan"):
        train_head(Given(STACK * np.nan, LABELS), WEIGHT, BIAS, COUNTS, METHODS["la"], Retrain())


def test_a_large_class_weight_is_not_a_divergence():
    """One of 5000 is weighted 2500-fold: its loss is large by right."""
    labels = np.repeat([0, 1], [5000, 1])
    features = np.random.default_rng(0).normal(size=(5001, 2)).astype(np.float32)
    away = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    bias = torch.tensor([6.0, 0.0])
    new = train_head(Given(features, labels), away, bias, [5000, 1], METHODS["grw"], Retrain(epochs=1, lr=1e-4))
    assert new(torch.zeros(1, 2)).isfinite().all()


def test_numbers_of_classes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="counts of 3 classes for a classifier of 4"):
        train_head(Given(STACK, LABELS), WEIGHT, BIAS, [1, 2, 3], METHODS["la"], Retrain())
    with pytest.raises(InputError, match="label 3 is out of range: with 3 classes the last is 2"):
        train_head(Given(STACK, LABELS), WEIGHT[:3], BIAS[:3], [1, 2, 3], METHODS["la"], Retrain())


# srepr.retrain


def test_the_function_is_there_before_and_after_its_module_is_imported():
    """An import of a submodule puts it in the place of a function of the same name: they must not share one."""
    assert callable(srepr.retrain)
    importlib.import_module("srepr.retraining")
    assert bits(srepr.retrain(network(), (INPUTS, LABELS), "la", **FAST)) == bits(
        retrain(network(), (INPUTS, LABELS), "la", **FAST)
    )


def test_every_form_of_the_same_data_gives_the_same_bits(posterior):
    forms = [
        (INPUTS, LABELS),
        (INPUTS.astype(np.float64), LABELS.astype(np.uint8)),
        (torch.from_numpy(INPUTS), torch.from_numpy(LABELS)),
        [torch.from_numpy(INPUTS), LABELS.tolist()],
        TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS)),
        Pairs(),
    ]
    first, *others = (bits(srepr.retrain(posterior, data, **FAST)) for data in forms)
    assert all(other == first for other in others)


def test_a_loader_keeps_its_order_and_gives_the_same_head_as_its_batches(posterior):
    loader = DataLoader(Pairs(), batch_size=16)
    assert bits(srepr.retrain(posterior, loader, **FAST)) == bits(srepr.retrain(posterior, list(loader), **FAST))


def test_a_stream_of_unknown_length_works(posterior):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(Pairs()[i] for i in range(40))

    loader = DataLoader(Stream(), batch_size=16)
    assert bits(srepr.retrain(posterior, loader, **FAST)) == bits(srepr.retrain(posterior, list(loader), **FAST))
    assert srepr.retrain(posterior, Stream(), **FAST)(torch.zeros(1, 3)).shape == (1, 4)


def test_dicts_with_labels_and_a_model_that_answers_with_an_object(posterior):
    """The same network behind keywords and an object is re-trained to the same weights."""
    model = network()
    plain = srepr.retrain(model, Pairs(), "la", **FAST)
    wordy = srepr.retrain(Wordy(model), Dicts(), "la", **FAST)
    batch = {"numbers": torch.from_numpy(INPUTS), "scale": torch.ones(40)}
    assert torch.equal(wordy(**batch).logits, plain(torch.from_numpy(INPUTS)))
    assert wordy(**batch).loss is None
    assert torch.equal(wordy.predict(batch).probabilities, plain.predict(torch.from_numpy(INPUTS)).probabilities)


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_a_drop_in_and_the_given_is_untouched(posterior, method):
    model = posterior.model
    model.train()
    model[1].eval()
    flags = [module.training for module in model.modules()]
    before, state = bits(model), {name: tensor.clone() for name, tensor in posterior.state_dict().items()}
    new = srepr.retrain(posterior, (INPUTS, LABELS), method, **FAST)
    assert bits(model) == before
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(tensor, state[name]) for name, tensor in posterior.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not new.training
    assert isinstance(new, nn.Module)
    logits = new(torch.from_numpy(INPUTS))
    assert torch.equal(new(input=torch.from_numpy(INPUTS)), logits)
    assert logits.shape == (40, 4)
    assert torch.equal(copy.deepcopy(new)(torch.from_numpy(INPUTS)), logits)


def test_the_body_of_the_result_is_the_average_and_a_plain_model_stays_as_it_is(posterior):
    mean = posterior.mean()
    new = srepr.retrain(posterior, (INPUTS, LABELS), **FAST)
    assert all(torch.equal(p, mean[name]) for name, p in new.model.named_parameters() if not name.startswith("4."))
    model = network().eval()
    again = srepr.retrain(model, (INPUTS, LABELS), "la", **FAST)
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]) == (not name.startswith("4."))


def test_batchnorm_is_recomputed_for_the_average(posterior):
    """Mean and unbiased variance of W x + b over all the data, in float64."""
    norm = srepr.retrain(posterior, (INPUTS, LABELS), **FAST).model[1]
    mean = {name: tensor.double().numpy() for name, tensor in posterior.mean().items()}
    hidden = INPUTS.astype(np.float64) @ mean["0.weight"].T + mean["0.bias"]
    np.testing.assert_allclose(norm.running_mean, hidden.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.running_var, hidden.var(0, ddof=1), rtol=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(posterior):
    def trained(seed):
        generator = torch.Generator().manual_seed(random.randrange(1000))
        loader = DataLoader(Pairs(), batch_size=16, shuffle=True, generator=generator)
        return bits(srepr.retrain(posterior, loader, seed=seed, **FAST))

    assert trained(0) == trained(0)
    assert trained(0) != trained(1)


@pytest.mark.parametrize("data", ["pairs", "shuffling loader", "embeddings"])
def test_no_global_generator_moves(posterior, data):
    subject, train = {
        "pairs": (posterior, Pairs()),
        "shuffling loader": (posterior, DataLoader(Pairs(), batch_size=16, shuffle=True)),
        "embeddings": (nn.Linear(3, 4), DataLoader(Pairs(), batch_size=16, shuffle=True)),
    }[data]
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    srepr.retrain(subject, train, **FAST)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_on_the_fly_and_kept_features_differ_after_the_first_epoch(posterior):
    kept, fresh = (
        [bits(srepr.retrain(posterior, Pairs(), **{**FAST, "epochs": n}, on_the_fly=fly)) for n in (1, 2)]
        for fly in (False, True)
    )
    assert kept[0] == fresh[0]
    assert kept[1] != fresh[1]


@pytest.mark.parametrize(("representation", "distill"), KINDS)
def test_every_representation_works_on_a_network(posterior, representation, distill):
    new = srepr.retrain(posterior, Pairs(), "la", representation=representation, distill=distill, **FAST)
    assert new(torch.zeros(1, 3)).isfinite().all()


def test_a_plain_model_has_nothing_to_draw_from():
    with pytest.raises(InputError, match=r"a plain model has none. Pass a srepr.Posterior .*representation='augment'"):
        srepr.retrain(network(), (INPUTS, LABELS))
    new = srepr.retrain(network(), (INPUTS, LABELS), representation="augment", **FAST)
    assert new(torch.zeros(1, 3)).shape == (1, 4)


def test_a_model_in_double_precision_stays_in_it():
    new = srepr.retrain(network().double(), (torch.from_numpy(INPUTS).double(), LABELS), "la", **FAST)
    assert new(torch.zeros(1, 3).double()).dtype == torch.float64


@pytest.mark.parametrize("counts", [COUNTS, tuple(COUNTS), np.array(COUNTS), torch.tensor(COUNTS)])
def test_class_counts_may_be_given_in_any_form(counts):
    assert bits(srepr.retrain(network(), Pairs(), "la", class_counts=counts, **FAST)) == bits(
        srepr.retrain(network(), Pairs(), "la", **FAST)
    )


@pytest.mark.parametrize(
    ("data", "options", "complaint"),
    [
        ((INPUTS, LABELS[:-1]), {}, "there are 40 inputs but 39 labels"),
        ((INPUTS, LABELS + 1), {}, "label 4 is out of range: with 4 classes the last is 3"),
        ((INPUTS[:0], LABELS[:0]), {}, "the data has no examples"),
        ((INPUTS[:39], LABELS[:39]), {}, "class 3 has 0 training examples"),
        ((INPUTS, LABELS), {"class_counts": [3, 2]}, "counts of 2 classes for a classifier of 4"),
        ((INPUTS, LABELS), {"balance": "classes"}, "no balance is called 'classes'"),
        ((INPUTS, LABELS), {"learning_rate": 0.1}, "retrain has no setting 'learning_rate'. Known: batch_size"),
        ((INPUTS, LABELS), {"temperature": 0.0}, "temperature is 0.0: it must be above 0"),
        ((INPUTS, LABELS), {"classifier": "head"}, "classifier='head' is not a linear layer"),
        ((INPUTS, LABELS), {"method": "sreper"}, "no method is called 'sreper'"),
    ],
)
def test_input_that_cannot_work_is_refused_in_words(data, options, complaint):
    with pytest.raises(InputError, match=complaint):
        srepr.retrain(network(), data, **{"method": "la", **options})


def test_a_posterior_that_has_seen_nothing_is_refused():
    with pytest.raises(InputError, match="has seen no weights"):
        srepr.retrain(srepr.Posterior(network()), (INPUTS, LABELS))


# Embeddings


def linear():
    layer = nn.Linear(5, 4)
    layer.weight.data, layer.bias.data = WEIGHT.clone(), BIAS.clone()
    return layer


@pytest.mark.parametrize("method", METHODS)
def test_embeddings_are_trained_on_as_they_are(method):
    wanted = Retrain(epochs=2, batch_size=16, samples=2)
    expected = train_head(Given(STACK[0], LABELS), WEIGHT, BIAS, COUNTS, METHODS[method], wanted)
    new = srepr.retrain(linear(), (STACK[0], LABELS), method, **FAST)
    assert bits(new.model) == bits(expected)
    assert bits(srepr.retrain(linear(), (STACK[:1], LABELS), method, **FAST)) == bits(new)
    loader = DataLoader(TensorDataset(torch.from_numpy(STACK[0]), torch.from_numpy(LABELS)), batch_size=7)
    assert bits(srepr.retrain(linear(), loader, method, **FAST)) == bits(new)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda x: torch.from_numpy(x).requires_grad_()])
def test_several_embeddings_of_an_example_are_its_representations(kind):
    wanted = Retrain(epochs=2, batch_size=16, samples=2)
    expected = train_head(Given(STACK, LABELS), WEIGHT, BIAS, COUNTS, METHODS["srepr"], wanted)
    assert bits(srepr.retrain(linear(), (kind(STACK), LABELS), **FAST).model) == bits(expected)


def test_a_deterministic_method_sees_the_mean_of_several_embeddings():
    mean = STACK.mean(0, dtype=np.float32)
    assert bits(srepr.retrain(linear(), (STACK, LABELS), "la", **FAST)) == bits(
        srepr.retrain(linear(), (mean, LABELS), "la", **FAST)
    )


def test_half_precision_embeddings_work():
    new = srepr.retrain(linear(), (STACK.astype(np.float16), LABELS), **FAST)
    assert new(torch.zeros(1, 5)).dtype == torch.float32


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((STACK, LABELS[:-1]), "and 39 labels do not fit"),
        ((STACK[0], LABELS[:-1]), "40 inputs but 39 labels"),
        ((STACK[..., :3], LABELS), r"needs features of that length, and these are \[3, 40, 3\]"),
        ((STACK[0, :, :3], LABELS), r"needs features of that length, and these are \[40, 3\]"),
        ((STACK, LABELS + 1), "label 4 is out of range"),
        ((STACK[0, :0], LABELS[:0]), "the data has no examples"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(data, complaint):
    with pytest.raises(InputError, match=complaint):
        srepr.retrain(linear(), data, **FAST)


def test_the_given_layer_is_untouched():
    layer = linear()
    before = bits(layer)
    new = srepr.retrain(layer, (STACK, LABELS), **FAST)
    assert bits(layer) == before
    assert bits(new.model) != before
    assert heads.as_linear(new.model) is new.model

"""`srepr.retrain` as a user calls it: on any form of data, around any posterior or model, and on bare embeddings."""

import copy
import random
import tempfile
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import srepr
from srepr import heads
from srepr.config import Retrain
from srepr.errors import InputError
from srepr.features import Given
from srepr.methods import METHODS
from srepr.retraining import train_head

COUNTS = [24, 10, 5, 1]
LABELS = np.repeat(np.arange(4), COUNTS)
CHANCE = np.random.default_rng(0)
INPUTS = (CHANCE.normal(size=(40, 3)) + LABELS[:, None]).astype(np.float32)
STACK = CHANCE.normal(size=(3, 40, 5)).astype(np.float32)
WEIGHT = torch.from_numpy(CHANCE.normal(size=(4, 5)).astype(np.float32))
BIAS = torch.from_numpy(CHANCE.normal(size=4).astype(np.float32))
FAST = {"solver": "sgd", "epochs": 2, "batch_size": 16, "samples": 2}
SOLVED = {"penalty": 0.1}
KINDS = [("deterministic", False), ("swag", False), ("swag", True), ("augment", False), ("augment", True)]


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


@pytest.mark.parametrize("name", ["collect", "evaluate", "fit", "load", "retrain"])
def test_no_function_of_the_package_shares_its_name_with_a_module(name):
    """An import of the module would put it in the place of the function."""
    assert callable(getattr(srepr, name))
    assert find_spec(f"srepr.{name}") is None


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
    for options in ({}, {"validation": (INPUTS, LABELS)}, {"samples": 5}, {"solver": "sgd"}):
        with pytest.raises(InputError, match=r"there is none. Pass a srepr.Posterior .*`representation` to 'augment'"):
            srepr.retrain(network(), (INPUTS, LABELS), "srepr", **options)
    with pytest.raises(InputError, match="la draws from a posterior, and there is none"):
        srepr.retrain(network(), (INPUTS, LABELS), "la", representation="swag")
    assert srepr.retrain(network(), (INPUTS, LABELS))(torch.zeros(1, 3)).shape == (1, 4)
    new = srepr.retrain(network(), (INPUTS, LABELS), "srepr", representation="augment", **FAST)
    assert new(torch.zeros(1, 3)).shape == (1, 4)


@pytest.mark.parametrize("features", [STACK[0], STACK[:1]], ids=["[N, L]", "[1, N, L]"])
def test_a_single_embedding_of_each_example_is_not_several(features):
    """Nor are there views of it: what cannot be seen again cannot be augmented."""
    one = r"needs several representations of each example, and there is one. Pass features \[M, N, L\]"
    for options in ({}, {"validation": (features, LABELS)}, {"samples": 5}, {"representation": "augment"}):
        with pytest.raises(InputError, match=f"srepr {one}"):
            srepr.retrain(linear(), (features, LABELS), "srepr", **options)
    for representation in ("swag", "augment"):
        with pytest.raises(InputError, match=f"la {one}"):
            srepr.retrain(linear(), (features, LABELS), "la", representation=representation)
    assert srepr.retrain(linear(), (features, LABELS))(torch.zeros(1, 5)).shape == (1, 4)


def test_a_single_sample_is_not_distilled_into_itself(posterior):
    for options in ({"method": "srepr"}, {"method": "auto"}, {"method": "srepr", "representation": "augment"}):
        with pytest.raises(InputError, match="`samples` is 1: srepr distils several representations"):
            srepr.retrain(posterior, (INPUTS, LABELS), **options, samples=1)
    with pytest.raises(InputError, match="`samples` is 1: srepr distils"):
        srepr.fit(network(), (INPUTS, LABELS), method="srepr", epochs=5, samples=1)
    fine = {"distill": False, "samples": 1}
    assert srepr.retrain(posterior, (INPUTS, LABELS), "srepr", **fine)(torch.zeros(1, 3)).shape == (1, 4)
    assert srepr.retrain(network(), (INPUTS, LABELS), samples=1)(torch.zeros(1, 3)).shape == (1, 4)


def test_the_samples_of_embeddings_are_those_that_are_passed():
    few, many = (srepr.retrain(linear(), (STACK, LABELS), "srepr", samples=samples, **SOLVED) for samples in (1, 9))
    assert bits(few) == bits(many)


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
        ((INPUTS[:0], LABELS[:0]), {}, "the data is empty"),
        ((INPUTS[:39], LABELS[:39]), {}, "class 3 has 0 training examples"),
        ((INPUTS, LABELS), {"class_counts": [3, 2]}, "there are 2 class counts for a classifier of 4 classes"),
        ((INPUTS, LABELS), {"balance": "classes"}, "unknown balance 'classes'"),
        ((INPUTS, LABELS), {"learning_rate": 0.1}, "unknown setting of retrain 'learning_rate'. Known: batch_size"),
        ((INPUTS, LABELS), {"temperature": 0.0}, "^`temperature` is 0.0: it must be above 0$"),
        ((INPUTS, LABELS), {"classifier": "head"}, "classifier='head' is not a linear layer"),
        ((INPUTS, LABELS), {"method": "sreper"}, "unknown method 'sreper'; did you mean srepr"),
    ],
)
def test_input_that_cannot_work_is_refused_in_words(data, options, complaint):
    with pytest.raises(InputError, match=complaint):
        srepr.retrain(network(), data, **{"method": "la", **options})


def test_a_posterior_that_has_seen_nothing_is_refused():
    with pytest.raises(InputError, match="the posterior is empty"):
        srepr.retrain(srepr.Posterior(network()), (INPUTS, LABELS))


def test_nothing_is_left_of_the_features(posterior, tmp_path, monkeypatch):
    """A loader does not say what is in it: its features serve this call alone, from a folder that goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = bits(srepr.retrain(posterior, (INPUTS, LABELS), **FAST))
    assert not list(tmp_path.iterdir())
    assert bits(srepr.retrain(posterior, (2 * INPUTS, LABELS), **FAST)) != first


@pytest.mark.parametrize("method", METHODS)
def test_the_result_knows_its_classes_and_the_shares_that_it_expects(method):
    """Even ones after any balance that is fully strong, those of the training data without a balance."""
    representation = "augment" if method == "srepr" else None
    new = srepr.retrain(network(), (INPUTS, LABELS), method, representation=representation, **FAST)
    inputs = torch.from_numpy(INPUTS)
    torch.testing.assert_close(new.with_prior([1, 1, 1, 1])(inputs), new(inputs))
    for several in (1, 3, 5, 8, 40):  # 3 inputs, 8 hidden units
        with pytest.raises(InputError, match=f"the prior has {several} shares, the model 4 classes: give one"):
            new.with_prior([1] * several)


def test_without_a_balance_the_training_prior_is_expected():
    inputs = torch.from_numpy(INPUTS)
    new = srepr.retrain(network(), (INPUTS, LABELS), "la", balance="none", **FAST)
    before = new.predict(inputs).probabilities
    torch.testing.assert_close(new.with_prior(COUNTS).predict(inputs).probabilities, before)
    even = new.with_prior([1, 1, 1, 1]).predict(inputs).probabilities
    expected = before / torch.tensor(COUNTS)
    torch.testing.assert_close(even, expected / expected.sum(1, keepdim=True))


def test_half_a_balance_expects_the_root_of_the_training_prior():
    inputs = torch.from_numpy(INPUTS)
    new = srepr.retrain(network(), (INPUTS, LABELS), "la", rho=0.5, **FAST)
    torch.testing.assert_close(new.with_prior(np.sqrt(COUNTS))(inputs), new(inputs))


def test_given_counts_are_the_training_prior():
    new = srepr.retrain(network(), (INPUTS, LABELS), "la", balance="none", class_counts=[7, 3, 2, 1], **FAST)
    torch.testing.assert_close(new.with_prior([7, 3, 2, 1])(torch.ones(1, 3)), new(torch.ones(1, 3)))


# Embeddings


def linear():
    layer = nn.Linear(5, 4)
    layer.weight.data, layer.bias.data = WEIGHT.clone(), BIAS.clone()
    return layer


@pytest.mark.parametrize("method", [name for name in METHODS if name != "srepr"])
def test_embeddings_are_trained_on_as_they_are(method):
    wanted = Retrain(**FAST)
    expected = train_head(Given(STACK[0], LABELS), linear(), COUNTS, METHODS[method], wanted)
    new = srepr.retrain(linear(), (STACK[0], LABELS), method, **FAST)
    assert bits(new.model) == bits(expected)
    assert bits(srepr.retrain(linear(), (STACK[:1], LABELS), method, **FAST)) == bits(new)
    loader = DataLoader(TensorDataset(torch.from_numpy(STACK[0]), torch.from_numpy(LABELS)), batch_size=7)
    assert bits(srepr.retrain(linear(), loader, method, **FAST)) == bits(new)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda x: torch.from_numpy(x).requires_grad_()])
def test_several_embeddings_of_an_example_are_its_representations(kind):
    wanted = Retrain(**FAST)
    expected = train_head(Given(STACK, LABELS), linear(), COUNTS, METHODS["srepr"], wanted)
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
        ((STACK[0, :0], LABELS[:0]), "the data is empty"),
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


NAMES = ("crow", "hoopoe", "owl", "wren")
WORDS = [NAMES[k] for k in LABELS]


@pytest.mark.parametrize(("subject", "inputs"), [(linear, STACK[0]), (linear, STACK), (network, INPUTS)])
def test_names_are_as_good_as_their_numbers(subject, inputs):
    by_name, by_number = (srepr.retrain(subject(), (inputs, labels), "la", **FAST) for labels in (WORDS, LABELS))
    assert bits(by_name) == bits(by_number)
    assert by_name.class_names == by_name.with_prior([1, 2, 3, 4]).class_names == NAMES
    assert not hasattr(by_number, "class_names")


@pytest.mark.parametrize(("subject", "inputs"), [(linear, STACK[0]), (network, INPUTS)])
def test_names_of_validation_are_those_of_training(subject, inputs):
    """A validation set without the first class must not shift the numbers of the others."""
    some = LABELS > 0
    held = [
        (inputs[some], [word for word, kept in zip(WORDS, some, strict=True) if kept]),
        (inputs[some], LABELS[some]),
    ]
    train = (inputs, WORDS)
    first, second = (srepr.retrain(subject(), train, "la", validation=validation) for validation in held)
    assert bits(first) == bits(second)
    with pytest.raises(InputError, match="label 'dodo' is none of the 4 classes"):
        srepr.retrain(subject(), train, "la", validation=(inputs[:1], ["dodo"]))
    with pytest.raises(InputError, match="the labels are class names, and those of the classes are not known"):
        srepr.retrain(subject(), (inputs, LABELS), "la", validation=(inputs, WORDS))


@pytest.mark.parametrize(("subject", "inputs"), [(linear, STACK[0]), (linear, STACK), (network, INPUTS)])
def test_names_that_the_layer_has_no_room_for_are_refused(subject, inputs):
    words = [*WORDS[:-2], "dodo", "wren"]
    with pytest.raises(InputError, match="the data names 5 classes, and the classifier has 4"):
        srepr.retrain(subject(), (inputs, words), "la", **FAST)


def test_evaluation_goes_by_the_names_that_the_classifier_knows():
    model = srepr.retrain(network(), (INPUTS, WORDS), "la", **FAST)
    some = LABELS > 1
    words = [word for word, kept in zip(WORDS, some, strict=True) if kept]
    by_number = srepr.evaluate(model, (INPUTS[some], LABELS[some]), COUNTS)
    assert srepr.evaluate(model, (INPUTS[some], words), COUNTS) == by_number
    assert srepr.evaluate(model.model, (INPUTS, WORDS), COUNTS) == srepr.evaluate(model, (INPUTS, LABELS), COUNTS)
    with pytest.raises(InputError, match="the data names 2 classes, and the classifier has 4"):
        srepr.evaluate(model.model, (INPUTS[some], words), COUNTS)

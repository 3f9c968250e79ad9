"""Whatever network and data people bring: both stages, an own loop and a collected posterior work on them.

The networks are those of tests/zoo.py. That stage 2 sees what it should is checked against `srepr.retrain` on bare
embeddings, which the tests take from the network with a hook, and the new logits against float64 numpy.
"""

import copy
import functools
import os
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.zoo import LABELS, ZOO, Mlp, ResNet, loader, table
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

import srepr
from srepr.anymodel.network import prepare
from srepr.data.inputs import LoaderInputs
from srepr.data.loaders import split
from srepr.errors import InputError
from srepr.models import Cosine
from srepr.models.call import call
from srepr.models.split import duplicate

STAGE_2 = {"method": "srepr", "solver": "sgd", "epochs": 2, "samples": 2, "quiet": True}
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning", "ignore::UserWarning")


def fitted(model, data):
    return srepr.fit(
        model, data, epochs=5, lr=0.02, stage2_epochs=2, samples=2, method="srepr", solver="sgd", quiet=True
    )


def collected(model, data):
    return srepr.retrain(srepr.collect(model, data, epochs=2, lr=0.01, quiet=True), data, **STAGE_2)


def looped(model, data):
    """A user's own loop, which trains the model that it is given."""
    model.train()
    call(model, split(next(iter(data)))[0])  # without a batch lazy layers have no weights to optimise
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    posterior = srepr.Posterior(model)
    for _ in range(2):
        for inputs, labels in map(split, data):
            sgd.zero_grad()
            F.cross_entropy(call(model, inputs).float(), labels).backward()
            sgd.step()
        posterior.update(model)
    return srepr.retrain(posterior, data, **STAGE_2)


def tensors(model):
    return dict((*model.named_parameters(), *model.named_buffers()))


def generators():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def answer(model, inputs):
    """As a user calls the model; the same dropout each time where it is always on."""
    torch.manual_seed(0)
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def form(output):
    """The type of an answer, and the shapes in it."""
    if isinstance(output, torch.Tensor):
        return output.shape, output.dtype
    items = output.items() if isinstance(output, dict) else vars(output).items()
    return type(output), {key: form(value) for key, value in items if isinstance(value, torch.Tensor)}


def logits_in(output):
    if isinstance(output, torch.Tensor):
        return output
    return output["logits"] if isinstance(output, dict) else output.logits


def embeddings(model, name, inputs):
    """What the layer of that name is given; of a sequence the position that is pooled, or the mean."""
    seen = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    answer(model, inputs)
    hook.remove()
    if seen[0].dim() == 2:
        return seen[0]
    if type(model).__name__.startswith("GPT2"):
        return seen[0][torch.arange(len(LABELS)), inputs["attention_mask"].sum(1) - 1]
    return seen[0].mean(1)


def linear_or_cosine(head, x):
    """The logits of a head, in float64."""
    weight, x = (value.detach().double().numpy() for value in (head.weight, x))
    if isinstance(head, Cosine):
        unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, weight)]
        return head.scale.item() * unit[0] @ unit[1].T
    return x @ weight.T + (0 if head.bias is None else head.bias.detach().double().numpy())


def without_shift(logits):
    """A log-softmax moves all logits of an example by one number."""
    logits = np.asarray(logits, dtype=np.float64)
    return logits - logits.mean(1, keepdims=True)


def check_is_a_drop_in(better, model, case, inputs):
    answered = answer(better, inputs)
    assert form(answered) == form(answer(duplicate(model).eval(), inputs))
    logits = logits_in(answered)
    assert logits.isfinite().all()
    head = better.model.get_submodule(case.name)
    features = embeddings(better.model, case.name, inputs)
    expected = linear_or_cosine(getattr(head, "head", head), features)
    np.testing.assert_allclose(without_shift(logits), without_shift(expected), rtol=1e-4, atol=1e-4)


@pytest.fixture(params=ZOO)
def case(request):
    torch.manual_seed(1)
    return ZOO[request.param]


def test_fit_leaves_what_it_is_given_and_follows_from_the_seed(case):
    model, inputs = case.make(), case.inputs()
    before = {name: tensor.detach().clone() for name, tensor in tensors(model).items() if not is_lazy(tensor)}
    flags, moved = [module.training for module in model.modules()], generators()
    better, again = (fitted(model, loader(inputs)) for _ in range(2))
    assert generators() == moved
    assert [module.training for module in model.modules()] == flags
    for name, tensor in tensors(model).items():
        assert is_lazy(tensor) or torch.equal(tensor, before[name]), name
        assert tensor.grad is None
    for name, tensor in tensors(better).items():
        assert torch.equal(tensor, tensors(again)[name]), name
    if not any(map(is_lazy, model.parameters())):
        check_is_a_drop_in(better, model, case, inputs)


@pytest.mark.parametrize("way", [collected, looped])
def test_a_collected_posterior_and_an_own_loop_give_drop_ins(case, way):
    model, inputs = case.make(), case.inputs()
    call(model, split(next(iter(loader(inputs))))[0])
    better = way(model, loader(inputs))
    check_is_a_drop_in(better, model, case, inputs)


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("lenet", "one layer")])  # random; all embedding
def test_stage_2_is_that_of_the_bare_embeddings(name):
    case = ZOO[name]
    torch.manual_seed(1)
    model, inputs = case.make().eval(), case.inputs()
    data = loader(inputs, shuffle=False)
    call(model, split(next(iter(data)))[0])
    head = model.get_submodule(case.name)
    weight, bias = head.weight.detach(), getattr(head, "bias", None)
    layer = nn.Linear(*weight.shape[::-1])
    if "cosine" in name:
        layer = Cosine(weight if name == "cosine in linear" else weight.T, scale=16.0)
    else:
        factor = getattr(model, "factor", 1.0)
        layer.weight = nn.Parameter(factor * weight)
        layer.bias = None if bias is None else nn.Parameter(factor * bias.detach())
    x = embeddings(model, case.name, inputs)
    expected = srepr.retrain(layer, (x, LABELS), "la", epochs=2)
    got = srepr.retrain(model, data, "la", epochs=2)
    np.testing.assert_allclose(
        logits_in(answer(got, inputs)), linear_or_cosine(expected.model, x), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["resnet", "lstm", "weight norm"])
def test_a_precision_is_kept_and_trained_in_float32_at_least(name, dtype):
    torch.manual_seed(1)
    model, inputs = ZOO[name].make().to(dtype), ZOO[name].inputs()
    better = fitted(model, loader(inputs))
    expected = fitted(copy.deepcopy(model).to(torch.promote_types(dtype, torch.float32)), loader(inputs))
    dtypes = {key: tensor.dtype for key, tensor in tensors(model).items()}
    assert all(dtypes.get(key, dtype) == tensor.dtype for key, tensor in tensors(better.model).items())
    # Compared in a precision that every processor runs.
    logits, expected = (answer(module.double(), placed(inputs, torch.float64)) for module in (better, expected))
    assert (logits - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()


def placed(inputs, dtype):
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def compiled_inside(model):
    model.layer1 = torch.compile(model.layer1, backend="eager")
    return model


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "compiled inside": compiled_inside,
    "compiled in place": compiled_in_place,
    "DataParallel": nn.DataParallel,
    "AveragedModel": AveragedModel,
    "compiled DataParallel": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("name", [name for name in ZOO if name != "lazy"])  # which has no weights yet
def test_every_network_is_re_trained_exactly_at_the_defaults(name):
    """The defaults of `srepr.retrain`: no option but the data."""
    entry = ZOO[name]
    torch.manual_seed(0)
    inputs = entry.inputs()
    better = srepr.retrain(entry.make(), loader(inputs))
    with torch.no_grad():
        assert call(better, inputs).isfinite().all()


@pytest.mark.parametrize("way", [fitted, looped])
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_change_nothing(wrap, way):
    torch.testing.assert_close(wrapped_logits(wrap, way), wrapped_logits(None, way))


@functools.cache
def wrapped_logits(wrap, way):
    inputs = ZOO["resnet"].inputs()
    torch.manual_seed(1)
    model = ResNet() if wrap is None else wrap(ResNet())
    torch.manual_seed(2)
    return answer(way(model, loader(inputs)), inputs)


def distributed(rank, world, folder):
    """A process of a distributed training: an own loop on its share of the data, then stage 2 in the first."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(ResNet())
    inputs = ZOO["resnet"].inputs()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    posterior = srepr.Posterior(model)
    for _ in range(2):
        sgd.zero_grad()
        F.cross_entropy(model(inputs[rank::world]), LABELS[rank::world]).backward()
        sgd.step()
        posterior.update(model)
    torch.save(posterior.mean(), f"{folder}/{rank}.pt")
    if rank == 0:
        better = srepr.retrain(posterior, loader(inputs), **STAGE_2)
        torch.save(answer(better, inputs), f"{folder}/logits.pt")
    os._exit(0)  # now and then the destructor of a process group waits for ever for its threads


@pytest.mark.parametrize("world", [1, 2])
def test_distributed_data_parallel(world, tmp_path):
    torch.multiprocessing.start_processes(distributed, (world, tmp_path), world, start_method="fork")
    means = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    assert list(means[0]) == list(dict(ResNet().named_parameters()))
    assert all(torch.equal(means[0][name], means[-1][name]) for name in means[0])
    assert torch.load(tmp_path / "logits.pt").isfinite().all()


class TwoHeads(Mlp):
    """Which of the two makes the logits cannot be seen: they are averaged."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 4)

    def forward(self, x):
        x = self.hidden(x)
        return (self.last(x) + self.other(x)) / 2


def test_two_heads_are_named_with_the_argument_that_chooses():
    model, data = TwoHeads(), loader(table())
    posterior = srepr.Posterior(model)
    posterior.update(model)
    for run in (
        lambda **options: srepr.fit(model, data, epochs=5, quiet=True, **options),
        lambda **options: srepr.collect(model, data, epochs=2, lr=0.01, quiet=True, **options),
        lambda **options: srepr.retrain(posterior, data, "la", **options),
    ):
        with pytest.raises(InputError, match=r'could be last or other: choose one with classifier="other"$'):
            run()
        with pytest.raises(InputError, match=r"classifier='top' is not a linear layer of the model: choose from"):
            run(classifier="top")
    with pytest.raises(InputError, match="something else than logits of the output of other"):
        srepr.retrain(posterior, data, "la", classifier="other")


def test_the_layer_that_runs_is_believed_over_the_one_that_is_called_fc():
    """The structure says `fc`, a projection that no logit comes from; a batch says `out`."""

    class Projecting(Mlp):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 16)

        def forward(self, x):
            x = self.hidden(x)
            return self.last(x), self.fc(x)

    model, data = Projecting(), loader(table())
    posterior = srepr.Posterior(model)
    posterior.update(model)
    assert posterior.classifier == "fc"
    better = srepr.retrain(posterior, data, "la", epochs=1)
    assert not torch.equal(better.last.weight, model.last.weight)
    assert torch.equal(better.fc.weight, model.fc.weight)


class Ending(Mlp):
    """Something is done to the output of the last layer."""

    def __init__(self, end, last=None):
        super().__init__(last)
        self.end = end

    def forward(self, x):
        return self.end(super().forward(x))


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (lambda: Ending(lambda z: z.softmax(1)), "something else than logits of the output of last, by a softmax"),
        (lambda: Ending(lambda z: z * torch.arange(1.0, 5.0)), "something else than logits"),
        (lambda: Ending(lambda z: z / 0), "the logits of the model are not finite"),
        (lambda: Mlp(Quadratic(8, 4)), "'last', a Quadratic, is neither W x \\+ b nor a cosine"),
        (lambda: nn.Sequential(nn.Conv1d(6, 4, 1)), "has no linear layer"),
    ],
)
def test_what_cannot_be_re_trained_is_refused_by_name(model, complaint):
    with pytest.raises(InputError, match=complaint):
        srepr.retrain(model(), loader(table()), "la")


class Quadratic(nn.Linear):
    def forward(self, x):
        return super().forward(x) ** 2


def test_lazy_layers_need_a_batch_before_a_posterior():
    with pytest.raises(InputError, match="run one batch through it first"):
        srepr.Posterior(ZOO["lazy"].make())


def test_a_posterior_that_was_tied_to_the_classifier_is_drawn_from():
    """Two captures of a tied weight differ by 2, so draws of the embedding spread by 1, and the features with them."""
    torch.manual_seed(1)
    model, inputs = ZOO["tied classifier"].make(), ZOO["tied classifier"].inputs()
    posterior = srepr.Posterior(model)
    for _ in range(2):
        posterior.update(model)
        with torch.no_grad():
            model.embedding.weight += 2
    ready = prepare(posterior, LoaderInputs(loader(inputs), 0), None)
    draw = ready.posterior.draw(torch.Generator().manual_seed(0))
    spread = draw["embedding.weight"] - ready.posterior.mean()["embedding.weight"]
    assert 0.5 < spread.std() < 1.5
    assert torch.equal(draw["classifier.weight"], ready.posterior.mean()["classifier.weight"])
    assert torch.equal(draw["body.weight"], model.body.weight)

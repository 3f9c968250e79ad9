"""Features: the fast path against a plain loop, and a cache that is trusted exactly when it should be."""

import copy
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from srepr import features as features_module
from srepr.config import Retrain
from srepr.data.examples import ArrayExamples
from srepr.data.inputs import ExampleInputs, LoaderInputs
from srepr.errors import InputError
from srepr.features import EpochFeatures, Given, NetworkFeatures, Source, sources
from srepr.models import hardware, resnet8, resnet32
from srepr.models.batchnorm import update_batchnorm
from srepr.models.hardware import compile_failure, runner
from srepr.models.mlp import mlp
from srepr.posterior import Posterior
from srepr.storage.arrays import ArrayFolder
from srepr.storage.files import read_json

N, CLASSES = 100, ("a", "b", "c")
CHANCE = np.random.default_rng(0)
LABELS = np.repeat([0, 1, 2], [79, 20, 1])
VECTORS = ArrayExamples(CHANCE.normal(size=(N, 6)).astype(np.float32), LABELS, CLASSES)
IMAGES = ArrayExamples(
    CHANCE.integers(0, 256, (N, 3, 12, 12), dtype=np.uint8), LABELS, CLASSES, (0.5,) * 3, (0.25,) * 3, padding=2
)
TINY = Retrain(samples=2)


def around(network, spread=0.05):
    """The network at the mean of three captures, with BatchNorm statistics of its own, and their posterior."""
    generator, posterior = torch.Generator().manual_seed(0), Posterior(network)
    for _ in range(3):
        capture = copy.deepcopy(network)
        with torch.no_grad():
            for parameter in capture.parameters():
                parameter += spread * torch.randn(parameter.shape, generator=generator)
        posterior.update(capture)
    posterior.apply_mean(network)
    examples = IMAGES if isinstance(next(network.children()), nn.Conv2d) else VECTORS
    update_batchnorm(network, [examples.load(np.arange(N))])
    return network.eval(), posterior


@pytest.fixture(scope="module")
def perceptron():
    torch.manual_seed(0)
    return around(mlp(3, inputs=6, width=8, dropout=0.5))


class Counted(ExampleInputs):
    """Inputs that know how often they were swept."""

    sweeps = 0

    def sweep(self, view):
        Counted.sweeps += 1
        return super().sweep(view)


def everything(epoch):
    """All of an epoch: [M, N, L] and [N, L]."""
    return epoch.batch(np.arange(len(epoch.labels)))


def features_of(pair, inputs, settings=TINY, representation="swag", folder=None, **options):
    """Of a network and its posterior; in a temporary folder unless there is one."""
    return NetworkFeatures(*pair, inputs, ArrayFolder(folder), representation, settings, quiet=True, **options)


def made(pair, folder, settings=TINY, examples=VECTORS, inputs=None, **options):
    """All features of epoch 0, kept in the folder, and how many sweeps that took."""
    before = Counted.sweeps
    source = features_of(pair, inputs or Counted(examples, seed=0), settings, folder=folder, **options)
    return everything(source.epoch(0)), Counted.sweeps - before


def files(folder):
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.iterdir()}


# The fast path


@pytest.fixture
def drawn(monkeypatch):
    """Every draw that is made, in order: what the plain loop loads."""
    draws, draw = [], Posterior.draw
    monkeypatch.setattr(Posterior, "draw", lambda self, generator: draws.append(draw(self, generator)) or draws[-1])
    return draws


@pytest.mark.parametrize(
    ("build", "batchnorm"),
    [
        (partial(resnet8, 3, shortcut="A"), "recalibrate"),
        (partial(resnet8, 3, shortcut="A"), "reuse"),
        (partial(resnet8, 3, shortcut="B"), "recalibrate"),
        (partial(resnet32, 3, shortcut="A"), "recalibrate"),
        (partial(resnet32, 3, shortcut="B"), "recalibrate"),
        (partial(mlp, 3, inputs=6, width=16, dropout=0.5), "recalibrate"),
        (partial(mlp, 3, inputs=6, width=16, dropout=0.5), "reuse"),
    ],
)
def test_the_fast_path_is_the_plain_loop(build, batchnorm, drawn):
    """Draw, load, recompute BatchNorm, run: one network after the other, as it says in the paper."""
    torch.manual_seed(0)
    network, posterior = around(build(), spread=0.02)
    inputs = ExampleInputs(IMAGES if build.func is not mlp else VECTORS, seed=1)
    settings = Retrain(samples=2, batchnorm=batchnorm, seed=1)
    stochastic, mean = everything(features_of((network, posterior), inputs, settings).epoch(0))
    plain = []
    for weights in (posterior.mean(), *drawn):
        body = copy.deepcopy(network)
        body.load_state_dict({**network.state_dict(), **weights})
        if plain and batchnorm == "recalibrate":
            update_batchnorm(body, inputs.calibration(4000))
        with torch.no_grad():
            plain.append(torch.cat([body.features(x) for x, _ in inputs.sweep(0)]))
    assert len(drawn) == 2
    torch.testing.assert_close(torch.stack([mean, *stochastic]), torch.stack(plain), atol=1e-4, rtol=1e-4)
    assert (plain[1] - plain[2]).abs().max() > 0.01


def test_without_spread_every_draw_is_the_mean():
    network = mlp(3, inputs=6, width=8).eval()
    posterior = Posterior(network)
    posterior.update(network)
    inputs, settings = ExampleInputs(VECTORS, seed=0), Retrain(samples=3, batchnorm="reuse")
    stochastic, mean = everything(features_of((network, posterior), inputs, settings).epoch(0))
    assert torch.equal(stochastic, mean.expand(3, -1, -1))


def test_convolutions_of_volumes_have_no_channels_last_and_work():
    network = nn.Sequential(
        nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    volumes = torch.randn(20, 1, 4, 4, 4)
    posterior = Posterior(network)
    posterior.update(network)
    inputs = LoaderInputs([(volumes, torch.arange(20) % 2)], seed=0)
    _, mean = everything(features_of((network.eval(), posterior), inputs).epoch(0))
    torch.testing.assert_close(mean, network[:-1](volumes).detach())


def test_one_graph_serves_every_draw_with_its_own_weights_and_statistics(perceptron, monkeypatch):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    inputs, settings = ExampleInputs(VECTORS, seed=0), Retrain(samples=4)
    expected = everything(features_of(perceptron, inputs, settings).epoch(0))
    monkeypatch.setattr(hardware, "compile_failure", str)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    source = features_of(perceptron, inputs, settings, compiled=True)
    torch.testing.assert_close(everything(source.epoch(0)), expected)
    assert len(graphs) == 1


def test_compiled_features_are_the_same(perceptron):
    if failure := compile_failure():
        pytest.skip(f"torch.compile does not work here ({failure})")
    inputs = ExampleInputs(VECTORS, seed=0)
    plain, fast = (
        everything(features_of(perceptron, inputs, compiled=compiled).epoch(0)) for compiled in (False, True)
    )
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)


def test_without_a_compiler_one_line_says_so(perceptron, tmp_path, monkeypatch, capsys):
    expected, _ = made(perceptron, tmp_path / "plain")
    monkeypatch.setattr(hardware, "compile_failure", lambda: "CppCompileError: is a C++ compiler installed?")
    found, _ = made(perceptron, tmp_path / "compiled", compiled=True)
    said = capsys.readouterr().err
    assert said == "srepr: continuing without compiling (CppCompileError: is a C++ compiler installed?)\n"
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_nothing_to_compile_is_not_compiled():
    """The labels alone may be missing from a cache."""
    assert runner([], compiled=True)(torch.zeros(3, 2)) == []


# Views, draws and epochs


def test_augmented_representations_are_the_mean_network_on_different_views():
    torch.manual_seed(0)
    network, posterior = around(resnet8(3))
    inputs, settings = ExampleInputs(IMAGES, seed=0), Retrain(samples=3)
    stochastic, mean = everything(features_of((network, posterior), inputs, settings, "augment").epoch(0))
    with torch.no_grad():
        views = [torch.cat([network.features(x) for x, _ in inputs.sweep(view)]) for view in range(4)]
    torch.testing.assert_close(torch.stack([mean, *stochastic]), torch.stack(views), atol=1e-4, rtol=1e-4)
    assert all((views[i] - views[j]).abs().max() > 0.01 for i in range(4) for j in range(i))


def test_kept_draws_are_the_same_in_every_epoch_and_views_take_turns():
    torch.manual_seed(0)
    source = features_of(around(resnet8(3)), ExampleInputs(IMAGES, seed=0), Retrain(samples=2, views=2))
    epochs = [everything(source.epoch(number)) for number in range(3)]
    torch.testing.assert_close(epochs[0], epochs[2], rtol=0, atol=0)
    assert (epochs[0][0] - epochs[1][0]).abs().max() > 0.01
    assert (epochs[0][1] - epochs[1][1]).abs().max() > 0.01


def test_on_the_fly_every_epoch_has_its_own_draws_and_view_and_none_is_kept():
    torch.manual_seed(0)
    pair, inputs = around(resnet8(3)), ExampleInputs(IMAGES, seed=0)
    settings = Retrain(samples=2, solver="sgd", on_the_fly=True)
    source = features_of(pair, inputs, settings)
    epochs = [everything(source.epoch(number)) for number in range(2)]
    for before, after in zip(*epochs, strict=True):
        assert (before - after).abs().max() > 0.01
    assert [source.read(of) is None for of in sources("swag", settings, 0)] == [True] * 3
    assert source.read_labels(0) is None
    torch.testing.assert_close(everything(features_of(pair, inputs, settings).epoch(1)), epochs[1], rtol=0, atol=0)
    torch.testing.assert_close(everything(features_of(pair, inputs).epoch(0)), epochs[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("representation", "settings", "epoch", "expected"),
    [
        ("deterministic", Retrain(views=2), 5, [Source(1)]),
        ("deterministic", Retrain(solver="sgd", on_the_fly=True), 5, [Source(5)]),
        ("swag", TINY, 5, [Source(0), Source(0, (0, 0)), Source(0, (0, 1))]),
        ("swag", Retrain(samples=1, views=3), 5, [Source(2), Source(2, (0, 0))]),
        ("swag", Retrain(samples=1, solver="sgd", on_the_fly=True), 5, [Source(5), Source(5, (5, 0))]),
        ("augment", Retrain(samples=2, views=2), 5, [Source(3), Source(4), Source(5)]),
        ("augment", Retrain(samples=1, solver="sgd", on_the_fly=True), 5, [Source(10), Source(11)]),
    ],
)
def test_an_epoch_reads_the_average_first_and_then_its_representations(representation, settings, epoch, expected):
    """Kept draws are those of epoch 0, kept views take turns; on the fly both are the epoch's own."""
    assert sources(representation, settings, epoch) == expected


def test_the_draws_follow_the_seed(perceptron, tmp_path):
    first, second = (made(perceptron, tmp_path, replace(TINY, seed=seed))[0] for seed in (0, 1))
    assert torch.equal(first[1], second[1])
    assert (first[0] - second[0]).abs().max() > 0.01
    assert (first[0][0] - first[0][1]).abs().max() > 0.01


def test_views_in_different_orders_are_refused(perceptron):
    data = torch.utils.data.TensorDataset(torch.from_numpy(VECTORS.inputs), torch.from_numpy(LABELS))
    inputs = LoaderInputs(torch.utils.data.DataLoader(data, batch_size=10, shuffle=True), seed=0)
    source = features_of(perceptron, inputs, representation="augment")
    with pytest.raises(InputError, match="Pass a loader that does not shuffle"):
        source.epoch(0)


# The cache


def test_what_is_kept_is_read_and_not_made_again(perceptron, tmp_path):
    first, sweeps = made(perceptron, tmp_path)
    before = files(tmp_path)
    again, more = made(perceptron, tmp_path)
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert (sweeps, more) == (1, 0)
    assert files(tmp_path) == before


def test_more_draws_leave_the_first_ones_alone(perceptron, tmp_path):
    two, _ = made(perceptron, tmp_path)
    before = files(tmp_path)
    three, sweeps = made(perceptron, tmp_path, Retrain(samples=3))
    assert sweeps == 1
    assert torch.equal(three[0][:2], two[0])
    after = files(tmp_path)
    labels = {name for name in before if before[name] != after[name]}
    assert {read_json(tmp_path / name)["source"] for name in labels if name.endswith(".json")} == {"labels"}
    deterministic, sweeps = made(perceptron, tmp_path, representation="deterministic")
    assert sweeps == 0
    assert torch.equal(deterministic[0][0], deterministic[1])
    assert torch.equal(deterministic[1], two[1])


def other_network(change):
    def changed(network, posterior, examples, settings):
        network = copy.deepcopy(network)
        change(dict(network.named_parameters()) | dict(network.named_buffers()))
        return network, posterior, examples, settings

    return changed


def other_moments(which):
    def changed(network, posterior, examples, settings):
        moments = {"mean": posterior.mean(), "variance": posterior.variance()}
        moments[which]["hidden.0.weight"][2, 3] += 0.5
        other = Posterior.from_moments(network, **moments, count=3, classifier="fc")
        return network, other, examples, settings

    return changed


def other_examples(**change):
    return lambda network, posterior, examples, settings: (network, posterior, replace(examples, **change), settings)


def other_settings(**change):
    return lambda network, posterior, examples, settings: (network, posterior, examples, replace(settings, **change))


@pytest.mark.parametrize(
    "changed",
    [
        other_network(lambda tensors: tensors["hidden.0.weight"].data[0, 0].mul_(1.001)),
        other_network(lambda tensors: tensors["hidden.1.running_var"][0].mul_(1.001)),
        other_moments("mean"),
        other_moments("variance"),
        other_examples(inputs=VECTORS.inputs + np.eye(N, 6, dtype=np.float32)),
        other_examples(labels=np.roll(LABELS, 1)),
        other_examples(mean=(0.1,)),
        other_settings(seed=1),
        other_settings(batchnorm="reuse"),
        other_settings(calibration=20_000),
    ],
    ids=[
        "weight",
        "BatchNorm statistic",
        "mean of the draws",
        "variance of the draws",
        "inputs",
        "labels",
        "preprocessing",
        "seed of the draws",
        "BatchNorm of the draws",
        "calibration",
    ],
)
def test_whatever_has_changed_is_made_again(perceptron, tmp_path, changed):
    """Beside a cache of the old, the answer is that of an empty cache; and the old is still there."""
    old, _ = made(perceptron, tmp_path / "cache")
    *parts, examples, settings = changed(*perceptron, VECTORS, TINY)
    found, sweeps = made(parts, tmp_path / "cache", settings, examples)
    assert sweeps == 1
    scratch, _ = made(parts, tmp_path / "scratch", settings, examples)
    torch.testing.assert_close(found, scratch, rtol=0, atol=0)
    back, sweeps = made(perceptron, tmp_path / "cache")
    assert sweeps == 0
    torch.testing.assert_close(back, old, rtol=0, atol=0)


def test_another_augmentation_is_made_again(tmp_path):
    torch.manual_seed(0)
    pair = around(resnet8(3))
    ways = [
        Counted(IMAGES, seed=0),
        Counted(IMAGES, seed=1),
        Counted(IMAGES, seed=0, augment=False),
        Counted(replace(IMAGES, padding=1), seed=0),
        Counted(replace(IMAGES, flip=True), seed=0),
    ]
    results = [made(pair, tmp_path, inputs=inputs, representation="deterministic") for inputs in ways]
    assert [sweeps for _, sweeps in results] == [1] * 5
    assert len({mean.numpy().tobytes() for (_, mean), _ in results}) == 5
    again = [made(pair, tmp_path, inputs=inputs, representation="deterministic")[1] for inputs in ways]
    assert again == [0] * 5


@pytest.mark.parametrize("harm", ["shortened", "lengthened", "gone", "undescribed"])
@pytest.mark.parametrize("source", ["mean", "draw 1 of epoch 0", "labels"])
def test_a_file_that_is_not_whole_is_made_again(perceptron, tmp_path, harm, source):
    first, _ = made(perceptron, tmp_path)
    about = next(file for file in tmp_path.glob("*.json") if read_json(file)["source"] == source)
    kept = about.with_suffix(".bin")
    match harm:
        case "shortened":
            kept.write_bytes(kept.read_bytes()[: -8 * 4])
        case "lengthened":
            kept.write_bytes(kept.read_bytes() * 2)
        case "gone":
            kept.unlink()
        case "undescribed":
            about.unlink()
    again, sweeps = made(perceptron, tmp_path)
    assert sweeps == 1
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_an_error_leaves_nothing_behind(perceptron, tmp_path):
    class Broken(ExampleInputs):
        def sweep(self, view):
            yield next(super().sweep(view))
            raise InputError("cat.jpg is not an image")

    with pytest.raises(InputError, match=r"cat\.jpg"):
        made(perceptron, tmp_path, inputs=Broken(VECTORS, seed=0))
    assert not list(tmp_path.iterdir())


def test_the_data_of_a_draws_batchnorm_decide_the_draw_and_not_the_average(perceptron, tmp_path):
    (_, before), _ = made(perceptron, tmp_path)
    other = ExampleInputs(replace(VECTORS, inputs=2 * VECTORS.inputs), seed=0)
    (stochastic, after), sweeps = made(perceptron, tmp_path, calibration=other)
    assert sweeps == 1
    assert torch.equal(after, before)
    assert (stochastic - made(perceptron, tmp_path)[0][0]).abs().max() > 0.01
    assert made(perceptron, tmp_path, calibration=other)[1] == 0


# Large features


def resident_bytes(folder):
    """How much of the files of a folder this process has in memory, as the kernel counts."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    return sum(1024 * int(re.search(r"^Rss: +(\d+)", block, re.M)[1]) for block in blocks if str(folder) in block)


def test_large_features_are_kept_in_half_precision_and_their_pages_given_back(perceptron, tmp_path, monkeypatch):
    full, _ = made(perceptron, tmp_path / "full")
    monkeypatch.setattr(features_module, "LARGE_BYTES", 4 * 3 * N * 8 - 1)
    inputs = ExampleInputs(VECTORS, seed=0)
    epoch = features_of(perceptron, inputs, folder=tmp_path / "half").epoch(0)
    assert {array.dtype for array in (*epoch.stochastic, epoch.mean)} == {np.dtype(np.float16)}
    assert sorted(file.stat().st_size for file in (tmp_path / "half").glob("*.bin")) == [8 * N, *[2 * 8 * N] * 3]
    half = everything(epoch)
    assert {tensor.dtype for tensor in half} == {torch.float32}
    torch.testing.assert_close(half, full, rtol=1e-3, atol=1e-4)
    assert resident_bytes(tmp_path / "half") > 0  # half of LARGE_BYTES: not worth giving back
    monkeypatch.setattr(features_module, "LARGE_BYTES", 2 * 3 * N * 8 - 1)
    torch.testing.assert_close(everything(epoch), half, rtol=0, atol=0)
    assert resident_bytes(tmp_path / "half") <= 4096  # the labels, which are not features


def test_exactly_large_is_not_too_large(perceptron, monkeypatch):
    monkeypatch.setattr(features_module, "LARGE_BYTES", 4 * 3 * N * 8)
    source = features_of(perceptron, ExampleInputs(VECTORS, seed=0))
    assert source.dtype is np.float32


@pytest.mark.parametrize(("scale", "large"), [(float("nan"), 1 << 30), (1e8, 0)])
def test_features_that_are_no_numbers_are_refused_and_not_kept(tmp_path, monkeypatch, scale, large):
    """NaN in any precision, and what float16 cannot hold."""
    monkeypatch.setattr(features_module, "LARGE_BYTES", large)
    network = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    posterior = Posterior(network)
    posterior.update(network)
    network[0].weight.data *= scale
    with pytest.raises(InputError, match="not finite, or too large for float16"):
        made((network, posterior), tmp_path, representation="deterministic")
    assert not list(tmp_path.iterdir())


# Features that a user has


def test_given_features_are_what_was_given():
    stack = CHANCE.normal(size=(3, 5, 2)).astype(np.float32)
    labels = np.array([0, 1, 2, 0, 1])
    indices = np.array([4, 0, 4])
    stochastic, mean = Given(stack, labels).epoch(7).batch(indices)
    np.testing.assert_array_equal(stochastic, stack[:, indices])
    np.testing.assert_allclose(mean, stack.astype(np.float64).mean(0)[indices], rtol=1e-6, atol=1e-7)
    stochastic, mean = Given(stack[0], labels).epoch(0).batch(indices)
    np.testing.assert_array_equal(stochastic, stack[:1, indices])
    np.testing.assert_array_equal(mean, stack[0, indices])


@pytest.mark.parametrize("shape", [(5,), (4, 2), (3, 4, 2), (5, 3, 2), (1, 3, 5, 2)])
def test_given_features_that_do_not_fit_the_labels_are_refused(shape):
    with pytest.raises(InputError, match=r"and 5 labels do not fit: pass \[N, L\] or \[M, N, L\]"):
        Given(np.zeros(shape, dtype=np.float32), np.zeros(5, dtype=np.int64)).epoch(0)


def test_a_batch_is_a_copy():
    array = np.zeros((3, 2), dtype=np.float32)
    stochastic, mean = EpochFeatures(np.zeros(3, dtype=np.int64), [array], array).batch(np.arange(3))
    stochastic += 1
    mean += 1
    assert not array.any()

"""Stochastic representations: M feature extractors drawn from the posterior, run over the data (paper, section 3.2).

    F_m(x),  theta_m ~ q(theta) = N(mean, diag(variance)),  m = 1..M

The network is frozen, so the draws can be kept: each is run over the data once, and every epoch of every head reads
the features from files. A file is named by a fingerprint of all that made it (weights, draw, data, augmentation, seed)
and is trusted only when its description, written last, is there: what has changed is made again.
"""

from __future__ import annotations

import copy
import hashlib
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from srepr import runs
from srepr.batches import call, to_device
from srepr.data.longtail import Indices, Labels
from srepr.devices import compile_failure, default_device
from srepr.errors import InputError
from srepr.inputs import Inputs
from srepr.methods import Representation
from srepr.models.batchnorm import update_batchnorm
from srepr.models.fold import fold_batchnorm
from srepr.models.split import feature_extractor
from srepr.posterior import Posterior
from srepr.progress import Progress

Array = npt.NDArray[Any]

LARGE_BYTES = 1 << 30  # of features: beyond, they are kept as float16, and their pages are given back after reading
FORMAT = 1


@dataclass(frozen=True)
class EpochFeatures:
    """What stage 2 sees in one epoch: the labels, and for any of the examples their representations.

    >>> features = EpochFeatures(np.array([0, 1]), [np.eye(2, dtype=np.float32)], np.eye(2, dtype=np.float32))
    >>> stochastic, mean = features.batch(np.array([1]))
    >>> stochastic.shape, mean.shape
    (torch.Size([1, 1, 2]), torch.Size([1, 2]))
    """

    labels: Labels
    stochastic: Sequence[Array]
    """M arrays [N, L]."""
    mean: Array
    """[N, L], by the averaged weights."""

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The representations [M, B, L] and the features of the averaged network [B, L]."""
        large = sum(array.nbytes for array in (*self.stochastic, self.mean)) > LARGE_BYTES

        def rows(array: Array) -> Array:
            taken: Array = array[indices]
            if large and isinstance(array, np.memmap):  # at once: the system may map megabytes around every row
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            return taken

        stochastic = torch.from_numpy(np.stack([rows(array) for array in self.stochastic])).float()
        return stochastic, torch.from_numpy(rows(self.mean)).float()


class FeatureSource(Protocol):
    """Where stage 2 gets its features from: the networks, by way of a cache, or a user's own arrays."""

    def epoch(self, number: int) -> EpochFeatures:
        """The features for that epoch."""


@dataclass(frozen=True)
class Given:
    """Features that a user hands in: [N, L], or [M, N, L], whose mean over M stands for the averaged network.

    >>> Given(np.zeros((3, 5, 2), dtype=np.float32), np.zeros(5, dtype=np.int64)).epoch(0).mean.shape
    (5, 2)
    """

    features: Array
    labels: Labels

    def __post_init__(self) -> None:
        if self.features.ndim not in (2, 3) or self.features.shape[-2] != len(self.labels):
            raise InputError(
                f"features {self.features.shape} and {len(self.labels)} labels do not fit: pass [N, L] or [M, N, L]."
            )

    def epoch(self, number: int) -> EpochFeatures:
        """The same in every epoch."""
        return self._features

    @cached_property
    def _features(self) -> EpochFeatures:
        if self.features.ndim == 2:
            return EpochFeatures(self.labels, [self.features], self.features)
        return EpochFeatures(self.labels, list(self.features), self.features.mean(0, dtype=np.float32))


Source = tuple[str, int]
"""Which network ("mean", "draw 3 of epoch 0"), and which view of the data."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the representations of an example are made.

    >>> Sampling(samples=2).sources(epoch=5)
    [('mean', 0), ('draw 0 of epoch 0', 0), ('draw 1 of epoch 0', 0)]
    >>> Sampling(samples=2, fresh=True).sources(epoch=5)
    [('mean', 5), ('draw 0 of epoch 5', 5), ('draw 1 of epoch 5', 5)]
    """

    representation: Representation = "swag"
    """deterministic (the averaged network alone), swag (draws of the weights), augment (views of the input)."""
    samples: int = 10
    """M."""
    views: int = 1
    """Augmented views of the data, which the epochs take in turn."""
    fresh: bool = False
    """On the fly: new draws and a new view in every epoch, nothing kept (the paper's literal procedure)."""
    batchnorm: str = "recalibrate"
    """recalibrate (each draw has BatchNorm statistics of its own) or reuse (those of the averaged network)."""
    calibration: int = 4000
    """Training examples for a draw's own statistics, about."""
    seed: int = 0
    """Decides the draws."""

    def sources(self, epoch: int) -> list[Source]:
        """What an epoch reads: the averaged network's features first, then the M representations, where M > 1."""
        view = epoch if self.fresh else epoch % self.views
        if self.representation == "swag":
            drawn = epoch if self.fresh else 0
            return [("mean", view), *((f"draw {m} of epoch {drawn}", view) for m in range(self.samples))]
        if self.representation == "augment":
            first = view * (self.samples + 1)
            return [("mean", first + m) for m in range(self.samples + 1)]
        return [("mean", view)]


class NetworkFeatures:
    """The features of a network and of draws around it, made when an epoch first asks for them and then kept.

    With a `folder`, what was made stays there for every later head and call; without one it lives in a temporary
    folder as long as this object.

    >>> from srepr.data import load
    >>> from srepr.inputs import ExampleInputs
    >>> from srepr.models import resnet8
    >>> network = resnet8(10, channels=1)
    >>> posterior = Posterior(network)
    >>> posterior.update(network)
    >>> inputs = ExampleInputs(load("digits-lt").train, seed=0)
    >>> features = NetworkFeatures(network, posterior, inputs, Sampling(samples=2), quiet=True)
    >>> features.epoch(0).batch(np.arange(8))[0].shape
    torch.Size([2, 8, 64])
    """

    def __init__(
        self,
        network: nn.Module,
        posterior: Posterior,
        inputs: Inputs,
        sampling: Sampling,
        *,
        calibration: Inputs | None = None,
        folder: Path | None = None,
        device: torch.device | None = None,
        compiled: bool = False,
        quiet: bool = False,
    ) -> None:
        """`network` has the averaged weights and their BatchNorm statistics; `posterior` is drawn from.

        A draw's own BatchNorm statistics are those of `calibration`: of the training data where other data are swept.
        """
        assert posterior.classifier is not None
        self.network, self.posterior, self.inputs, self.sampling = network, posterior, inputs, sampling
        self.device, self.compiled, self.quiet = device or default_device(), compiled, quiet
        self.calibration = inputs if calibration is None else calibration
        unknown = None in (inputs.fingerprint(), self.calibration.fingerprint())
        if folder is None or sampling.fresh or unknown:
            self._temporary = tempfile.TemporaryDirectory()
            folder = Path(self._temporary.name)
        self.folder = folder
        self.length = feature_length(network, posterior.classifier)

    def epoch(self, number: int) -> EpochFeatures:
        """The features for that epoch."""
        if self.sampling.fresh:
            self.forget()
        sources = self.sampling.sources(number)
        views = sorted({view for _, view in sources})
        for view in views:
            missing = [source for source in sources if source[1] == view and not self.is_kept(source)]
            if missing or not self.is_kept(("labels", view)):
                self.make(missing, view)
        mean, *stochastic = (self.read(source) for source in sources)
        labels, *others = (np.asarray(self.read(("labels", view))) for view in views)
        if not all(np.array_equal(labels, other) for other in others):
            raise InputError("the views of the data come in different orders. Pass a loader that does not shuffle.")
        return EpochFeatures(labels, stochastic or [mean], mean)

    def make(self, sources: Sequence[Source], view: int) -> None:
        """Sweep the data once under one view, through all the networks that are asked for, and keep what comes out."""
        self.folder.mkdir(parents=True, exist_ok=True)
        run = runner([self.extractor(name) for name, _ in sources], compiled=self.compiled)
        with ExitStack() as stack:
            files = {}
            for source in [*sources, ("labels", view)]:
                partial = self.folder / f".{self.path(source).name}.{os.getpid()}.partial"
                stack.callback(partial.unlink, missing_ok=True)
                files[source] = stack.enter_context(partial.open("wb"))
            progress = stack.enter_context(
                Progress(f"features ({len(sources)} networks)", total=len(self.inputs), quiet=self.quiet)
            )
            for inputs, labels in self.inputs.sweep(view):
                with torch.inference_mode():
                    outputs = run(to_device(inputs, self.device))
                for source, features in zip(sources, outputs, strict=True):
                    files[source].write(self.stored(features).tobytes())
                files["labels", view].write(labels.cpu().numpy().astype(np.int64).tobytes())
                progress.advance(len(labels))
            for source, file in files.items():
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(self.path(source))
                about = {**self.made_of(source), "bytes": file.tell()}
                runs.write_json(self.path(source).with_suffix(".json"), about)

    def extractor(self, name: str) -> nn.Module:
        """The feature extractor of that name, folded and laid out for speed where the network allows it."""
        body = self.body()
        if self.allows_speed:
            body = channels_last(body)
        if name != "mean":
            _, number, _, _, epoch = name.split()
            seeds = np.random.SeedSequence((self.sampling.seed, int(epoch), int(number)))
            generator = torch.Generator().manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
            weights = self.posterior.draw(generator)
            with torch.no_grad():
                for parameter_name, parameter in body.named_parameters():
                    parameter.copy_(weights[parameter_name])
            if self.sampling.batchnorm == "recalibrate":
                update_batchnorm(body, self.calibration.calibration(self.sampling.calibration))
        return channels_last(fold_batchnorm(body)) if self.allows_speed else body.eval()

    def body(self) -> nn.Module:
        """The averaged network without its classifier."""
        assert self.posterior.classifier is not None
        return feature_extractor(self.network, self.posterior.classifier).to(self.device)

    @cached_property
    def allows_speed(self) -> bool:
        """Whether folded and laid out for speed the network does the same: `x.view` may not run, and a branch that
        was not traced may take another way.
        """
        body = self.body().eval()
        batches = self.calibration.calibration(1)  # held to the end of the trial, and with it the seed of its dropout
        inputs = next(batches)
        with torch.inference_mode():
            features = call(body, inputs)
            try:
                fast = call(channels_last(fold_batchnorm(body)), inputs)
            except RuntimeError:
                return False
        return bool(((fast - features).abs() <= 1e-3 * features.abs().max()).all())

    @cached_property
    def dtype(self) -> type[np.floating[Any]]:
        """float32, or float16 where float32 would be too much."""
        arrays = (self.sampling.samples + 1) * self.sampling.views
        return np.float16 if 4 * arrays * len(self.inputs) * self.length > LARGE_BYTES else np.float32

    def stored(self, features: Tensor) -> Array:
        """Features in the type they are kept in."""
        with np.errstate(over="ignore"):
            array = features.float().cpu().numpy().astype(self.dtype)
        if not np.isfinite(array).all():
            raise InputError("the features are not finite, or too large for float16. Is the network trained?")
        return array

    @cached_property
    def weights_digest(self) -> str:
        """A SHA-256 of the averaged network and of the posterior."""
        digest = hashlib.sha256()
        for tensors in (self.network.state_dict(), self.posterior.mean(), self.posterior.variance()):
            for name, tensor in sorted(tensors.items()):
                if isinstance(tensor, Tensor):  # and not what a module keeps as its extra state
                    digest.update(
                        name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
                    )
        return digest.hexdigest()

    def made_of(self, source: Source) -> dict[str, Any]:
        """Everything that decides the content of a kept array."""
        name, view = source
        about = {"format": FORMAT, "source": name, "view": view, "inputs": self.inputs.fingerprint()}
        if name != "labels":
            about |= {"weights": self.weights_digest, "dtype": np.dtype(self.dtype).name}
        if name.startswith("draw"):
            about |= {
                "seed": self.sampling.seed,
                "batchnorm": self.sampling.batchnorm,
                "calibration": self.sampling.calibration,
            }
            if self.calibration is not self.inputs:
                about["calibrated on"] = self.calibration.fingerprint()
        return about

    def path(self, source: Source) -> Path:
        """The file of an array, named by its fingerprint."""
        fingerprint = hashlib.sha256(json.dumps(self.made_of(source), sort_keys=True).encode()).hexdigest()
        return self.folder / f"{fingerprint[:32]}.bin"

    def is_kept(self, source: Source) -> bool:
        """Whether the array is there and whole: its description is written last, and knows its length."""
        path = self.path(source)
        about = path.with_suffix(".json")
        return path.exists() and about.exists() and path.stat().st_size == runs.read_json(about)["bytes"]

    def read(self, source: Source) -> Array:
        """A kept array, mapped into memory and not read."""
        if source[0] == "labels":
            return np.memmap(self.path(source), np.int64, "r")
        return np.memmap(self.path(source), self.dtype, "r").reshape(-1, self.length)

    def forget(self) -> None:
        """Delete what was kept."""
        for path in self.folder.glob("*.*"):
            path.unlink()


def feature_length(network: nn.Module, classifier: str) -> int:
    """L, the length of what the classifier takes in.

    >>> feature_length(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "1")
    8
    """
    weight = network.get_submodule(classifier).weight
    assert isinstance(weight, Tensor)
    return weight.shape[1]


def channels_last(body: nn.Module) -> nn.Module:
    """The network with the weights of its 2-d convolutions laid out for speed, in place.

    >>> channels_last(nn.Conv2d(2, 2, 3)).weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    for parameter in body.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return body


def runner(extractors: Sequence[nn.Module], *, compiled: bool = False) -> Callable[[Any], list[Tensor]]:
    """A function from inputs to the features of each extractor; compiled, one graph serves all their weights.

    >>> run = runner([nn.Linear(2, 2), nn.Linear(2, 2)])
    >>> [features.shape for features in run(torch.zeros(5, 2))]
    [torch.Size([5, 2]), torch.Size([5, 2])]
    """
    if compiled and extractors:
        failure = compile_failure()
        if not failure:
            tensors = [{**dict(body.named_parameters()), **dict(body.named_buffers())} for body in extractors]
            template = copy.deepcopy(extractors[0]).to("meta")  # no weights of its own: no graph for a special case
            one = torch.compile(lambda values, inputs: functional_call(template, values, (inputs,)))
            return lambda inputs: [one(values, inputs) for values in tensors]
        print(f"srepr: going on without compiling ({failure})", file=sys.stderr)
    return lambda inputs: [call(extractor, inputs) for extractor in extractors]

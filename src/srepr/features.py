"""Stochastic representations: M feature extractors drawn from the posterior, run over the data (paper, section 3.2).

    F_m(x),  theta_m ~ q(theta) = N(mean, diag(variance)),  m = 1..M

The network is frozen, so features can be cached: each draw is run over the data once, and every epoch of every head
reads its features from a store. A cached array is described by all that determines it (weights, draw, data,
augmentation, seed); after a change it is computed again.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from srepr.config import Precision, Retrain
from srepr.data.inputs import Inputs
from srepr.data.longtail import Indices, Labels
from srepr.errors import InputError
from srepr.methods import Representation
from srepr.models.batchnorm import update_batchnorm
from srepr.models.call import call, to_device
from srepr.models.fold import fold_batchnorm
from srepr.models.hardware import channels_last, default_device, runner
from srepr.models.split import feature_extractor, feature_length
from srepr.posterior import Posterior
from srepr.progress import Progress

Array = npt.NDArray[Any]
Appends = list[Callable[[Array], None]]

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


def together(source: FeatureSource, views: int) -> EpochFeatures:
    """The representations of the first epochs as one, with the averaged network's features of the first.

    >>> source = Given(np.zeros((3, 5, 2), dtype=np.float32), np.zeros(5, dtype=np.int64))
    >>> len(together(source, views=2).stochastic)
    6
    """
    first, *others = (source.epoch(number) for number in range(views))
    return replace(first, stochastic=[*first.stochastic, *(array for other in others for array in other.stochastic)])


class Store(Protocol):
    """Where features are kept: arrays found by their description (`srepr.storage.arrays.ArrayFolder`)."""

    def read(self, about: Mapping[str, Any], dtype: npt.DTypeLike) -> Array | None:
        """The flat array with that description; None if it is not there."""

    def write(self, abouts: Sequence[Mapping[str, Any]], first: int = 0) -> AbstractContextManager[Appends]:
        """A function for each description that appends to its array, from row `first` on; all appear at the end."""

    def clear(self) -> None:
        """Delete every array."""


@dataclass(frozen=True)
class Source:
    """One array of features: the network that makes it, and the augmented view of the data that it sees."""

    view: int
    draw: tuple[int, int] | None = None
    """(epoch, number) of a draw from the posterior; None for the averaged network."""

    @property
    def name(self) -> str:
        """The network in words."""
        return "mean" if self.draw is None else f"draw {self.draw[1]} of epoch {self.draw[0]}"


def sources(representation: Representation, settings: Retrain, epoch: int) -> list[Source]:
    """What an epoch reads: the averaged network's features first, then the M representations, if M > 1.

    >>> fresh = Retrain(samples=1, solver="sgd", on_the_fly=True)
    >>> [(source.name, source.view) for source in sources("swag", fresh, epoch=5)]
    [('mean', 5), ('draw 0 of epoch 5', 5)]
    >>> sources("augment", Retrain(samples=2), epoch=0)
    [Source(view=0, draw=None), Source(view=1, draw=None), Source(view=2, draw=None)]
    """
    view = epoch if settings.on_the_fly else epoch % settings.views
    if representation == "swag":
        drawn = epoch if settings.on_the_fly else 0
        return [Source(view), *(Source(view, (drawn, m)) for m in range(settings.draws))]
    if representation == "augment":
        first = view * (settings.draws + 1)
        return [Source(first + m) for m in range(settings.draws + 1)]
    return [Source(view)]


class NetworkFeatures:
    """The features of a network and of draws around it, computed when an epoch first asks for them and then kept.

    >>> from srepr.data import load
    >>> from srepr.data.inputs import ExampleInputs
    >>> from srepr.models import mlp
    >>> from srepr.storage.arrays import ArrayFolder
    >>> network = mlp(10, inputs=64, width=16)
    >>> posterior = Posterior(network)
    >>> posterior.update(network)
    >>> inputs = ExampleInputs(load("digits-lt").train, seed=0)
    >>> features = NetworkFeatures(network, posterior, inputs, ArrayFolder(), "swag", Retrain(samples=2), quiet=True)
    >>> features.epoch(0).batch(np.arange(8))[0].shape
    torch.Size([2, 8, 16])
    """

    def __init__(
        self,
        network: nn.Module,
        posterior: Posterior,
        inputs: Inputs,
        store: Store,
        representation: Representation,
        settings: Retrain,
        *,
        calibration: Inputs | None = None,
        device: torch.device | None = None,
        precision: Precision = "32-true",
        compiled: bool = False,
        quiet: bool = False,
    ) -> None:
        """`network` has the averaged weights and their BatchNorm statistics; draws come from `posterior`.

        The BatchNorm statistics of a draw are computed on `calibration`, the training data, which default to `inputs`.
        With a mixed `precision` the networks run under autocast.
        """
        assert posterior.classifier is not None
        self.network, self.posterior, self.inputs, self.store = network, posterior, inputs, store
        self.representation, self.settings = representation, settings
        self.device, self.compiled, self.quiet = device or default_device(), compiled, quiet
        self.precision = precision
        self.calibration = inputs if calibration is None else calibration
        self.length = feature_length(network, posterior.classifier)
        self.unknown = uuid4().hex  # stands for data without a fingerprint: what is made of them is not found again

    def epoch(self, number: int) -> EpochFeatures:
        """The features for that epoch."""
        if self.settings.on_the_fly:
            self.store.clear()
        wanted = sources(self.representation, self.settings, number)
        views = sorted({source.view for source in wanted})
        for view in views:
            missing = [source for source in wanted if source.view == view and self.read(source) is None]
            if missing or self.read_labels(view) is None:
                self.make(missing, view)
        mean, *stochastic = (self.read(source) for source in wanted)
        labels, *others = (np.asarray(self.read_labels(view)) for view in views)
        if not all(np.array_equal(labels, other) for other in others):
            raise InputError("the views of the data come in different orders. Pass a loader that does not shuffle.")
        return EpochFeatures(labels, stochastic or [mean], mean)

    def make(self, missing: Sequence[Source], view: int) -> None:
        """Run the missing networks over one view of the data, in one pass."""
        run = runner([self.extractor(source) for source in missing], compiled=self.compiled)
        arrays = [*(self.describe(source) for source in missing), self.describe_labels(view)]
        what, rows = f"features ({len(missing)} networks)", self.inputs.rows
        with (
            self.store.write(arrays, rows.start) as (*appends, append_labels),
            Progress(what, total=len(rows), quiet=self.quiet) as progress,
        ):
            for inputs, labels in self.inputs.sweep(view):
                with torch.inference_mode(), self.arithmetic():
                    outputs = run(to_device(inputs, self.device))
                for append, features in zip(appends, outputs, strict=True):
                    append(self.stored(features))
                append_labels(labels.cpu().numpy().astype(np.int64))
                progress.advance(len(labels))

    def arithmetic(self) -> AbstractContextManager[None]:
        """The block in which a network runs at this precision."""
        dtype = torch.float16 if self.precision == "16-mixed" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.precision != "32-true")

    def extractor(self, source: Source) -> nn.Module:
        """The feature extractor of a source, with BatchNorm folded and channels last where the network allows it."""
        body = self.body()
        if self.allows_speed:
            body = channels_last(body)
        if source.draw is not None:
            seeds = np.random.SeedSequence((self.settings.seed, *source.draw))
            generator = torch.Generator().manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
            weights = self.posterior.draw(generator)
            with torch.no_grad():
                for parameter_name, parameter in body.named_parameters():
                    parameter.copy_(weights[parameter_name])
            if self.settings.batchnorm == "recalibrate":
                update_batchnorm(body, self.calibration.calibration(self.settings.calibration))
        return channels_last(fold_batchnorm(body)) if self.allows_speed else body.eval()

    def body(self) -> nn.Module:
        """The averaged network without its classifier."""
        assert self.posterior.classifier is not None
        return feature_extractor(self.network, self.posterior.classifier).to(self.device)

    @cached_property
    def allows_speed(self) -> bool:
        """Whether the network computes the same with BatchNorm folded and channels last: `x.view` may fail, and
        a branch that was not traced may be taken.
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
        arrays = (self.settings.draws + 1) * self.settings.views
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
        """A SHA-256 of the averaged network and of the posterior, without the classifier, which makes no features."""
        digest, own = hashlib.sha256(), f"{self.posterior.classifier}."
        for tensors in (self.network.state_dict(), self.posterior.mean(), self.posterior.variance()):
            for name, tensor in sorted(tensors.items()):
                # A module may keep other things than tensors as its extra state.
                if isinstance(tensor, Tensor) and not name.startswith(own):
                    digest.update(
                        name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
                    )
        return digest.hexdigest()

    def describe(self, source: Source) -> dict[str, Any]:
        """Everything that determines the features of a source."""
        about = {
            **self.describe_labels(source.view),
            "source": source.name,
            "weights": self.weights_digest,
            "dtype": np.dtype(self.dtype).name,
        }
        if self.precision != "32-true":
            about["precision"] = self.precision
        if source.draw is not None:
            about |= {name: getattr(self.settings, name) for name in ("seed", "batchnorm", "calibration")}
            if self.calibration is not self.inputs:
                about["calibrated on"] = self.calibration.fingerprint()
        return about

    def describe_labels(self, view: int) -> dict[str, Any]:
        """Everything that determines the labels under a view of the data."""
        return {
            "format": FORMAT,
            "source": "labels",
            "view": view,
            "inputs": self.inputs.fingerprint() or self.unknown,
        }

    def read(self, source: Source) -> Any:
        """The kept features [N, L] of a source, or None; also if they are not as many as the data."""
        array, labels = self.store.read(self.describe(source), self.dtype), self.inputs.labels
        if array is None or (labels is not None and array.size != len(labels) * self.length):
            return None
        return array.reshape(-1, self.length)

    def read_labels(self, view: int) -> Array | None:
        """The labels [N] under a view: the data's own, or the kept ones of a loader; None if they are not kept."""
        kept, own = self.store.read(self.describe_labels(view), np.int64), self.inputs.labels
        return kept if own is None else own if kept is not None and np.array_equal(kept, own) else None

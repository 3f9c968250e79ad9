"""The finished model: one plain forward pass, a calibrated probability, and how much to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from srepr.balance import Shares, adjust_to_prior, as_shares
from srepr.data.about import About
from srepr.data.unlabelled import Unlabelled, read_unlabelled, unlabelled_batches, unlabelled_texts
from srepr.decisions import conformal, prior
from srepr.decisions.cells import rows_of
from srepr.decisions.conformal import Thresholds
from srepr.decisions.costs import Costs
from srepr.decisions.doubt import Familiar, doubt
from srepr.decisions.held import Held, as_held
from srepr.decisions.prior import PriorEstimate
from srepr.decisions.rejection import Rejection, calibrate
from srepr.errors import InputError, check
from srepr.models.call import call, eval_mode
from srepr.models.split import inputs_of
from srepr.objective import LARGEST_EXPONENT
from srepr.prediction import Prediction, Row


class Classifier(nn.Module):
    """A network with its re-trained head, called like the network it was made from; its attributes shine through.

    `expects` are the class shares that the network was trained to expect, equal ones by default. `classes` is their
    number, where it is known, and `class_names` their names. `about` describes classes and inputs of a classifier that
    `srepr.load` has read. `held` is what it said about held-out examples, which its decisions are calibrated on.
    `familiar` is what the inputs of the layer `layer`, its features, look like for the inputs that it knows.

    >>> model = Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), classes=3)
    >>> model(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    >>> model.predict(torch.zeros(2, 4)).probabilities.shape
    torch.Size([2, 3])
    """

    shift: Tensor | None
    choice: list[dict[str, Any]] | None = None
    """The candidates that `srepr.retrain` compared, if it had a choice; the chosen one is marked."""

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 20.0,
        classes: int | None = None,
        expects: Shares | None = None,
        shift: Tensor | None = None,
        about: About | None = None,
        class_names: Sequence[str] | None = None,
        held: Held | None = None,
        familiar: Familiar | None = None,
        layer: str = "",
    ) -> None:
        super().__init__()
        check(0 < temperature < math.inf, f"`temperature` is {temperature}: it must be a finite number above 0")
        self.model = model
        self.temperature = temperature
        self.about = about
        self._names = about.class_names if about is not None else None if class_names is None else tuple(class_names)
        self.classes = len(self._names) if self._names is not None else classes
        self.expects = expects
        self.held = held
        self.familiar, self.layer = familiar, layer
        self.register_buffer("shift", shift)

    @property
    def held(self) -> Held | None:
        """What it said about held-out examples, without a prior; decisions are calibrated on them."""
        return self._held

    @held.setter
    def held(self, given: Held | None) -> None:
        self._held = None if given is None else as_held(given, self.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        if self._names is None:
            raise AttributeError("class_names")  # the network's own shine through
        return self._names

    @property
    def description(self) -> About:
        """How inputs are prepared, and what the classes are; an InputError if that is not known."""
        if self.about is None:
            raise InputError("this classifier does not know its classes and inputs: read one with srepr.load")
        return self.about

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output, its logits moved to the prior of `with_prior`."""
        output = self.model(*args, **kwargs)
        if self.shift is None:
            return output
        if isinstance(output, Tensor):
            return self.moved(output)
        if isinstance(output, tuple | list):
            return self.moved(output[0]), *output[1:]
        if hasattr(output, "logits"):
            output.logits = self.moved(output.logits)
        else:
            output["logits"] = self.moved(output["logits"])
        return output

    def moved(self, logits: Tensor) -> Tensor:
        """The logits [B, K] under the prior of `with_prior`."""
        assert self.shift is not None
        if logits.shape[-1] != len(self.shift):  # one share for all would be broadcast
            raise InputError(
                f"the prior has {len(self.shift)} classes, the model {logits.shape[-1]}: give one share for each."
            )
        return logits + self.shift.to(logits)

    @overload
    def predict(self, inputs: str | Path, *, top: int = 1) -> list[Row]: ...
    @overload
    def predict(self, inputs: Any, *, top: int = 1) -> Any: ...
    def predict(self, inputs: Any, *, top: int = 1) -> Prediction | list[Row]:
        """Probabilities and uncertainty from one pass in evaluation mode, as a `Prediction`.

        A path, or a list of paths, to images, folders, a CSV file or arrays gives a list of rows instead, the same as
        `srepr predict` writes, with the `top` most probable labels. If the classifier reads texts, strings are texts,
        and only a `Path` is a file. `srepr.load` reads a classifier that can do this.
        """
        named = self._named(inputs)
        if named is not None:
            return list(self.rows(named, top=top))
        watched: AbstractContextManager[list[Tensor]] = (
            nullcontext([]) if self.familiar is None else inputs_of(self.model, self.layer)
        )
        with torch.no_grad(), eval_mode(self), watched as features:
            logits = call(self, inputs).float()
        alpha = (logits.double() / self.temperature).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
        probabilities = logits.softmax(-1)
        check(not probabilities.isnan().any(), "the network's outputs are not finite: check its inputs and weights")
        if self.familiar is None:
            doubts = doubt(probabilities)
        else:
            # A network that pools its logits gives its classifier a sequence, which is not watched.
            watches = bool(features) and features[0].shape == (len(logits), len(self.familiar.mean))
            doubts = self.familiar.doubt(probabilities, features[0].cpu() if watches else None)
        return Prediction(probabilities, alpha.sum(-1).to(logits.dtype), doubts)

    def rows(
        self,
        inputs: Unlabelled,
        *,
        top: int = 1,
        thresholds: Thresholds | None = None,
        costs: Costs | None = None,
        batch_size: int = 64,
        workers: int = 0,
        quiet: bool = True,
    ) -> Iterator[Row]:
        """A row for each input, in order, as soon as it is known; the numbers have six digits.

        With `thresholds`, there is the set of labels, the most probable first; with `costs`, the decision of the least
        expected cost. Images that were skipped are reported at the end.
        """
        classes = len(inputs.examples.class_names)
        if not 1 <= top <= classes:
            raise InputError(f"`top` is {top}: it must lie in 1 .. {classes}, the number of classes.")
        loaded = unlabelled_batches(inputs, np.arange(len(inputs.names)), batch_size, workers, quiet)
        names, asked = inputs.names, (inputs.examples.class_names, top, thresholds, costs)
        parts = (rows_of(self.predict(batch), [names[i] for i in indices], *asked) for indices, batch in loaded)
        return chain.from_iterable(parts)

    def _named(self, inputs: Any) -> Unlabelled | None:
        """What paths or texts stand for; None for a batch of inputs."""
        if isinstance(inputs, Unlabelled):
            return inputs
        several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not several or not all(isinstance(one, str | Path) for one in several):
            return None
        if self.description.tokenizer and all(isinstance(one, str) for one in several):
            return unlabelled_texts(several, self.description)
        return read_unlabelled([Path(one) for one in several], self.description)

    def predict_set(self, inputs: Any, coverage: float = 0.9, *, form: str = conformal.FORM) -> Any:
        """Which labels are in the set of each input, booleans [B, K]: the truth is in it with this probability.

        Paths and texts give a list of rows instead, with the key `set`, as `srepr predict --coverage` writes them.
        """
        thresholds, named = self.thresholds(coverage, form), self._named(inputs)
        if named is not None:
            return list(self.rows(named, thresholds=thresholds))
        return thresholds.sets(self.predict(inputs).probabilities)

    def thresholds(self, coverage: float = 0.9, form: str = conformal.FORM) -> Thresholds:
        """How probable each label must be to be in a set of this coverage, by the held-out examples.

        >>> held = Held(torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1]))
        >>> model = Classifier(nn.Identity(), held=held)
        >>> model.thresholds(coverage=0.5, form="marginal").minimum
        (0.8807..., 0.8807...)
        >>> model.predict_set(torch.tensor([[0.0, 0.5], [0.0, 9.0]]), coverage=0.75, form="marginal")
        tensor([[False,  True],
                [False,  True]])
        """
        if self.held is None:
            raise InputError(
                "this classifier has no held-out examples, which sets are calibrated on: train with a validation set "
                "(`srepr train --protocol holdout`), then make a head with `srepr retrain`; in Python, pass "
                "validation= to srepr.retrain or srepr.fit"
            )
        return conformal.calibrate(
            self._probabilities(self.held.logits),
            self.held.labels,
            coverage,
            form,
            expects=self.expects if self.prior is None else self.prior,
            counts=None if self.about is None else self.about.counts,
            prior=self.prior,
            class_names=self._names,
        )

    def estimate_prior(
        self,
        unlabelled: Any,
        *,
        method: str = "em",
        batch_size: int = 64,
        workers: int = 0,
        quiet: bool = True,
        seed: int = 0,
    ) -> PriorEstimate:
        """The class shares among unlabelled inputs, a batch or what `predict` reads; `with_prior` takes them.

        Of very many inputs some stand for all. The methods are in `srepr.decisions.prior`.

        >>> model = Classifier(nn.Identity(), classes=2)
        >>> x = torch.randn(500, 2, generator=torch.manual_seed(0)) + torch.tensor([4.0, 0.0])
        >>> model.estimate_prior(x).shares[0] > 0.9
        True
        """
        base = self
        if self.shift is not None:
            base = self.with_prior([1.0] * len(self.shift) if self.expects is None else self.expects)
        named = self._named(unlabelled)
        if named is None:
            found = [base.predict(unlabelled).probabilities]
        else:
            most = max(prior.LARGEST // len(named.examples.class_names), prior.FEWEST)
            rows = np.sort(np.random.default_rng(seed).permutation(len(named.names))[:most])
            loaded = unlabelled_batches(named, rows, batch_size, workers, quiet, silent=True)
            found = [base.predict(batch).probabilities for _, batch in loaded]
        check(bool(found), "there is no input to estimate the prior from: pass some that can be read")
        held = None if self.held is None else (base._probabilities(self.held.logits), self.held.labels)
        counts = None if self.about is None else self.about.counts
        how: dict[str, Any] = {"counts": counts, "method": method, "seed": seed}
        return prior.estimate_prior(torch.cat(found), expects=self.expects, held=held, **how)

    def _probabilities(self, logits: Tensor) -> Tensor:
        """What the network's own logits [N, K] mean for the prior of `with_prior`."""
        return (logits if self.shift is None else self.moved(logits)).float().softmax(-1)

    @property
    def prior(self) -> list[float] | None:
        """The class shares of `with_prior`; None without one."""
        if self.shift is None:
            return None
        expects = np.ones(len(self.shift)) if self.expects is None else np.asarray(self.expects)
        shares = expects * np.exp(self.shift.double().numpy(force=True))
        return [float(share) for share in shares / shares.sum()]

    def with_prior(self, counts_or_probs: Shares | PriorEstimate) -> Classifier:
        """The same model for a deployment where the classes have these shares: softmax(z + log p - log expected).

        This is Bayes' rule for the new prior, as far as the probabilities were right for the old one. A second call
        replaces the first: priors do not add up, and equal shares lead back to a balanced model.

        >>> model = Classifier(nn.Identity(), classes=2).with_prior([90, 10])
        >>> model.predict(torch.zeros(1, 2)).probabilities
        tensor([[0.9000, 0.1000]])
        >>> model.with_prior([0.5, 0.5]).predict(torch.zeros(1, 2)).probabilities
        tensor([[0.5000, 0.5000]])
        """
        if isinstance(counts_or_probs, PriorEstimate):
            counts_or_probs = counts_or_probs.shares
        prior = as_shares(counts_or_probs)
        if not prior.isfinite().all():
            raise InputError("the prior must be a finite share or count for each class, as in [0.7, 0.2, 0.1].")
        if self.classes is not None and len(prior) != self.classes:
            raise InputError(
                f"the prior has {len(prior)} shares, the model {self.classes} classes: give one for each."
            )
        expects = [1.0] * len(prior) if self.expects is None else self.expects
        shift = adjust_to_prior(torch.zeros(len(prior)), expects, prior)
        return Classifier(
            self.model,
            temperature=self.temperature,
            classes=self.classes,
            expects=self.expects,
            shift=shift,
            about=self.about,
            class_names=self._names,
            held=self.held,
            familiar=self.familiar,
            layer=self.layer,
        )

    def rejection(self, share: float, *, by_class: bool = False) -> Rejection:
        """The rule that rejects this share of inputs, or of each predicted class, by the held-out examples.

        The share is meant for the class mix that the probabilities are for: that of `with_prior`, or else the one that
        the head expects.

        >>> held = Held(torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.1, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1, 1]))
        >>> Classifier(nn.Identity(), classes=2, held=held).rejection(0.25).rejects([0.3, 0.05], [0, 1])
        tensor([ True, False])
        """
        if self.held is None:
            raise InputError(
                "this classifier has no held-out examples to find a threshold on: train with a validation set, or "
                "compare inputs with each other (srepr.decisions.rejection.most_doubtful)"
            )
        labels, classes, distances = self.held.labels, self.held.classes, self.held.distances
        probabilities = self._probabilities(self.held.logits)
        expects = [1.0] * classes if self.expects is None else self.expects
        prior = torch.as_tensor(expects if self.prior is None else self.prior, dtype=torch.float64)
        doubts = doubt(probabilities) if self.familiar is None else self.familiar.doubt(probabilities, None, distances)
        weights = (prior / torch.bincount(labels, minlength=classes))[labels]
        return calibrate(doubts, probabilities.argmax(-1), share, classes, weights=weights, by_class=by_class)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

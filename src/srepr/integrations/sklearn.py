"""Both stages as a scikit-learn classifier for arrays: tables [N, D], and small images [N, H, W] or [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from srepr.anymodel.fit import fit
from srepr.data.inputs import seeded
from srepr.errors import InputError
from srepr.models import build
from srepr.models.call import call, eval_mode

Array = npt.NDArray[Any]
SMALLEST_BATCH = 32  # smaller batches have noisy statistics
PREDICT_BATCH = 1024


class LongTailClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier for long-tailed data: accurate on rare classes, with calibrated probabilities.

        model = LongTailClassifier(epochs=20).fit(X, y)
        probabilities = model.predict_proba(X_test)

    `predict` and `predict_proba` assume a uniform class prior, whatever the class frequencies in the training data.

    `network` is a name of `srepr.models` ("mlp", "resnet8", ...), a function from the number of classes to an
    nn.Module, or an nn.Module, which is copied and trained from its current weights. `hidden` and `dropout` are the
    width and the dropout rate of "mlp". `batch_size` is the maximum: small data sets use a tenth of their rows, but at
    least 32. `standardize` scales each column, or channel of an image, to mean 0 and variance 1. The other parameters
    are those of `srepr.fit`.

    After `fit`: `classes_`, `n_features_in_`, and `network_`, an nn.Module in float64 on the CPU.
    """

    def __init__(
        self,
        network: str | nn.Module | Callable[[int], nn.Module] = "mlp",
        *,
        method: str = "srepr",
        epochs: int = 50,
        lr: float = 0.02,
        weight_decay: float = 1e-2,
        hidden: int = 256,
        dropout: float = 0.5,
        batch_size: int = 128,
        samples: int = 10,
        standardize: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.network = network
        self.method = method
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.hidden = hidden
        self.dropout = dropout
        self.batch_size = batch_size
        self.samples = samples
        self.standardize = standardize
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> LongTailClassifier:
        """Train the network, then re-train its classifier; `y` holds labels of any type that scikit-learn supports."""
        X, y = validate_data(self, X, y, dtype=np.float64, allow_nd=True, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("there is only one class in y: at least two are needed")
        seed = int(check_random_state(self.random_state).randint(2**31))
        columns = _channels_last(X)
        self.scaler_ = StandardScaler(with_mean=self.standardize, with_std=self.standardize)
        self.scaler_.fit(columns.reshape(-1, columns.shape[-1]))
        inputs = self._inputs(X).float()
        self.network_ = fit(
            self._build(inputs, seed),
            (inputs, torch.from_numpy(labels)),
            epochs=self.epochs,
            method=self.method,
            lr=self.lr,
            weight_decay=self.weight_decay,
            batch_size=min(self.batch_size, max(SMALLEST_BATCH, len(X) // 10)),
            samples=self.samples,
            seed=seed,
            quiet=True,
        ).double()  # a row's probabilities must not depend on the other rows
        return self

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities [N, K] in float64, in the order of `classes_`."""
        return self._map(X, lambda inputs: call(self.network_, inputs).softmax(-1))

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        most_probable = self.predict_proba(X).argmax(1)
        chosen: Array = self.classes_[most_probable]
        return chosen

    def predict_uncertainty(self, X: Any) -> Array:
        """Mutual information [N]: the model's own (epistemic) share of the uncertainty."""
        return self._map(X, lambda inputs: self.network_.predict(inputs).mutual_information)

    def _map(self, X: Any, function: Callable[[Tensor], Tensor]) -> Array:
        check_is_fitted(self)
        inputs = self._inputs(validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False))
        with torch.no_grad(), eval_mode(self.network_):
            parts = [function(inputs[rows]) for rows in gen_batches(len(inputs), PREDICT_BATCH)]
        return torch.cat(parts).numpy()

    def _inputs(self, X: Array) -> Tensor:
        """Standardized inputs, [N, D] or [N, C, H, W]."""
        last = _channels_last(X)
        scaled = self.scaler_.transform(last.reshape(-1, last.shape[-1])).reshape(last.shape)
        return torch.from_numpy(np.moveaxis(scaled, -1, 1))

    def _build(self, inputs: Tensor, seed: int) -> nn.Module:
        classes = len(self.classes_)
        with seeded((), seed):  # weights depend on the seed only; global generators are restored
            if self.network == "mlp":
                size = inputs[0].numel()
                return build("mlp", classes, inputs=size, width=self.hidden, dropout=self.dropout)
            if isinstance(self.network, str):
                if inputs.ndim != 4:
                    raise InputError(f"{self.network} takes images [N, H, W] or [N, C, H, W]: use mlp for tables")
                return build(self.network, classes, channels=inputs.shape[1])
            network = self.network if isinstance(self.network, nn.Module) else self.network(classes)
        with torch.no_grad(), eval_mode(network):
            outputs = call(network, inputs[:2]).shape[-1]
        if outputs != classes:
            raise InputError(f"the network has {outputs} outputs and y has {classes} classes: they must match")
        return network


def _channels_last(X: Array) -> Array:
    """Tables unchanged, images as [N, H, W, C]: each entry of the last axis is standardized separately."""
    if X.ndim not in (2, 3, 4):
        raise InputError(f"X has shape {X.shape}: pass a table [N, D], or images [N, H, W] or [N, C, H, W]")
    return X[..., None] if X.ndim == 3 else np.moveaxis(X, 1, -1)

"""Both stages as a scikit-learn classifier for arrays: tables [N, D], and small images [N, H, W] or [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_random_state, gen_batches
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from srepr.anymodel.fit import fit
from srepr.classifier import Classifier
from srepr.data.inputs import seeded
from srepr.errors import InputError
from srepr.integrations.columns import as_numbers, has_categories, read_values
from srepr.integrations.ensemble import Training
from srepr.integrations.stack import stack
from srepr.models import build
from srepr.models.call import call, eval_mode

Array = npt.NDArray[Any]
SMALLEST_BATCH = 32  # smaller batches have noisy statistics
PREDICT_BATCH = 1024


class LongTailClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier for long-tailed data: accurate on rare classes, with calibrated probabilities.

        model = LongTailClassifier().fit(X, y)
        probabilities = model.predict_proba(X_test)

    `predict` and `predict_proba` assume a uniform class prior, whatever the class frequencies in the training data.

    By default, linear models and a small network are fitted, judged on held-out rows and combined
    (`srepr.integrations.stack`). The columns of a DataFrame that hold no numbers are categories.

    `network` is "auto", a name of `srepr.models` ("mlp", "resnet8", ...), a function from the number of classes to an
    nn.Module, or an nn.Module, which is copied and trained from its current weights. All but "auto" go through
    `srepr.fit` with the `method`; "auto" with a named method is "mlp".

    `epochs` is the maximum for "auto". `hidden` and `dropout` are the width and the dropout rate of "auto" and "mlp".
    `batch_size` is the maximum: small data sets have smaller batches. `samples` is the number of representations M:
    the members of "auto", or draws of the weights. None is the default of the network. `standardize` scales each
    column, or channel of an image, to mean 0 and variance 1. The other parameters are those of `srepr.fit`.

    After `fit`: `classes_`, `n_features_in_`, and `network_`, an nn.Module in float64 on the CPU. `choice_` lists the
    candidates with their class-balanced accuracy and NLL on held-out rows, or is None if there was no choice.
    """

    def __init__(
        self,
        network: str | nn.Module | Callable[[int], nn.Module] = "auto",
        *,
        method: str = "auto",
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float = 1e-2,
        hidden: int | None = None,
        dropout: float | None = None,
        batch_size: int | None = None,
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
        frame = X
        self.categories_ = read_values(X) if has_categories(X) else {}
        X = as_numbers(X, self.categories_) if self.categories_ else X
        X, y = validate_data(self, X, y, dtype=np.float64, allow_nd=True, ensure_min_samples=2)
        if self.categories_:
            validate_data(self, frame, skip_check_array=True)  # the names and the number of its own columns
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("there is only one class in y: at least two are needed")
        seed = int(check_random_state(self.random_state).randint(2**31))
        columns = _channels_last(X)
        self.scaler_ = StandardScaler(with_mean=self.standardize, with_std=self.standardize)
        self.scaler_.fit(columns.reshape(-1, columns.shape[-1]))
        inputs = self._inputs(X)
        automatic = self.network == "auto" and self.method == "auto"
        network = self._stacked(inputs, labels, seed) if automatic else self._trained(inputs, labels, seed)
        self.network_ = network.double()  # a row's probabilities must not depend on the other rows
        self.choice_ = network.choice
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
        """How likely the prediction is wrong [N], 0 .. 1: 1 minus the largest probability."""
        return self._map(X, lambda inputs: self.network_.predict(inputs).uncertainty)

    def _map(self, X: Any, function: Callable[[Tensor], Tensor]) -> Array:
        check_is_fitted(self)
        inputs = self._inputs(self._validated(X))
        with torch.no_grad(), eval_mode(self.network_):
            parts = [function(inputs[rows]) for rows in gen_batches(len(inputs), PREDICT_BATCH)]
        return torch.cat(parts).numpy()

    def _validated(self, X: Any) -> Array:
        """The rows to predict, as an array of numbers."""
        options = {"dtype": np.float64, "allow_nd": True}
        if not self.categories_:
            return validate_data(self, X, reset=False, **options)  # type: ignore[no-any-return]
        if not hasattr(X, "columns"):
            raise InputError("the training data was a DataFrame with categories: pass one with the same columns")
        validate_data(self, X, reset=False, skip_check_array=True)
        return check_array(as_numbers(X, self.categories_), **options)  # type: ignore[no-any-return]

    def _inputs(self, X: Array) -> Tensor:
        """Standardized inputs, [N, D] or [N, C, H, W]."""
        last = _channels_last(X)
        scaled = self.scaler_.transform(last.reshape(-1, last.shape[-1])).reshape(last.shape)
        return torch.from_numpy(np.moveaxis(scaled, -1, 1))

    def _stacked(self, inputs: Tensor, labels: Array, seed: int) -> Classifier:
        """The best combination of linear models and a network on the rows; images are flattened."""
        given: dict[str, Any] = {"epochs": self.epochs, "lr": self.lr, "batch_size": self.batch_size}
        given |= {"width": self.hidden, "dropout": self.dropout}
        given = {name: value for name, value in given.items() if value is not None}
        settings = Training(members=self.samples, weight_decay=self.weight_decay, **given)
        found = stack(inputs.flatten(1), labels, settings, seed=seed)
        network = nn.Sequential(nn.Flatten(), found.network)
        classifier = Classifier(network, classes=len(self.classes_), held=found.held).eval()
        classifier.choice = found.choice
        return classifier

    def _trained(self, inputs: Tensor, labels: Array, seed: int) -> Classifier:
        """The network after both stages."""
        return fit(
            self._build(inputs, seed),
            (inputs.float(), torch.from_numpy(labels)),
            epochs=60 if self.epochs is None else self.epochs,
            method=self.method,
            lr=0.05 if self.lr is None else self.lr,
            weight_decay=self.weight_decay,
            batch_size=min(self.batch_size or 128, max(SMALLEST_BATCH, len(labels) // 10)),
            samples=self.samples,
            seed=seed,
            quiet=True,
        )

    def _build(self, inputs: Tensor, seed: int) -> nn.Module:
        classes = len(self.classes_)
        with seeded((), seed):  # weights depend on the seed only; global generators are restored
            if self.network in ("auto", "mlp"):
                given = {"width": self.hidden, "dropout": self.dropout}
                options = {name: value for name, value in given.items() if value is not None}
                return build("mlp", classes, inputs=inputs[0].numel(), **options)
            if isinstance(self.network, str):
                if inputs.ndim != 4:
                    raise InputError(f"{self.network} takes images [N, H, W] or [N, C, H, W]: use mlp for tables")
                return build(self.network, classes, channels=inputs.shape[1])
            network = self.network if isinstance(self.network, nn.Module) else self.network(classes)
        with torch.no_grad(), eval_mode(network):
            outputs = call(network, inputs[:2].float()).shape[-1]
        if outputs != classes:
            raise InputError(f"the network has {outputs} outputs and y has {classes} classes: they must match")
        return network


def _channels_last(X: Array) -> Array:
    """Tables unchanged, images as [N, H, W, C]: each entry of the last axis is standardized separately."""
    if X.ndim not in (2, 3, 4):
        raise InputError(f"X has shape {X.shape}: pass a table [N, D], or images [N, H, W] or [N, C, H, W]")
    return X[..., None] if X.ndim == 3 else np.moveaxis(X, 1, -1)

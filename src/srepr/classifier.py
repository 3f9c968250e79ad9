"""The finished model: one plain forward pass, a calibrated probability, and how much to believe it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from srepr import dirichlet
from srepr.balance import Shares, adjust_to_prior
from srepr.batches import call
from srepr.models.modes import eval_mode
from srepr.objective import LARGEST_EXPONENT


class Prediction(NamedTuple):
    """What one forward pass tells of each input.

    >>> Prediction(torch.tensor([[0.9, 0.1]]), torch.tensor([2.5]), torch.tensor([0.1])).label
    tensor([0])
    """

    probabilities: Tensor
    """[B, K], softmax of the logits."""
    precision: Tensor
    """[B], sum_k alpha_k of the Dirichlet Dir(alpha), alpha = exp(logits / temperature): large where sure."""
    mutual_information: Tensor
    """[B], entropy of the Dirichlet's mean minus its expected entropy: what the model itself does not know."""

    @property
    def label(self) -> Tensor:
        """The most probable class [B]."""
        return self.probabilities.argmax(-1)


class Classifier(nn.Module):
    """A network with its re-trained head, called like the network it was made from; its attributes shine through.

    >>> model = Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    >>> model.predict(torch.zeros(2, 4)).probabilities.shape
    torch.Size([2, 3])
    """

    shift: Tensor | None

    def __init__(self, model: nn.Module, *, temperature: float = 20.0, shift: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.register_buffer("shift", shift)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the network answers with, its logits moved to the prior where one was given."""
        output = self.model(*args, **kwargs)
        if self.shift is None:
            return output
        if isinstance(output, Tensor):
            return output + self.shift
        if isinstance(output, tuple | list):
            return output[0] + self.shift, *output[1:]
        if hasattr(output, "logits"):
            output.logits = output.logits + self.shift
        else:
            output["logits"] = output["logits"] + self.shift
        return output

    @torch.no_grad()
    def predict(self, inputs: Any) -> Prediction:
        """Probabilities and uncertainty from one pass in evaluation mode."""
        with eval_mode(self):
            logits = call(self, inputs).float()
        alpha = (logits.double() / self.temperature).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
        information = dirichlet.mutual_information(alpha).to(logits.dtype)
        return Prediction(logits.softmax(-1), alpha.sum(-1).to(logits.dtype), information)

    def with_prior(self, counts_or_probs: Shares) -> Classifier:
        """The same model for a deployment where the classes come in these shares instead of evenly."""
        uniform = [1.0] * len(counts_or_probs)
        shift = adjust_to_prior(torch.zeros(len(counts_or_probs)), uniform, counts_or_probs)
        return Classifier(self.model, temperature=self.temperature, shift=shift)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

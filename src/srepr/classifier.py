"""The finished model: one plain forward pass, a calibrated probability, and how much to believe it."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from srepr import dirichlet
from srepr.balance import Shares, adjust_to_prior
from srepr.batches import call
from srepr.errors import InputError
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

    `expects` are the shares of the classes that the network itself was trained to expect, even ones when not given.

    >>> model = Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    >>> model.predict(torch.zeros(2, 4)).probabilities.shape
    torch.Size([2, 3])
    """

    shift: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 20.0,
        expects: Shares | None = None,
        shift: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.expects = expects
        self.register_buffer("shift", shift)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the network answers with, its logits moved to the prior where one was given."""
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
        """The logits [B, K] for the prior that was given."""
        assert self.shift is not None
        if logits.shape[-1] != len(self.shift):  # one share for all would be broadcast
            raise InputError(
                f"the prior has {len(self.shift)} classes, the model {logits.shape[-1]}: give one share for each."
            )
        return logits + self.shift.to(logits)

    @torch.no_grad()
    def predict(self, inputs: Any) -> Prediction:
        """Probabilities and uncertainty from one pass in evaluation mode."""
        with eval_mode(self):
            logits = call(self, inputs).float()
        alpha = (logits.double() / self.temperature).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
        information = dirichlet.mutual_information(alpha).to(logits.dtype)
        return Prediction(logits.softmax(-1), alpha.sum(-1).to(logits.dtype), information)

    def with_prior(self, counts_or_probs: Shares) -> Classifier:
        """The same model for a deployment where the classes come in these shares: softmax(z + log p - log expected).

        This is Bayes' rule for the new prior, as far as the probabilities were right for the old one. A second call
        takes the place of the first: priors do not add up, and even shares lead back to a balanced model.

        >>> model = Classifier(nn.Identity()).with_prior([90, 10])
        >>> model.predict(torch.zeros(1, 2)).probabilities
        tensor([[0.9000, 0.1000]])
        >>> model.with_prior([0.5, 0.5]).predict(torch.zeros(1, 2)).probabilities
        tensor([[0.5000, 0.5000]])
        """
        prior = torch.as_tensor(counts_or_probs, dtype=torch.float64)
        if prior.dim() != 1 or not prior.isfinite().all():
            raise InputError("the prior must be a finite share or count for each class, as in [0.7, 0.2, 0.1].")
        # Which layer makes the logits is not always to be seen, but with none of this size the mistake is certain.
        sizes = {size for tensor in chain(self.model.parameters(), self.model.buffers()) for size in tensor.shape}
        if sizes and len(prior) not in sizes:
            raise InputError(
                f"the prior has {len(prior)} shares and no layer of the model as many outputs: give one a class."
            )
        shift = adjust_to_prior(
            torch.zeros(len(prior)), [1.0] * len(prior) if self.expects is None else self.expects, prior
        )
        return Classifier(self.model, temperature=self.temperature, expects=self.expects, shift=shift)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

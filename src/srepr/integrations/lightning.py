"""SWA and SWAG with `lightning.Trainer`: a callback captures the weights after epochs (paper, section 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from srepr.errors import InputError
from srepr.posterior import Posterior


class PosteriorCallback(Callback):
    """Captures `posterior` from epoch `start` on, after every `every`-th epoch; pass it to `srepr.retrain`.

    A float `start` is a fraction of the Trainer's max_epochs, an integer is an epoch. `module` names the network
    inside the LightningModule, "model" for `self.model`; by default the whole LightningModule is captured. `lr` holds
    all learning rates constant from `start` on and overrides the schedulers. Checkpoints include the posterior, so
    `fit(ckpt_path=...)` gives the same bits. With several processes, each holds the full posterior; sharded weights
    (FSDP) are not supported.

    >>> callback = PosteriorCallback(start=0.5, module="model", lr=0.02)
    >>> trainer = Trainer(max_epochs=20, callbacks=[callback], accelerator="cpu", logger=False)
    >>> callback.first_epoch(trainer)
    10
    """

    posterior: Posterior | None = None

    def __init__(
        self,
        start: float = 0.75,
        *,
        every: int = 1,
        module: str | None = None,
        classifier: str | None = None,
        lr: float | None = None,
    ) -> None:
        if start < 0 or (isinstance(start, float) and start >= 1):
            raise InputError(f"`start` is {start}: give a share of the epochs such as 0.75, or an epoch such as 15")
        if every < 1:
            raise InputError(f"`every` is {every}: give 1 to capture after each epoch, 2 after every other")
        self.start, self.every, self.module, self.classifier, self.lr = start, every, module, classifier, lr
        self._restored: Mapping[str, Tensor] = {}

    def first_epoch(self, trainer: Trainer) -> int:
        """First epoch, counted from 0, after which weights are captured."""
        if isinstance(self.start, int):
            return self.start
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise InputError(f"`start` is {self.start}, a share of max_epochs, which the Trainer lacks: set it")
        return int(self.start * trainer.max_epochs)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the posterior, or restore it from the checkpoint."""
        self.first_epoch(trainer)  # fail now, not at the end of an epoch
        self.posterior = Posterior(self._network(pl_module), classifier=self.classifier)
        if self._restored:
            self.posterior.load_state_dict(self._restored)
            self._restored = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the learning rates to `lr` again: the schedulers change them."""
        if self.lr is not None and trainer.current_epoch >= self.first_epoch(trainer):
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.lr

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Capture after the last batch, so a checkpoint written by the validation that follows includes this epoch."""
        epochs = trainer.current_epoch - self.first_epoch(trainer)
        if trainer.is_last_batch and epochs >= 0 and epochs % self.every == 0:
            assert self.posterior is not None
            self.posterior.update(self._network(pl_module))

    def state_dict(self) -> dict[str, Any]:
        """State of the posterior, for the Trainer's checkpoints."""
        return {} if self.posterior is None else dict(self.posterior.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until the network exists."""
        self._restored = state_dict

    def _network(self, pl_module: LightningModule) -> Any:
        if self.module is None:
            return pl_module
        try:
            return pl_module.get_submodule(self.module)
        except AttributeError:
            known = ", ".join(name for name, _ in pl_module.named_children())
            raise InputError(f"{type(pl_module).__name__} has no {self.module!r}: choose from {known}") from None

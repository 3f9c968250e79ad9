"""SWA and SWAG with `transformers.Trainer`: a callback captures the weights (paper, section 2.2).

The Trainer's checkpoints include the posterior, as checkpoint-STEP/posterior.safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length
from transformers.training_args import TrainingArguments

from srepr.errors import InputError
from srepr.posterior import Posterior
from srepr.storage.tensors import load_tensors, save_tensors


class PosteriorCallback(TrainerCallback):
    """Captures `posterior` after each epoch, once `start` of the training is done; pass it to `srepr.retrain`.

    A float `start` is a fraction of the training, an integer is an epoch. `steps` captures every `steps` optimizer
    steps instead; use it for short fine-tuning, where epochs give too few captures. `lr` holds all learning rates
    constant from `start` on; set it if the Trainer's schedule decays to 0, where the weights stop moving. Resuming
    from a checkpoint in output_dir gives the same bits.

    >>> state = TrainerState(epoch=1.5, global_step=30, max_steps=40)
    >>> PosteriorCallback(start=0.5).progress(state), PosteriorCallback(start=2).progress(state)
    (0.75, 1.5)
    """

    posterior: Posterior | None = None

    def __init__(
        self,
        start: float = 0.75,
        *,
        steps: int | None = None,
        classifier: str | None = None,
        lr: float | None = None,
    ) -> None:
        if start < 0 or (isinstance(start, float) and start >= 1):
            raise InputError(f"`start` is {start}: give a share of the training such as 0.75, or an epoch such as 2")
        if steps is not None and steps < 1:
            raise InputError(f"`steps` is {steps}: give 1 to capture after each step, or more")
        self.start, self.steps, self.classifier, self.lr = start, steps, classifier, lr

    def progress(self, state: TrainerState) -> float:
        """Training progress in the unit of `start`; weights are captured once it exceeds `start`."""
        return state.epoch or 0.0 if isinstance(self.start, int) else state.global_step / state.max_steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Create the posterior, or restore it from the checkpoint that the Trainer resumes from."""
        if self.steps is None and not has_length(kwargs["train_dataloader"]):
            raise InputError("the training data has no length, so that epochs have no end: give `steps`")
        self.posterior = Posterior(kwargs["model"], classifier=self.classifier)
        if self.progress(state) > self.start:
            path = self._path(args, state)
            if not path.exists():
                raise InputError(
                    f"{path} is missing: resume from a checkpoint that contains it, or restart the training"
                )
            self.posterior.load_state_dict(load_tensors(path)[0])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the learning rate to `lr` again: the scheduler changes it after every step."""
        if self.lr is not None and self.progress(state) >= self.start:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = self.lr

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Capture, also at the end of an epoch: a checkpoint may be written before `on_epoch_end` is called."""
        due = float(state.epoch or 0).is_integer() if self.steps is None else state.global_step % self.steps == 0
        if due and self.progress(state) > self.start:
            assert self.posterior is not None
            self.posterior.update(kwargs["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save the posterior in the checkpoint that the Trainer has just written."""
        if self.progress(state) > self.start and state.is_world_process_zero:
            assert self.posterior is not None
            save_tensors(self._path(args, state), self.posterior.state_dict())

    def _path(self, args: TrainingArguments, state: TrainerState) -> Path:
        folder = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        return Path(str(args.output_dir)) / folder / "posterior.safetensors"

"""What can be set, with its meaning and its limits: frozen dataclasses that check themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from srepr.errors import InputError

Protocol = Literal["paper", "holdout"]


def check(holds: bool, complaint: str) -> None:
    """Refuse a setting that cannot work, in one line.

    >>> check(1 > 2, "--epochs must be at least 1")
    Traceback (most recent call last):
    srepr.errors.InputError: --epochs must be at least 1
    """
    if not holds:
        raise InputError(complaint)


@dataclass(frozen=True, kw_only=True)
class Optim:
    """SGD with Nesterov momentum on a cosine, then a constant rate while weights are captured (paper, section 2.2).

    >>> Optim(lr=0.5).swa_lr
    0.02
    """

    lr: float = 0.1
    """Base learning rate, where the cosine starts."""
    momentum: float = 0.9
    """Nesterov momentum."""
    weight_decay: float = 5e-4
    """L2 penalty, added to the gradient."""
    warmup_epochs: float = 1.0
    """Epochs of linear warm-up to the base rate."""
    swa_lr: float = 0.02
    """Constant rate while the weights are captured."""
    swa_start: float = 0.75
    """Fraction of the epochs after which capturing begins."""

    def __post_init__(self) -> None:
        check(self.lr > 0, f"--optim.lr is {self.lr}: it must be above 0")
        check(self.swa_lr > 0, f"--optim.swa-lr is {self.swa_lr}: it must be above 0")
        check(0 < self.momentum < 1, f"--optim.momentum is {self.momentum}: it must lie between 0 and 1")
        check(self.weight_decay >= 0, f"--optim.weight-decay is {self.weight_decay}: it must not be negative")
        check(self.warmup_epochs >= 0, f"--optim.warmup-epochs is {self.warmup_epochs}: it must not be negative")
        check(0 <= self.swa_start < 1, f"--optim.swa-start is {self.swa_start}: it must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which examples are trained on, and which are kept away from the training.

    >>> Data(imbalance=0.1).profile
    'exponential'
    """

    imbalance: float | None = None
    """Smallest class over largest class after subsampling; the recipe's own when not given."""
    profile: Literal["exponential", "step"] = "exponential"
    """Shape of the subsampled class counts."""
    counts: tuple[int, ...] = ()
    """Explicit class counts to subsample to, one for each class."""
    protocol: Protocol | None = None
    """paper: the full train set, nothing chosen; holdout: a stratified validation part for every choice made.
    The paper's recipes default to paper, people's own data to holdout."""
    holdout: float = 0.1
    """Fraction of each class that the holdout protocol keeps for validation."""
    image_size: int | None = None
    """Side of the square images made from a folder or a CSV (224 when not given; at most 64 keeps them in memory)."""
    skip_bad_images: bool = False
    """Go on without images that cannot be decoded, and count them."""

    def __post_init__(self) -> None:
        check(
            self.imbalance is None or 0 < self.imbalance <= 1, f"--imbalance is {self.imbalance}: it must be in (0, 1]"
        )
        check(
            all(count > 0 for count in self.counts), f"--counts has {min(self.counts, default=0)}: each must be 1 up"
        )
        check(0 < self.holdout < 1, f"--holdout is {self.holdout}: it must lie between 0 and 1")
        check(self.image_size is None or self.image_size >= 8, f"--image-size is {self.image_size}: 8 is the least")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how fast the work is done.

    >>> Machine().precision
    '32-true'
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Processes, one device each; a multi-process launcher (torchrun, SLURM) is recognised by itself."""
    num_nodes: int = 1
    """Machines taking part."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of the training."""
    compile: bool = False
    """Compile the network (needs a C++ compiler; falls back with a notice)."""
    workers: int = 2
    """Processes that decode image files; does not change the result."""
    checkpoint_minutes: float = 10.0
    """Within a long epoch, the state is also kept after this time; does not change the result."""

    def __post_init__(self) -> None:
        check(self.devices >= 1, f"--devices is {self.devices}: at least 1 is needed")
        check(self.num_nodes >= 1, f"--num-nodes is {self.num_nodes}: at least 1 is needed")
        check(self.workers >= 0, f"--workers is {self.workers}: it must not be negative")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Stage 1: everything that decides the representation.

    >>> Train(source="digits-lt", epochs=40).captures
    10
    """

    source: Positional[Annotated[str, arg(metavar="SOURCE")]]
    """cifar10-lt, cifar100-lt, imagenet-lt, inaturalist18 or digits-lt; or a folder, .csv or .npz of yours."""
    data: Annotated[Data, arg(name="")] = field(default_factory=Data)
    """Which examples."""
    network: str = "auto"
    """resnet8, -14, -20, -32, -18 or -50, resnext50 or mlp; auto chooses by the size of the input."""
    shortcut: Literal["A", "B"] = "A"
    """Shortcuts of the small ResNets: parameter-free (A) or a 1x1 convolution (B)."""
    epochs: int = 100
    """Length of stage 1."""
    batch_size: int = 128
    """Examples in a step, over all processes."""
    optim: Optim = field(default_factory=Optim)
    """Optimiser."""
    mixup: float = 0.0
    """a of the Beta(a, a) that mixes pairs of examples; 0 is off."""
    baseline: bool = False
    """Also finish the cosine without averaging, as the SGD baseline."""
    seed: int = 0
    """Decides everything that is random."""

    def __post_init__(self) -> None:
        check(self.epochs >= 1, f"--epochs is {self.epochs}: at least 1 is needed")
        check(self.batch_size >= 2, f"--batch-size is {self.batch_size}: BatchNorm needs at least 2")
        check(self.mixup >= 0, f"--mixup is {self.mixup}: it must not be negative")
        check(0 <= self.seed < 2**32, f"--seed is {self.seed}: it must lie in 0 .. 4294967295")

    @property
    def swa_start(self) -> int:
        """The epoch from which weights are captured: at least the last epoch is one."""
        return min(int(self.optim.swa_start * self.epochs), self.epochs - 1)

    @property
    def captures(self) -> int:
        """How many sets of weights the posterior is made of."""
        return self.epochs - self.swa_start


def stage2_epochs(stage1_epochs: int) -> int:
    """How long stage 2 is where nothing else is said: a tenth of stage 1, and at least 10: kept features cost little.

    >>> stage2_epochs(180), stage2_epochs(40)
    (18, 10)
    """
    return max(10, round(0.1 * stage1_epochs))


@dataclass(frozen=True, kw_only=True)
class Retrain:
    """Stage 2: how a head is trained on frozen features (paper, section 4 and appendix A.4).

    >>> Retrain(samples=10).temperature
    20.0
    """

    epochs: int | None = None
    """Epochs over the features; when not given a tenth of stage 1, and at least 10: kept features cost little."""
    lr: float = 0.1
    """Where the cosine to 0 starts."""
    momentum: float = 0.9
    """Nesterov momentum."""
    weight_decay: float | None = None
    """L2 penalty on a linear head, 0.01 / sqrt(K) when not given; the few parameters of other heads have none."""
    batch_size: int | None = None
    """Examples in a step; as in stage 1 when not given."""
    samples: int = 10
    """M, the representations of each example (at least 2 to distil)."""
    views: int = 1
    """Augmented views of the data that are kept, and taken in turn by the epochs."""
    on_the_fly: bool = False
    """New draws and new augmentation in every epoch, as in the paper, instead of kept features."""
    batchnorm: Literal["recalibrate", "reuse"] = "recalibrate"
    """BatchNorm of the draws: statistics of their own, or those of the averaged network."""
    calibration: int = 4000
    """Training examples for a draw's own BatchNorm statistics, about."""
    temperature: float = 20.0
    """Of the softmax in the distillation."""
    distill_weight: float = 0.5
    """w of the loss (1 - w) L_CE + w L_KD."""
    rho: float = 1.0
    """Strength of the balances grw and la."""
    tau: float = 1.0
    """Of tau-norm: w_k / |w_k|^tau."""
    seed: int = 0
    """Decides everything that is random."""

    def __post_init__(self) -> None:
        check(self.epochs is None or self.epochs >= 1, f"--epochs is {self.epochs}: at least 1 is needed")
        check(self.lr > 0, f"--lr is {self.lr}: it must be above 0")
        check(0 < self.momentum < 1, f"--momentum is {self.momentum}: it must lie between 0 and 1")
        check((self.weight_decay or 0) >= 0, f"--weight-decay is {self.weight_decay}: it must not be negative")
        check(self.batch_size is None or self.batch_size >= 1, f"--batch-size is {self.batch_size}: 1 is the least")
        check(self.samples >= 1, f"--samples is {self.samples}: at least 1 is needed")
        check(self.views >= 1, f"--views is {self.views}: at least 1 is needed")
        check(self.batchnorm in ("recalibrate", "reuse"), f"--batchnorm is {self.batchnorm}: recalibrate or reuse")
        check(self.calibration >= 2, f"--calibration is {self.calibration}: at least 2 are needed")
        check(self.temperature > 0, f"--temperature is {self.temperature}: it must be above 0")
        check(0 <= self.distill_weight <= 1, f"--distill-weight is {self.distill_weight}: it must be in 0 .. 1")
        check(self.rho >= 0, f"--rho is {self.rho}: it must not be negative")
        check(0 <= self.seed < 2**32, f"--seed is {self.seed}: it must lie in 0 .. 4294967295")

    def decay(self, classes: int) -> float:
        """The weight decay of a linear head for that many classes: the given one, or else 0.01 / sqrt(K).

        The more classes there are, the fewer examples pull at each row of the classifier, and the less decay it
        bears: a tenth of the classes wants about three times the decay (`results/experiments.md`).

        >>> Retrain().decay(100), Retrain(weight_decay=0.0).decay(100)
        (0.001, 0.0)
        """
        return 0.01 / math.sqrt(classes) if self.weight_decay is None else self.weight_decay

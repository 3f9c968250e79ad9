"""The settings of both stages as frozen dataclasses that check themselves, and the paper's recipes by name.

The docstring below each field is also its help text on the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from srepr.errors import check, check_count, check_finite, check_seed

Protocol = Literal["paper", "holdout"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
Stage1 = Literal["swa", "sgd"]
"""The networks of stage 1: the averaged one, and the SGD baseline."""

BATCH_SIZE = 128


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The optimiser and its schedule: a cosine, then a constant rate for SWA (paper, section 2.2).

    >>> Optim(lr=-1)
    Traceback (most recent call last):
    srepr.errors.InputError: `lr` is -1: it must be above 0
    """

    name: Literal["sgd", "adamw"] = "sgd"
    """sgd with Nesterov momentum, as in the paper, or adamw, the usual choice for transformers."""
    lr: float = 0.1
    """Base learning rate, where the cosine schedule starts."""
    body: float = 1.0
    """Learning rate of all layers but the classifier, as a fraction of the others': below 1 to fine-tune."""
    momentum: float = 0.9
    """Nesterov momentum of sgd."""
    weight_decay: float = 5e-4
    """sgd: L2 penalty, added to the gradient; adamw: decoupled weight decay."""
    clip: float | None = None
    """Largest norm of the gradient; a longer one is scaled down to it."""
    warmup_epochs: float = 1.0
    """Epochs of linear warm-up to the base learning rate."""
    swa_lr: float = 0.02
    """Constant learning rate while weights are captured."""
    swa_start: float = 0.75
    """Fraction of the epochs after which weights are captured."""

    def __post_init__(self) -> None:
        check_finite(self)
        check(self.name in ("sgd", "adamw"), f"`name` is {self.name!r}: choose 'sgd' or 'adamw'")
        check(self.lr > 0, f"`lr` is {self.lr}: it must be above 0")
        check(self.swa_lr > 0, f"`swa_lr` is {self.swa_lr}: it must be above 0")
        check(0 < self.body <= 1, f"`body` is {self.body}: it must be above 0 and at most 1")
        check(self.clip is None or self.clip > 0, f"`clip` is {self.clip}: it must be above 0")
        check(0 < self.momentum < 1, f"`momentum` is {self.momentum}: it must lie between 0 and 1")
        check(self.weight_decay >= 0, f"`weight_decay` is {self.weight_decay}: it must not be negative")
        check(self.warmup_epochs >= 0, f"`warmup_epochs` is {self.warmup_epochs}: it must not be negative")
        check(0 <= self.swa_start < 1, f"`swa_start` is {self.swa_start}: it must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which examples are trained on, and which are held out.

    >>> Data(imbalance=2)
    Traceback (most recent call last):
    srepr.errors.InputError: `imbalance` is 2: it must lie in (0, 1]
    """

    imbalance: float | None = None
    """Smallest class size over largest class size after subsampling; default: the recipe's."""
    profile: Literal["exponential", "step"] = "exponential"
    """Shape of the subsampled class counts."""
    counts: tuple[int, ...] = ()
    """Explicit class counts to subsample to, one for each class."""
    protocol: Protocol | None = None
    """paper: train on the full training set and choose nothing; holdout: keep a stratified validation set.
    The named benchmarks default to paper, your own data to holdout."""
    holdout: float = 0.1
    """Fraction of each class that the holdout protocol keeps for validation."""
    image_size: int | None = None
    """Side of the square images that the network sees; default: that of most files, at most 224."""
    skip_bad_images: bool = False
    """Skip images that cannot be decoded, and report how many."""

    def __post_init__(self) -> None:
        inside = self.imbalance is None or 0 < self.imbalance <= 1
        check(inside, f"`imbalance` is {self.imbalance}: it must lie in (0, 1]")
        check(all(n > 0 for n in self.counts), f"`counts` has {min(self.counts, default=0)}: each must be at least 1")
        check(0 < self.holdout < 1, f"`holdout` is {self.holdout}: it must lie between 0 and 1")
        fits = self.image_size is None or 8 <= self.image_size <= 4096
        check(fits, f"`image_size` is {self.image_size}: it must lie in 8 .. 4096")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware to use.

    >>> Machine(devices=0)
    Traceback (most recent call last):
    srepr.errors.InputError: `devices` is 0: at least 1 is needed
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Number of processes, with one device each; torchrun and SLURM are detected."""
    num_nodes: int = 1
    """Number of machines."""
    precision: Precision = "32-true"
    """Floating-point precision of the training, or of the training features if the body is frozen."""
    compile: bool = False
    """Compile the network with torch.compile (needs a C++ compiler; without one a notice is printed)."""
    sync_batchnorm: bool = False
    """Let BatchNorm see the batch of all processes, so that the result does not depend on their number."""
    workers: int = 2
    """Processes that decode image files; does not change the result."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints within an epoch; does not change the result."""

    def __post_init__(self) -> None:
        check_finite(self)
        check_count("devices", self.devices)
        check_count("num_nodes", self.num_nodes)
        check(self.workers >= 0, f"`workers` is {self.workers}: it must not be negative")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Stage 1: all settings that determine the representation.

    >>> Train(source="digits-lt", epochs=40).swa_start
    30
    """

    source: str
    """cifar10-lt, cifar100-lt, imagenet-lt, inaturalist18 or digits-lt; or your own folder, .csv, .jsonl or .npz."""
    data: Data = field(default_factory=Data)
    """Which examples."""
    network: str = "auto"
    """efficientnet-lite0, pretrained on ImageNet; hf:FOLDER, a network of Hugging Face for images or texts, or hf: and
    its name on the hub; resnet8, -14, -20, -32, -18 or -50, resnext50, mlp or linear, from scratch; or your own
    function of the number of classes as package.module:function. auto chooses by the data."""
    shortcut: Literal["A", "B"] = "A"
    """Shortcuts of the small ResNets: parameter-free (A) or a 1x1 convolution (B)."""
    epochs: int = 100
    """Number of stage-1 epochs."""
    batch_size: int = BATCH_SIZE
    """Examples per step, over all processes."""
    optim: Optim = field(default_factory=Optim)
    """Optimiser."""
    freeze: str = "auto"
    """body: train only the classifier, in seconds; none; or the layers that keep their weights, such as
    stem,blocks.0. auto is body for a pretrained network with a new classifier, else none."""
    mixup: float = 0.0
    """Parameter a of the Beta(a, a) distribution of mixup; 0 turns mixup off."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes in the training loss."""
    baseline: bool = False
    """Also train the SGD baseline, which follows the cosine schedule to its end without averaging."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_finite(self)
        check_count("epochs", self.epochs)
        check(self.batch_size >= 2, f"`batch_size` is {self.batch_size}: BatchNorm needs at least 2")
        check(self.mixup >= 0, f"`mixup` is {self.mixup}: it must not be negative")
        smooth = 0 <= self.label_smoothing < 1
        check(smooth, f"`label_smoothing` is {self.label_smoothing}: it must be at least 0 and below 1")
        check_seed(self.seed)

    @property
    def swa_start(self) -> int:
        """The first epoch after which weights are captured; the last epoch always is."""
        return first_capture(self.optim.swa_start, self.epochs)


def first_capture(swa_start: float, epochs: int) -> int:
    """The first epoch after which weights are captured, for a fraction of all epochs.

    >>> first_capture(0.75, 40), first_capture(0.75, 1)
    (30, 0)
    """
    return min(int(swa_start * epochs), epochs - 1)


def stage2_epochs(stage1_epochs: int) -> int:
    """Default number of stage-2 epochs: a tenth of stage 1, at least 10 (epochs on cached features are cheap).

    >>> stage2_epochs(180), stage2_epochs(40)
    (18, 10)
    """
    return max(10, round(0.1 * stage1_epochs))


def default_penalty(classes: int) -> float:
    """Penalty of the exact solver if there is no data to choose it on (`results/penalty.md`).

    With more classes, fewer examples pull at each row of the classifier, and it tolerates less.

    >>> round(default_penalty(9), 4), round(default_penalty(100), 4)
    (0.01, 0.003)
    """
    return 0.03 / math.sqrt(classes)


SAMPLES, VIEWS, MOST_SAMPLES = 10, 5, 10_000
"""Representations of an example: draws of the posterior, or augmented views of a frozen body; and the most of them."""


@dataclass(frozen=True, kw_only=True)
class Retrain:
    """Stage 2: how a head is trained on frozen features (paper, section 4 and appendix A.4).

    >>> Retrain(temperature=0)
    Traceback (most recent call last):
    srepr.errors.InputError: `temperature` is 0: it must be above 0
    """

    solver: Literal["exact", "sgd"] = "exact"
    """exact: the best linear head for its penalty. sgd: the paper's SGD; heads that are not linear always use it."""
    penalty: float | None = None
    """L2 penalty of the exact solver, on features of unit scale; default: chosen on a validation set, or else
    0.03 / sqrt(K) for K classes."""
    epochs: int | None = None
    """SGD: number of stage-2 epochs; default: a tenth of stage 1, at least 10."""
    lr: float = 0.1
    """SGD: learning rate at the start of the cosine schedule."""
    momentum: float = 0.9
    """SGD: Nesterov momentum."""
    weight_decay: float = 5e-4
    """SGD: L2 penalty of a linear head, added to the gradient. Other heads have none."""
    batch_size: int | None = None
    """SGD: examples per step; default: as in stage 1."""
    samples: int | None = None
    """M, the number of representations of each example; distillation needs at least 2. Default: 10 draws of the
    posterior, or 5 augmented views if the body is frozen."""
    views: int = 1
    """Number of cached augmented views of the data; the epochs cycle through them."""
    on_the_fly: bool = False
    """Draw new weights and augment anew in every epoch, as in the paper, instead of caching features."""
    batchnorm: Literal["recalibrate", "reuse"] = "recalibrate"
    """BatchNorm statistics of a draw: recomputed for it, or reused from the averaged network."""
    calibration: int = 4000
    """Approximate number of training examples for the BatchNorm statistics of a draw."""
    temperature: float = 20.0
    """Softmax temperature of the distillation."""
    distill_weight: float = 0.5
    """w in the loss (1 - w) L_CE + w L_KD."""
    rho: float = 1.0
    """Strength of the balances grw and la."""
    tau: float = 1.0
    """Exponent of tau-norm, w_k / |w_k|^tau."""
    seed: int = 0
    """Random seed."""

    @property
    def draws(self) -> int:
        """`samples`, or its default for a posterior."""
        return SAMPLES if self.samples is None else self.samples

    def __post_init__(self) -> None:
        check_finite(self)
        check_count("epochs", 1 if self.epochs is None else self.epochs)
        check(self.lr > 0, f"`lr` is {self.lr}: it must be above 0")
        check(0 < self.momentum < 1, f"`momentum` is {self.momentum}: it must lie between 0 and 1")
        check(self.solver in ("exact", "sgd"), f"`solver` is {self.solver!r}: choose 'exact' or 'sgd'")
        check(self.penalty is None or self.penalty > 0, f"`penalty` is {self.penalty}: it must be above 0")
        check(not (self.on_the_fly and self.solver == "exact"), "`on_the_fly` is for SGD. Set `solver` to sgd.")
        check(self.weight_decay >= 0, f"`weight_decay` is {self.weight_decay}: it must not be negative")
        fits = self.batch_size is None or self.batch_size >= 1
        check(fits, f"`batch_size` is {self.batch_size}: at least 1 is needed")
        check_count("samples", self.draws, MOST_SAMPLES)
        check_count("views", self.views)
        known = self.batchnorm in ("recalibrate", "reuse")
        check(known, f"`batchnorm` is {self.batchnorm!r}: choose 'recalibrate' or 'reuse'")
        check(self.calibration >= 2, f"`calibration` is {self.calibration}: at least 2 are needed")
        check(self.temperature > 0, f"`temperature` is {self.temperature}: it must be above 0")
        check(1e-6 <= self.temperature <= 1e6, f"`temperature` is {self.temperature}: it must lie in 1e-6 .. 1e6")
        check(0 <= self.distill_weight <= 1, f"`distill_weight` is {self.distill_weight}: it must lie in 0 .. 1")
        labels = self.distill_weight < 1 or self.solver == "sgd"
        check(labels, "`distill_weight` is 1: without labels there is no best head. Lower it, or set `solver` to sgd")
        check(0 <= self.rho <= 10, f"`rho` is {self.rho}: it must lie in 0 .. 10")
        check(-10 <= self.tau <= 10, f"`tau` is {self.tau}: it must lie in -10 .. 10")
        check_seed(self.seed)


_CIFAR = Train(source="cifar10-lt", network="resnet32", epochs=200, optim=Optim(lr=0.5, weight_decay=5e-4, swa_lr=0.1))
RECIPES: dict[str, Train] = {
    "cifar10-lt": _CIFAR,
    "cifar100-lt": replace(_CIFAR, source="cifar100-lt"),
    "imagenet-lt": Train(
        source="imagenet-lt",
        network="resnet50",
        epochs=100,
        batch_size=256,
        optim=Optim(lr=0.1, weight_decay=3e-4, swa_lr=0.01),
    ),
    "inaturalist18": Train(
        source="inaturalist18",
        network="resnet50",
        epochs=200,
        batch_size=256,
        optim=Optim(lr=0.1, weight_decay=1e-4, swa_lr=0.005),
    ),
    "digits-lt": Train(
        source="digits-lt",
        network="resnet8",
        epochs=40,
        batch_size=32,
        optim=Optim(lr=0.1, weight_decay=5e-4, swa_lr=0.02),
    ),
}
"""Stage 1 of each benchmark (paper, appendix); a CIFAR takes about three hours on two cores. ACC / NLL / ECE of the
paper's SWA + SRepr: cifar10-lt 82.06 / 0.542 / 0.021, cifar100-lt 47.81 / 2.148 / 0.149, imagenet-lt 52.12 / 2.130 /
0.037, inaturalist18 70.79 / 1.353 / 0.036. digits-lt, which is ours: 87 to 93 / - / 0.024 to 0.031, in seconds."""
_TUNE = Optim(name="adamw", lr=1e-3, weight_decay=0.01, swa_lr=5e-4, swa_start=0.5, clip=1.0)
FINE_TUNE = Train(source="", epochs=12, batch_size=64, optim=_TUNE)
"""Stage 1 from a pretrained network, as far as it is not frozen (docs/train.md says how it was chosen)."""
_ADAMW = Optim(name="adamw", lr=1e-4, body=0.5, weight_decay=0.01, swa_lr=5e-5, swa_start=0.5, clip=1.0)
FINE_TUNE_TRANSFORMER = replace(FINE_TUNE, epochs=4, batch_size=32, optim=_ADAMW)
"""The same from a network of Hugging Face: AdamW, 5e-5 for the body and 1e-4 for the classifier (docs/texts.md)."""
TABLE = Train(source="", network="mlp", epochs=60, batch_size=64, optim=Optim(lr=0.05, weight_decay=1e-2, swa_lr=0.01))
"""Stage 1 of your own tables and embeddings."""
COLLECT_EPOCHS = 10


def settings_for(source: str) -> Train:
    """The recipe of that name, or the defaults for your own folder, .csv, .jsonl or .npz.

    >>> settings_for("cifar100-lt").optim.lr
    0.5
    >>> settings_for("photos/birds").epochs
    100
    """
    return RECIPES.get(source) or Train(source=source)


def collect_settings(recipe: Train, epochs: int | None = None) -> Train:
    """The recipe for a network that is trained already: a few epochs at the SWA rate, each captured.

    >>> collect_settings(RECIPES["cifar100-lt"]).swa_start
    0
    """
    optim = replace(recipe.optim, swa_start=0.0, warmup_epochs=0.0)
    return replace(recipe, epochs=COLLECT_EPOCHS if epochs is None else epochs, optim=optim, baseline=False)

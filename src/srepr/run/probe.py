"""A pretrained network as it is, and a linear classifier that is solved on its features.

With `freeze` "body" this is all of stage 1; a fine-tuning starts from it.

The features of the training data are computed once and kept in the run folder. The classifier of stage 1 is the
solution of the plain, unbalanced problem (`srepr.solver`); `srepr retrain` then solves the balanced ones on the same
features.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from srepr.config import Machine, Retrain, default_penalty
from srepr.data import LongTailData
from srepr.data.about import About
from srepr.methods import Method
from srepr.models.split import swap
from srepr.posterior import Posterior
from srepr.retraining import train_head
from srepr.run.checkpoints import save_model, save_posterior
from srepr.run.classifiers import Frozen
from srepr.run.evaluate import on_parts
from srepr.run.folder import STAGE_1
from srepr.storage.files import write_json

PLAIN = Method(head="linear")
START = 10.0
"""Times the default penalty, of the classifier that a fine-tuning starts from."""


def probe(
    network: nn.Module, about: About, data: LongTailData, out: Path, machine: Machine, *, seed: int, quiet: bool
) -> None:
    """Solve the classifier, measure it and write the run; the results come last and mark the end."""
    frozen = opened(network, about, out, machine, quiet=quiet)
    head = solved(frozen, data, seed)
    metrics = on_parts(data, lambda part: frozen.judge(head, part).metrics)
    swap(network, network.get_submodule(about.classifier), head)
    save_model(out / STAGE_1["swa"], network, about)
    save_posterior(out / "posterior.safetensors", captured(network, about))
    write_json(out / "results.json", {"swa": frozen.named(metrics)})


def start_solved(
    network: nn.Module, about: About, data: LongTailData, out: Path, machine: Machine, *, seed: int, quiet: bool
) -> None:
    """Give a pretrained network the solved classifier to fine-tune from.

    A random one would first send random gradients through the body and distort its features (Kumar et al. 2022). One
    with a small penalty fits every example, and the body would learn nothing from it.
    """
    penalty = START * default_penalty(len(about.counts))
    head = solved(opened(network, about, out, machine, quiet=quiet), data, seed, penalty)
    # A classifier of yours may have no bias: it starts without one.
    network.get_submodule(about.classifier).load_state_dict(head.state_dict(), strict=False)


def opened(network: nn.Module, about: About, out: Path, machine: Machine, *, quiet: bool) -> Frozen:
    """The network as it came, whose features are kept in the run."""
    return Frozen(
        run=out,
        network=network.eval(),
        posterior=captured(network, about),
        about=about,
        pretrained=True,
        precision=machine.precision,
        workers=machine.workers,
        quiet=quiet,
    )


def solved(frozen: Frozen, data: LongTailData, seed: int, penalty: float | None = None) -> nn.Module:
    """The classifier that solves the plain problem on the network's features, by default with the usual penalty."""
    settings = Retrain(samples=1, seed=seed, penalty=penalty)
    source = frozen.features(data.train, "deterministic", settings, augment=True)
    return train_head(source, frozen.layer, frozen.about.counts, PLAIN, settings)


def captured(network: nn.Module, about: About) -> Posterior:
    """The posterior of a single capture, which has no spread."""
    posterior = Posterior(network, classifier=about.classifier)
    posterior.update(network)
    return posterior

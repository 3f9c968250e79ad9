"""Stage 1 without training: a pretrained network as it is, and a linear classifier that is solved on its features.

The features of the training data are computed once and kept in the run folder. The classifier of stage 1 is the
solution of the plain, unbalanced problem (`srepr.solver`); `srepr retrain` then solves the balanced ones on the same
features.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from srepr.config import Machine, Retrain
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


def probe(
    network: nn.Module, about: About, data: LongTailData, out: Path, machine: Machine, *, seed: int, quiet: bool
) -> None:
    """Solve the classifier, measure it and write the run; the results come last and mark the end."""
    frozen = Frozen(
        run=out,
        network=network.eval(),
        posterior=captured(network, about),
        about=about,
        pretrained=True,
        precision=machine.precision,
        workers=machine.workers,
        quiet=quiet,
    )
    settings = Retrain(samples=1, seed=seed)
    source = frozen.features(data.train, "deterministic", settings, augment=True)
    head = train_head(source, frozen.layer, about.counts, PLAIN, settings)
    metrics = on_parts(data, lambda part: frozen.judge(head, part).metrics)
    swap(network, network.get_submodule(about.classifier), head)
    save_model(out / STAGE_1["swa"], network, about)
    save_posterior(out / "posterior.safetensors", captured(network, about))
    write_json(out / "results.json", {"swa": frozen.named(metrics)})


def captured(network: nn.Module, about: About) -> Posterior:
    """The posterior of a single capture, which has no spread."""
    posterior = Posterior(network, classifier=about.classifier)
    posterior.update(network)
    return posterior

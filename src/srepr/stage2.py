"""`srepr retrain`: heads on the frozen network of a run folder, from one cache of features, each a small file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from srepr import runs
from srepr.checkpoints import About, load_model, load_posterior
from srepr.config import Retrain, stage2_epochs
from srepr.data import LongTailData
from srepr.data.examples import Examples
from srepr.data.longtail import Indices
from srepr.errors import InputError
from srepr.evaluation import STAGE_1, Stage1, load_run_data, prior_weights
from srepr.features import NetworkFeatures, Sampling
from srepr.inputs import ExampleInputs
from srepr.methods import Method
from srepr.metrics import LongTailMetrics
from srepr.models.cosine import Cosine
from srepr.posterior import Posterior
from srepr.retraining import Diverged, bias_of, linear_classifier, sampling_for, scale_of, train_head

CHUNK = 1024


def retrain_run(
    run: Path,
    methods: dict[str, Method],
    settings: Retrain | None = None,
    *,
    stage1: Stage1 = "swa",
    data_dir: Path | None = None,
    cache: Path | None = None,
    workers: int = 0,
    compiled: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Train a head for each (name, method) on the run's network, write heads/NAME, and return their metrics.

    All share one feature cache, in the run or in the folder `cache`. A name that exists with the same settings is
    left as it is; with other ones it is refused. A method that diverges is reported as such in its metrics
    (`diverged`), and the others go on.

    >>> from srepr.methods import METHODS
    >>> retrain_run(getfixture("tmp_path") / "nothing", {"srepr": METHODS["srepr"]})
    Traceback (most recent call last):
    srepr.errors.InputError: .../nothing is not a folder. Name a run made by `srepr train`.
    """
    trained = runs.read_settings(run)
    file = run / STAGE_1[stage1]
    if not (run / "results.json").exists():
        raise InputError(f"the training in {run} is not finished. Finish it with the `srepr train` that began it.")
    if not file.exists():
        raise InputError(f"{run} has no {file.name}. Train one with `srepr train --baseline`.")
    network, about = load_model(file)
    settings = settings or Retrain()
    settings = replace(
        settings,
        epochs=settings.epochs or stage2_epochs(trained["epochs"]),
        batch_size=settings.batch_size or trained["batch_size"],
        weight_decay=settings.decay(len(about.counts)),
    )
    posterior = posterior_of(run, stage1, network)
    for name, how in methods.items():
        if not re.fullmatch(r"\w[\w.+-]*", name) or name in STAGE_1:
            raise InputError(f"a head cannot be called {name!r}. Use letters, digits, '-', '+', '.' and '_'.")
        if how.representation == "swag" and stage1 == "sgd":
            raise InputError(f"{name} draws from the posterior, and the SGD baseline has none. Use --stage1 swa.")
        if how.representation == "swag" and "imported" in trained:
            collect = f"srepr train {trained['source']} --from {run} --out NEW"
            raise InputError(
                f"{name} draws from a posterior, and an imported network has none. Collect one: {collect}"
            )
    data = load_run_data(run, data_dir)
    frozen = Frozen(
        run=run,
        network=network,
        posterior=posterior,
        about=about,
        cache=cache,
        workers=workers,
        compiled=compiled,
        quiet=quiet,
    )
    with runs.sole_writer(run):
        (run / "heads").mkdir(exist_ok=True)
        results = runs.read_json(run / "results.json")
        made_of = {
            name: {"stage1": stage1, "method": asdict(how), "settings": asdict(settings)}
            for name, how in methods.items()
        }
        kept = {name: None if overwrite else kept_metrics(run, name, wanted) for name, wanted in made_of.items()}
        for name, how in methods.items():
            results[name] = kept[name] or frozen.make_head(name, how, settings, made_of[name], data)
            runs.write_json(run / "results.json", results)
    return {name: results[name] for name in methods}


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What stage 2 works on: a network of a run folder that does not change any more."""

    run: Path
    network: nn.Module
    posterior: Posterior
    about: About
    cache: Path | None = None
    """Where features are kept, instead of in the run."""
    workers: int = 0
    compiled: bool = False
    quiet: bool = False

    def features(
        self, examples: Examples, sampling: Sampling, *, augment: bool, calibration: Examples | None = None
    ) -> NetworkFeatures:
        """The features of a part of the data, kept in the run's cache; draws are calibrated on it, or on another."""
        return NetworkFeatures(
            self.network,
            self.posterior,
            ExampleInputs(examples, sampling.seed, self.workers, augment),
            sampling,
            calibration=None if calibration is None else ExampleInputs(calibration, sampling.seed, self.workers),
            folder=self.cache or self.run / "cache",
            compiled=self.compiled,
            quiet=self.quiet,
        )

    def make_head(
        self, name: str, how: Method, settings: Retrain, wanted: dict[str, Any], data: LongTailData
    ) -> dict[str, Any]:
        """Train, measure and write one head; its metrics, or `diverged` with the reason."""
        began = time.monotonic()
        source = self.features(data.train, sampling_for(how, settings), augment=True)
        layer = linear_classifier(self.network, "fc")
        note, weights = (self.run / "heads" / f"{name}.{suffix}" for suffix in ("json", "safetensors"))
        try:
            head = train_head(
                source,
                layer.weight,
                bias_of(layer),
                self.about.counts,
                how,
                settings,
                scale=scale_of(layer),
                quiet=self.quiet,
            )
        except Diverged as error:
            metrics: dict[str, Any] = {"diverged": str(error)}
            note.unlink(missing_ok=True)
            weights.unlink(missing_ok=True)
        else:
            seconds = round(time.monotonic() - began, 2)
            metrics = {**self.measure_parts(head, data), "seconds": seconds}
            kind = "cosine" if isinstance(head, Cosine) else "linear" if how.head == "tau-norm" else how.head
            note.unlink(missing_ok=True)  # a head is there when its note is: never new weights with an old one
            runs.save_tensors(weights, head.state_dict(), {"kind": kind, "made of": json.dumps(wanted)})
        runs.write_json(note, {**wanted, "metrics": metrics})
        return metrics

    def measure_parts(self, head: nn.Module, data: LongTailData, prior: str = "test") -> dict[str, Any]:
        """The metrics of a head on the test part and, as `validation`, on what was held out."""
        result = self.measure(head, data.test, prior) if data.test is not None else {}
        if data.validation is not None:
            result["validation"] = self.measure(head, data.validation, prior)
        return result

    def measure(self, head: nn.Module, examples: Examples, prior: str = "test") -> dict[str, Any]:
        """The metrics of a head on a part."""
        metrics = LongTailMetrics(self.about.counts, sync_on_compute=False)
        weights = prior_weights(prior, self.about.counts, examples.labels)
        for part, logits in self.outputs(head, examples):
            metrics.update(logits, torch.from_numpy(examples.labels[part]), weights[part])
        result: dict[str, Any] = metrics.compute()
        return result

    def outputs(self, head: nn.Module, examples: Examples) -> Iterator[tuple[Indices, Tensor]]:
        """The logits of a head, chunk by chunk as (indices, [B, K]), from kept features without augmentation."""
        sampling = Sampling(representation="deterministic", samples=1)
        features = self.features(examples, sampling, augment=False).epoch(0)
        for part in np.array_split(np.arange(len(examples)), -(-len(examples) // CHUNK)):
            with torch.inference_mode():
                yield part, head(features.batch(part)[1])


def posterior_of(run: Path, stage1: Stage1, network: nn.Module) -> Posterior:
    """The run's posterior around the SWA network; around the SGD baseline, one without spread.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> posterior_of(Path("run"), "sgd", network).count
    1
    """
    if stage1 == "swa":
        return load_posterior(run / "posterior.safetensors", network)
    posterior = Posterior(network)
    posterior.update(network)
    return posterior


def kept_metrics(run: Path, name: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The metrics of a head that was made with the same settings; None where there is none of that name.

    >>> kept_metrics(getfixture("tmp_path"), "srepr", {}) is None
    True
    """
    file = run / "heads" / f"{name}.json"
    if not file.exists():
        return None
    found = runs.read_json(file)
    metrics: dict[str, Any] = found.pop("metrics")
    changed = "; ".join(runs.differences(as_typed(found), runs.plain(as_typed(wanted))))
    if changed:
        raise InputError(
            f"{run} has a head {name!r} with other settings: {changed}. Give another --name, or --overwrite it."
        )
    return metrics


def as_typed(made_of: dict[str, Any]) -> dict[str, Any]:
    """The settings of a head without their grouping, as on the command line.

    >>> as_typed({"stage1": "swa", "method": {"balance": "la"}, "settings": {"lr": 0.1}})
    {'stage1': 'swa', 'balance': 'la', 'lr': 0.1}
    """
    return {"stage1": made_of["stage1"], **made_of["method"], **made_of["settings"]}

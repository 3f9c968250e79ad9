"""`srepr import`: turn a checkpoint into a run folder for `retrain`, `evaluate` and `train --from`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from srepr.config import Data, settings_for
from srepr.data import load
from srepr.importing.checkpoint import NETWORK, fitted, read_checkpoint
from srepr.posterior import Posterior
from srepr.run.checkpoints import save_model, save_posterior
from srepr.run.description import data_options
from srepr.run.evaluate import measure_network, on_parts
from srepr.run.folder import STAGE_1, data_facts, enter_run, provenance, sole_writer
from srepr.run.schema import read_results
from srepr.storage.files import write_json


def import_checkpoint(
    path: Path,
    out: Path,
    source: str,
    *,
    data: Data | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    layout: str = "auto",
    scale: float = 30.0,
    workers: int = 0,
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Create a run folder from a checkpoint and its training data; returns the metrics, under `swa`.

    The posterior has a single capture and no variance. The same call completes an interrupted import.

    >>> import torch
    >>> from srepr.models import resnet8
    >>> path = getfixture("tmp_path") / "checkpoint.pth"
    >>> torch.save(resnet8(10, channels=1).state_dict(), path)
    >>> results = import_checkpoint(path, getfixture("tmp_path") / "run", "digits-lt")
    >>> results["swa"]["n"]
    597
    """
    found = read_checkpoint(path, layout=layout, scale=scale)
    settings = replace(settings_for(source), network=NETWORK, freeze="none", seed=seed, data=data or Data())
    examples = load(source, data_dir=data_dir, seed=seed, **data_options(settings))
    network, about = fitted(path, found, examples)

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    wanted = {**asdict(settings), "imported": {"sha256": digest, "layout": found.layout, "scale": scale}}
    wanted["data"]["protocol"] = examples.protocol
    facts = {"checkpoint": {"file": path.name, "foreign": found.foreign}, **data_facts(examples, source, data_dir)}
    facts = {**provenance(), **facts}
    if out.is_dir() and any(out.iterdir()):  # refused before the work, if it is not this run
        enter_run(out, wanted, facts)
    if not (out / "results.json").exists():
        # Measured before a folder is made: a network that turns out to be unusable leaves nothing behind.
        metrics = on_parts(
            examples, lambda part: measure_network(network, part, about.counts, workers=workers, quiet=quiet)
        )
        posterior = Posterior(network, classifier=about.classifier)
        posterior.update(network)
        enter_run(out, wanted, facts)
        with sole_writer(out):
            save_model(out / STAGE_1["swa"], network, about)
            save_posterior(out / "posterior.safetensors", posterior)
            write_json(out / "results.json", {"swa": metrics})
    return read_results(out)

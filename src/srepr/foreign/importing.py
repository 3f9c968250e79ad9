"""`srepr import`: another project's checkpoint as a run folder, for `retrain`, `evaluate` and `train --from`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from srepr import runs
from srepr.checkpoints import save_model, save_posterior
from srepr.config import Data
from srepr.data import load
from srepr.evaluation import STAGE_1, measure_parts
from srepr.foreign.networks import NETWORK, fitted, read_checkpoint
from srepr.posterior import Posterior
from srepr.recipes import RECIPES, settings_for
from srepr.stage1 import data_options


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
    """Make a run folder of a checkpoint and of the data that it was trained on; its metrics on them, as `swa`.

    The posterior is one set of weights, without spread. An import that was cut short is finished by the same call.

    >>> import torch
    >>> from srepr.models import resnet8
    >>> path = getfixture("tmp_path") / "checkpoint.pth"
    >>> torch.save(resnet8(10, channels=1).state_dict(), path)
    >>> results = import_checkpoint(path, getfixture("tmp_path") / "run", "digits-lt")
    >>> results["swa"]["n"]
    597
    """
    found = read_checkpoint(path, layout=layout, scale=scale)
    settings = replace(settings_for(source), network=NETWORK, seed=seed, data=data or Data())
    examples = load(source, data_dir=data_dir, seed=seed, **data_options(settings))
    network, about = fitted(path, found, examples)

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    wanted = {**asdict(settings), "imported": {"sha256": digest, "layout": found.layout, "scale": scale}}
    wanted["data"]["protocol"] = examples.protocol
    place = data_dir if source in RECIPES else Path(source)
    facts = {
        "checkpoint": {"file": path.name, "foreign": found.foreign},
        "data_dir": str(place.resolve() if place else ""),
        "examples": examples.describe(),
    }
    runs.open_run(out, wanted, {**runs.provenance(), **facts})
    with runs.sole_writer(out):
        if not (out / "results.json").exists():
            metrics = measure_parts(network, about, examples, workers=workers, quiet=quiet)
            posterior = Posterior(network, classifier="fc")
            posterior.update(network)
            save_model(out / STAGE_1["swa"], network, about)
            save_posterior(out / "posterior.safetensors", posterior)
            runs.write_json(out / "results.json", {"swa": metrics})
    results: dict[str, dict[str, Any]] = runs.read_json(out / "results.json")
    return results

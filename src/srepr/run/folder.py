"""The run folder: what was trained and how, a log, and the states that a resume starts from.

R/config.json                 the settings, versions, data fingerprint and command
R/log.jsonl                   one line per epoch
R/representation.safetensors  the averaged network         R/sgd.safetensors   the SGD baseline
R/posterior.safetensors       mean, variance and count
R/heads/NAME.safetensors      a re-trained classifier      R/heads/NAME.json   its settings and metrics
R/results.json                every metric of every network and head
R/state/                      the last two states of an unfinished training
R/.checksums/                 those of the JSON files; a safetensors file has its own inside
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srepr.config import Data, Stage1, Train
from srepr.data.sources import NAMED, load
from srepr.errors import InputError, check, reading, tell
from srepr.run.checkpoints import read_about
from srepr.run.schema import Facts, Metrics, StateNote, read_config, read_entry
from srepr.storage import schema
from srepr.storage.files import adopt, create_folder, plain, read_json, write_json
from srepr.storage.tensors import load_metadata, load_tensors, save_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from srepr.data import LongTailData

FORMAT = 1
STATES_KEPT = 2
STAGE_1: dict[Stage1, str] = {"sgd": "sgd.safetensors", "swa": "representation.safetensors"}
CHECKED = ("config.json", "log.jsonl", "results.json", "heads/*.json", "analysis/analysis.json")
"""The JSON files that are read back; their checksums are in R/.checksums (`srepr.storage.checksums`)."""


def provenance() -> dict[str, Any]:
    """Command, versions and machine, for a reader who wants to make the run again."""
    versions = {"python": platform.python_version()}
    for package in ("srepr", "torch", "numpy", "lightning-fabric"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    machine = {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"command": command, "versions": versions, "machine": machine}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    >>> flatten({"seed": 0, "optim": {"lr": 0.5}})
    {'seed': 0, 'optim.lr': 0.5}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def flag(name: str) -> str:
    """A setting as it is typed on the command line.

    >>> flag("optim.swa_lr"), flag("data.image_size")
    ('--optim.swa-lr', '--image-size')
    """
    return "--" + name.removeprefix("data.").replace("_", "-")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Each setting that differs, in words; empty if none does.

    >>> differences({"data": {"holdout": 0.1}, "optim": {"lr": 0.5}}, {"data": {"holdout": 0.2}, "optim": {}})
    '`data.holdout` was 0.1, now 0.2; `optim.lr` was 0.5, now None'
    """
    before, after = flatten(old), flatten(new)
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return "; ".join(f"`{name}` was {before.get(name)}, now {after.get(name)}" for name in changed)


def enter_run(path: Path, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Start a run folder, or enter one that was started with the same settings and data.

    `settings` determine the result: if they differ from those in the folder, the run is refused and the difference is
    named; only the number of processes may change, and the optimiser of a frozen body. Other data, recognised by the
    fingerprint in `facts["examples"]`, are refused too. The other facts (provenance, file locations) stay as they were
    when the run began.
    """
    config = path / "config.json"
    wanted = plain(settings)
    if not config.exists():
        if path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
            raise InputError(f"{path} is not empty and not a run folder. Choose another folder with `out`.")
        create_folder(path)
        write_json(config, {"format": FORMAT, "settings": wanted, **facts})
        return
    began = read_settings(path)
    # Another number of processes has the same batches; only rounding, or BatchNorm by process, differs. A frozen body
    # is not optimised.
    free = ("devices", "num_nodes", "optim") if wanted.get("freeze") == "body" else ("devices", "num_nodes")
    wanted |= {name: began[name] for name in free if name in began}
    # A setting that the version which began the run did not have was at its default, and nothing was frozen.
    usual = {
        name: value for name, value in flatten(plain(asdict(Train(source="")))).items() if name in flatten(wanted)
    }
    usual |= {name: value for name, value in {"freeze": "none", "sync_batchnorm": False}.items() if name in wanted}
    changed = differences({**usual, **flatten(began)}, wanted)
    if changed:
        raise InputError(
            f"{path} holds a run with other settings: {changed}. Choose another folder with `out`, or use the old"
            " settings."
        )
    if read_fingerprint(path) != facts["examples"]["fingerprint"]:
        raise InputError(f"the data changed since {path} was started. Restore it, or choose another `out`.")
    create_folder(path)


def data_facts(data: LongTailData, source: str, data_dir: Path | None) -> dict[str, Any]:
    """What a run folder keeps about its data: where they are, and what `LongTailData.describe` says."""
    place = data_dir if source in NAMED else Path(source)
    return {"data_dir": str(place.resolve() if place else ""), "examples": data.describe()}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings with which the run folder was made."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Pass a run folder made by `srepr train`.")
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} does not describe a run. Pass a run folder made by `srepr train`.")
    if config.get("format") != FORMAT:
        raise InputError(
            f"{path} has run format {config.get('format')}; this version of srepr reads format {FORMAT}. Use the"
            " version that made it."
        )
    settings: dict[str, Any] = config["settings"]
    return settings


def read_fingerprint(path: Path) -> str:
    """The fingerprint of the data with which the run folder was made."""
    return str(read_json(path / "config.json", Facts).get("examples", {}).get("fingerprint"))


def load_run_data(run: Path, data_dir: Path | None = None) -> LongTailData:
    """The data with which the run was made, from where they were then or from `data_dir`; other data are refused."""
    read_settings(run)
    config = read_config(run)
    settings, stored = config["settings"], config.get("data_dir")
    source, place = settings["source"], data_dir or (Path(stored) if stored else None)
    if source not in NAMED and place is not None:
        within = place / Path(source).name
        with reading(run / "config.json", "Restore it"):  # names that no file can have
            source = within if within.exists() else place
    try:
        wanted: Data = schema.parsed(settings.get("data", {}), Data, "settings.data")
    except (schema.Mismatch, InputError) as error:
        raise InputError(f"{run / 'config.json'} is not as srepr writes it: {error}. Restore it.") from None
    options = {**asdict(wanted), "counts": wanted.counts or None}
    data = load(source, data_dir=place, seed=settings.get("seed", 0), **options)
    network = run / STAGE_1["swa"]
    if network.exists():
        data = data.prepared(read_about(network, load_metadata(network)))
    if data.fingerprint() != read_fingerprint(run):
        raise InputError(f"the data in {place or source} are not those that {run} was trained on. Restore them.")
    return data


def head_notes(run: Path) -> list[Path]:
    """The notes of a run's heads, the oldest first."""
    return sorted((run / "heads").glob("*.json"), key=lambda note: note.stat().st_mtime_ns)


def require_network(path: Path) -> None:
    """Raise an InputError if the run has no averaged network yet."""
    if not (path / STAGE_1["swa"]).exists():
        raise InputError(
            f"{path} has no trained network yet. Finish it with the `srepr train` command that started it."
        )


def is_writable(path: Path) -> bool:
    """Whether a run folder, and the cache in it, can be written to; not if its medium or its owner refuse it."""
    return all(os.access(folder, os.W_OK) for folder in (path, path / "cache") if folder.exists())


@contextlib.contextmanager
def sole_writer(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Lock the run folder: a second writer is refused. The lock ends with the process, however it ends.

    A command that can do without writing (`reading`) takes a folder that it cannot write to as it is.
    """
    if reading and not is_writable(path):
        yield
        return
    # Not through a link, which could lead to any file; nor does a pipe wait for its other end.
    with os.fdopen(os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)) as lock:
        try:
            # A record lock, which forked workers do not share: they outlive a killed process by some seconds.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise InputError(f"another process is writing to {path}. Wait for it, or choose another folder.") from None
        for partial in path.rglob(".*.partial"):
            partial.unlink(missing_ok=True)
        if (path / "config.json").exists():
            adopt(path, CHECKED)
        yield


def save_state(path: Path, position: tuple[int, int], tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Save the state at `position` (index of the epoch, step in it); all older states but one are deleted."""
    folder = path / "state"
    folder.mkdir(exist_ok=True)
    name = "{:06d}-{:07d}.safetensors".format(*position)
    save_tensors(folder / name, tensors, {"note": json.dumps({**note, "position": position})})
    for old in sorted(folder.glob("*-*.safetensors"))[:-STATES_KEPT]:
        old.unlink(missing_ok=True)


def start_again(path: Path) -> None:
    """Delete the states of an unfinished training."""
    shutil.rmtree(path / "state")
    (path / "state").mkdir()


def newest_state(path: Path, *, discard: bool = False) -> tuple[dict[str, Tensor], StateNote] | None:
    """The last state that can be read, as (tensors, note); None if there is none.

    Damaged states are named and passed over, and deleted with `discard`.
    """
    for file in sorted((path / "state").glob("*-*.safetensors"), reverse=True):
        try:
            tensors, metadata = load_tensors(file)
            note = read_entry(file, metadata, "note", StateNote)
            check(len(note["position"]) == 2, f"{file} does not say where the training stood.")
            return tensors, note
        except InputError as error:
            if discard:
                tell(f"{error} Continuing from the state before it.")
                file.unlink(missing_ok=True)
    return None


def check_earlier(run: Path, settings: Train, position: tuple[int, int]) -> None:
    """Raise an InputError unless what the training wrote before `position`, and needs later, is as it was written."""
    last = (settings.epochs, 0)  # of the SWA branch
    if settings.baseline and (settings.swa_start, 0) < position <= last:
        load_metadata(run / "state" / "fork.safetensors")
    if position >= last:
        read_json(run / "state" / "swa.json", Metrics)
        for name in (STAGE_1["swa"], "posterior.safetensors"):
            load_metadata(run / name)
    if settings.baseline and position[0] >= 2 * settings.epochs - settings.swa_start:
        read_json(run / "state" / "sgd.json", Metrics)
        load_metadata(run / STAGE_1["sgd"])

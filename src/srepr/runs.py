"""The run folder: files that appear whole or not at all, a resume that finds its place, and its provenance.

    R/config.json     the settings, versions, data fingerprint and command
    R/log.jsonl       one line per epoch
    R/state/          the last two states of a training under way

Every file is written beside its final name, flushed to the disk and renamed; a process killed at any moment leaves the
old file or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srepr.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
STATES_KEPT = 2


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Make `path` appear only when `write(temporary)` has finished and its bytes are on the disk.

    >>> folder = getfixture("tmp_path")
    >>> write_whole(folder / "note.txt", lambda temporary: temporary.write_text("whole"))
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON, whole or not at all; numbers that JSON does not know (inf, nan) become strings.

    >>> path = getfixture("tmp_path") / "results.json"
    >>> write_json(path, {"nll": float("inf"), "acc": 0.5})
    >>> json.loads(path.read_text())
    {'nll': 'inf', 'acc': 0.5}
    """
    text = json.dumps(plain(content), indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text))


def plain(content: Any) -> Any:
    """`content` in the types of JSON: paths and non-finite numbers as strings, tuples as lists.

    >>> plain({"out": Path("R"), "nll": float("nan"), "counts": (3, 1)})
    {'out': 'R', 'nll': 'nan', 'counts': [3, 1]}
    """
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return str(content) if isinstance(content, Path) else content


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run; a missing or broken one is named.

    >>> read_json(getfixture("tmp_path") / "config.json")
    Traceback (most recent call last):
    srepr.errors.InputError: .../config.json does not exist. Is its folder a run made by `srepr train`?
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is its folder a run made by `srepr train`?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not valid JSON ({error}). Restore it, or train again into a new folder."
        ) from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, whole or not at all; the same content gives the same bytes.

    >>> path = getfixture("tmp_path") / "weights.safetensors"
    >>> import torch
    >>> save_tensors(path, {"w": torch.ones(2)}, {"epoch": "3"})
    >>> load_tensors(path)
    ({'w': tensor([1., 1.])}, {'epoch': '3'})
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Clones: tensors that share memory (tied weights) are refused by the format otherwise.
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    # One entry: the format's library writes several in an order that changes from process to process.
    packed = {"srepr": json.dumps(dict(metadata or {}), sort_keys=True)}
    try:
        write_whole(path, lambda temporary: save_file(own, temporary, packed))
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written ({error}). Free space, then run the same command again.") from None


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; a missing or damaged one is named.

    >>> load_tensors(getfixture("tmp_path") / "weights.safetensors")
    Traceback (most recent call last):
    srepr.errors.InputError: .../weights.safetensors does not exist. Is the training finished?
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
            return tensors, json.loads(metadata["srepr"]) if "srepr" in metadata else metadata
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Is the training finished?") from None
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}). Delete it and run the same command again.") from None


def provenance() -> dict[str, Any]:
    """Command, versions and machine, for a reader who wants to make the run again.

    >>> sorted(provenance())
    ['command', 'machine', 'versions']
    """
    versions = {"python": platform.python_version()}
    for package in ("srepr", "torch", "numpy", "lightning-fabric"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    machine = {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"command": command, "versions": versions, "machine": machine}


def create_folder(path: Path) -> None:
    """Make the folder, or say in one line why it cannot be written.

    >>> create_folder(getfixture("tmp_path") / "runs" / "first")
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / ".writable", lambda temporary: temporary.touch())
        (path / ".writable").unlink()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be written ({reason}). Choose another folder with --out.") from None


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Each setting that differs, as a person would type it.

    >>> list(differences({"data": {"holdout": 0.1}, "optim": {"lr": 0.5}}, {"data": {"holdout": 0.2}, "optim": {}}))
    ['--holdout was 0.1, now 0.2', '--optim.lr was 0.5, now None']
    """
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, "" if name == "data" else f"{prefix}{name}.")
        elif before != after:
            yield f"--{prefix}{name.replace('_', '-')} was {before}, now {after}"


def open_run(path: Path, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Start a run folder, or enter one that was started with the same settings and data.

    `settings` decide the result: other ones are refused, and named. So are other data, told by their fingerprint in
    `facts["examples"]`; the other facts (provenance, file locations) are kept as they were when the run began.

    >>> run = getfixture("tmp_path") / "run"
    >>> facts = {**provenance(), "examples": {"fingerprint": "a9dc"}}
    >>> open_run(run, {"seed": 0}, facts)
    >>> open_run(run, {"seed": 1}, facts)
    Traceback (most recent call last):
    srepr.errors.InputError: .../run holds a run with other settings: --seed was 0, now 1. Choose another folder...
    """
    config = path / "config.json"
    wanted = plain(settings)
    if not config.exists():
        if path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
            raise InputError(f"{path} is not empty and not a run folder. Choose another folder with --out.")
        create_folder(path)
        write_json(config, {"format": FORMAT, "settings": wanted, **facts})
        return
    found = read_settings(path)
    changed = "; ".join(differences(found, wanted))
    if changed:
        raise InputError(
            f"{path} holds a run with other settings: {changed}. Choose another folder with --out, or go on with the"
            " old settings."
        )
    if read_fingerprint(path) != facts["examples"]["fingerprint"]:
        raise InputError(f"the data changed since {path} was begun. Restore it, or choose another folder with --out.")
    create_folder(path)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings with which the run folder was made.

    >>> run = getfixture("tmp_path") / "run"
    >>> open_run(run, {"seed": 0}, {"examples": {"fingerprint": "a9dc"}})
    >>> read_settings(run)
    {'seed': 0}
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Name a run made by `srepr train`.")
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} does not describe a run. Name a run made by `srepr train`.")
    if config.get("format") != FORMAT:
        raise InputError(
            f"{path} has run format {config.get('format')}, this srepr reads {FORMAT}. Use the srepr that made it."
        )
    settings: dict[str, Any] = config["settings"]
    return settings


def read_fingerprint(path: Path) -> str:
    """The fingerprint of the data with which the run folder was made.

    >>> run = getfixture("tmp_path") / "run"
    >>> open_run(run, {"seed": 0}, {"examples": {"fingerprint": "a9dc"}})
    >>> read_fingerprint(run)
    'a9dc'
    """
    return str(read_json(path / "config.json")["examples"]["fingerprint"])


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the run folder: a second writer is refused; the hold ends with the process, however it ends.

    >>> with sole_writer(getfixture("tmp_path")):
    ...     pass
    """
    with (path / ".lock").open("w") as lock:
        try:
            # A record lock, which forked workers do not share: they outlive a killed process by some seconds.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise InputError(f"another process is writing to {path}. Wait for it, or choose another folder.") from None
        for partial in path.rglob(".*.partial"):
            partial.unlink(missing_ok=True)
        yield


def save_state(path: Path, position: tuple[int, int], tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Keep what a resume at `position` (epoch of the plan, step in it) needs; older states but one are deleted.

    >>> run = getfixture("tmp_path")
    >>> import torch
    >>> for epoch in range(4):
    ...     save_state(run, (epoch, 0), {"w": torch.ones(1)}, {"loss": 0.1})
    >>> sorted(file.name for file in (run / "state").iterdir())
    ['000002-0000000.safetensors', '000003-0000000.safetensors']
    """
    folder = path / "state"
    folder.mkdir(exist_ok=True)
    name = "{:06d}-{:07d}.safetensors".format(*position)
    save_tensors(folder / name, tensors, {"note": json.dumps({**note, "position": position})})
    for old in sorted(folder.glob("*-*.safetensors"))[:-STATES_KEPT]:
        old.unlink(missing_ok=True)


def newest_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The last state that can be read, as (tensors, note); None where there is none.

    >>> newest_state(getfixture("tmp_path")) is None
    True
    """
    for file in sorted((path / "state").glob("*-*.safetensors"), reverse=True):
        with contextlib.suppress(InputError):
            tensors, metadata = load_tensors(file)
            return tensors, json.loads(metadata["note"])
    return None


def append_log(path: Path, line: Mapping[str, Any]) -> None:
    r"""Add one line to the run's log.

    >>> run = getfixture("tmp_path")
    >>> append_log(run, {"epoch": 0, "loss": 2.3})
    >>> (run / "log.jsonl").read_text()
    '{"epoch": 0, "loss": 2.3}\n'
    """
    with (path / "log.jsonl").open("a") as log:
        log.write(json.dumps(plain(line)) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of the log; a last line that a kill cut short is left out.

    >>> read_log(getfixture("tmp_path"))
    []
    """
    log = path / "log.jsonl"
    lines = []
    for line in log.read_text().splitlines() if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def cut_log(path: Path, lines: int) -> None:
    """Keep the first `lines` lines of the log: what came after the state that a resume starts from is done again.

    >>> run = getfixture("tmp_path")
    >>> for epoch in range(3):
    ...     append_log(run, {"epoch": epoch})
    >>> cut_log(run, 1)
    >>> read_log(run)
    [{'epoch': 0}]
    """
    kept = read_log(path)[:lines]
    text = "".join(json.dumps(line) + "\n" for line in kept)
    write_whole(path / "log.jsonl", lambda temporary: temporary.write_text(text))

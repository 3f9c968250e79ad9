"""The log of a training, log.jsonl: a line for each epoch, and what it says about time."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from srepr.errors import InputError
from srepr.representation import Moment
from srepr.run.schema import LogLine, read_config
from srepr.storage import checksums, schema
from srepr.storage.files import plain, read_checked, write_checked, write_text


def log_line(moment: Moment, before: float, seconds: float, device: torch.device) -> dict[str, Any]:
    """The log's line about a finished epoch, of which `before` examples were seen before a resume."""
    loss, correct, seen = moment.sums.tolist()
    return {
        "branch": moment.epoch.branch,
        "epoch": moment.epoch.number,
        "loss": loss / seen,
        "acc": correct / seen,
        "lr": moment.rate,
        "images_per_second": round((seen - before) / seconds, 1),
        "peak_memory_mib": peak_memory_mib(device),
    }


def epoch_line(line: Mapping[str, Any], epochs: int, time_left: str, noun: str = "images") -> str:
    """A line of the log for people; the noun is what the examples are called. The time left may be empty.

    >>> epoch_line({"branch": "swa", "epoch": 150, "loss": 0.5, "acc": 0.9, "lr": 0.1, "images_per_second": 400.0},
    ...            200, "20 min 3 s")
    'swa   151/200  loss 0.5000  acc 90.0 %  lr 0.1000   400 images/s  20 min 3 s left'
    >>> epoch_line({"branch": "swa", "epoch": 0, "loss": 0.5, "acc": 0.9, "lr": 0.1, "images_per_second": 400.0},
    ...            1, "", "rows")
    'swa   1/1  loss 0.5000  acc 90.0 %  lr 0.1000   400 rows/s'
    """
    return (
        f"{line['branch']:<5} {line['epoch'] + 1}/{epochs}  loss {line['loss']:.4f}  acc {100 * line['acc']:.1f} %"
        f"  lr {line['lr']:.4f}  {line['images_per_second']:4.0f} {noun}/s"
        f"{f'  {time_left} left' if time_left else ''}"
    )


def peak_memory_mib(device: torch.device) -> int:
    """Peak memory so far, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def tensorboard(run: Path, begin: int) -> Any:
    """A TensorBoard writer into the run folder, or None if the extra is not installed."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=begin)


def append_log(path: Path, line: Mapping[str, Any]) -> None:
    r"""Add one line to the run's log."""
    log = path / "log.jsonl"
    with log.open("a") as file:
        file.write(json.dumps(plain(line)) + "\n")
    _record(log)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of the log; a last line that a kill cut short is left out."""
    log = path / "log.jsonl"
    lines = []
    for number, line in enumerate(read_checked(log, growing=True).splitlines() if log.exists() else [], start=1):
        try:
            lines.append(schema.parsed_text(line, LogLine))
        except schema.Invalid:
            continue
        except schema.Mismatch as error:
            raise InputError(f"{log}, line {number}, is not as srepr writes it: {error}. Restore it.") from None
    return lines


def cut_log(path: Path, lines: int) -> None:
    """Keep the first `lines` lines of the log: the epochs after the resumed state are run again."""
    kept = read_log(path)[:lines]
    write_checked(path / "log.jsonl", "".join(json.dumps(plain(line)) + "\n" for line in kept))
    _record(path / "log.jsonl")


def _record(log: Path) -> None:
    """Record the checksum of the log as it is, in a folder with checksums."""
    record = checksums.record_of(log)
    if record is not None:
        write_text(record, checksums.line(log.read_bytes()))


def seconds_of_training(path: Path) -> dict[str, float]:
    """Wall-clock seconds of each branch of stage 1 (trunk, swa, sgd), by the pace in the log."""
    seconds: dict[str, float] = {}
    lines = read_log(path)
    config = read_config(path) if lines else {}
    for line in lines:
        branch, pace = line.get("branch", "trunk"), line.get("images_per_second", math.inf)
        examples = config.get("examples", {}).get("sizes", {}).get("train", 0)
        images = images_per_epoch(examples, max(1, config["settings"]["batch_size"]))
        seconds[branch] = seconds.get(branch, 0.0) + (images / pace if pace > 0 else 0.0)
    return seconds


def images_per_epoch(examples: int, batch_size: int) -> int:
    """How many images an epoch of stage 1 takes: whole batches only, unless there is just one.

    >>> images_per_epoch(331, 32), images_per_epoch(20, 32)
    (320, 20)
    """
    return max(examples - examples % batch_size, min(examples, batch_size))

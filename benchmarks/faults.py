"""What the commands do when the disk fails, the process dies, or bits flip: `python -m benchmarks.faults`.

Writes: a command runs in a child process, in which its 1st, 2nd, 3rd ... operation on the disk fails (ENOSPC, EIO) or
ends the process (SIGKILL, with half of the file written). An operation is an open for writing, an fsync, a rename, a
deletion or a new folder. In other processes, the 1st, 2nd, 3rd ... file that is opened for writing takes ten bytes and
no more: the write fails (EFBIG) or ends the process (SIGXFSZ). After each fault the same command runs undisturbed. It
must finish with the files that it would have written, and nothing that was there before may be lost or damaged.

Bits: one bit of a file is flipped, at places all over it. The commands that read the file must refuse it in one line,
or say in one line that they do without this head, or answer as if nothing had happened.

`--parts` chooses commands, `bits` or `states` (of an unfinished training), `--every 10` takes one operation in ten,
`--places` is the number of flipped bits in each file. The tables go to standard output, row by row.

To take minutes and not hours, the processes fork from one that has imported what the command needs, figures have few
pixels, and where two faults leave the same names and bytes, the same command runs once: the column "states left" has
these runs. A clock that ticks when it is read makes the bytes repeatable.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from benchmarks import Table
from srepr import representation
from srepr.cli import main as srepr
from srepr.data.cifar_files import LAYOUTS
from srepr.errors import InputError
from srepr.models import resnet8
from srepr.run import figures, log
from srepr.storage.tensors import load_tensors

ENDS = {"SIGKILL": -signal.SIGKILL, "SIGXFSZ": -signal.SIGXFSZ}
CUTS = ("EFBIG", "SIGXFSZ")
FAULTS = ("ENOSPC", "EIO", "SIGKILL", *CUTS)
TAKEN = 10
"""Bytes that a file takes before a write is cut."""
TIMES = {"seconds", "images_per_second", "peak_memory_mib", "command"}
TRAIN = ("train", "table.npz", "--epochs", "3", "--batch-size", "12", "--baseline")
TRAIN += ("--checkpoint-minutes", "0", "--out")
COMMANDS: dict[str, list[str]] = {
    "train": [*TRAIN, "new"],
    "retrain": ["retrain", "run", "--method", "la", "srepr", "--samples", "2"],
    "evaluate": ["evaluate", "run"],
    "analyze": ["analyze", "run", "--samples", "2"],
    "report": ["report", "run", "-o", "page.html"],
    "predict": ["predict", "run", "x.npy", "-o", "rows.csv"],
    "predict --html": ["predict", "run", "x.npy", "--html", "rows.html", "-o", "rows.jsonl", "--coverage", "0.8"],
    "export": ["export", "run", "--format", "safetensors", "-o", "model"],
    "export onnx": ["export", "run", "--format", "onnx", "-o", "model"],
    "export torch": ["export", "run", "--format", "torch", "-o", "model"],
    "reproduce": ["reproduce", "swa-crt", "table.npz", "--epochs", "2", "--out", "reproduced"],
    "import": ["import", "net.pth", "--source", "digits-lt", "--workers", "0", "--out", "imported"],
    "data get": ["data", "get", "cifar100-lt", "--data-dir", "cifar", "--url"],
}


def base(folder: Path) -> None:
    """A table, a finished run with a head and a cache that is gone, inputs, and a checkpoint."""
    chance, y = np.random.default_rng(0), np.repeat([0, 1, 2], [40, 15, 5])
    os.chdir(folder)
    np.savez("table.npz", x=chance.normal(size=(60, 4)) + y[:, None], y=y)
    np.save("x.npy", np.eye(4, dtype=np.float32))
    torch.manual_seed(0)
    torch.save(resnet8(10, channels=1).state_dict(), "net.pth")
    assert said([*TRAIN, "run"])[0] == 0
    assert said(["retrain", "run", "--method", "crt"])[0] == 0
    shutil.rmtree("run/cache")


class Silent(SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a small archive that stands for the official one."""
    layout, archive = LAYOUTS["cifar100-lt"], folder / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for file in (*layout.train, *layout.test):
            tar.add(folder / "base" / "table.npz", f"{layout.folder}/{file}")
    content = archive.read_bytes()
    LAYOUTS["cifar100-lt"] = replace(layout, md5=hashlib.md5(content).hexdigest(), size=len(content))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/archive.tar.gz"
        server.shutdown()


def said(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and complaints of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = srepr(list(words))
    return code, out.getvalue(), err.getvalue()


def in_a_child(work: Callable[[], int]) -> tuple[int, str]:
    """The exit code of the work in a forked process, or minus the signal that ended it, and its complaints."""
    reading, writing = os.pipe()  # not a file: the size of files is limited in the child
    child = os.fork()
    if not child:
        code = 70  # a traceback
        with os.fdopen(writing, "w") as pipe, contextlib.redirect_stderr(pipe):
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                code = work()
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        complaints = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), complaints


def fail(root: Path, number: int, fault: str, fired: Path) -> None:
    """Let the operation of that number on the files of a folder fail, in this process and for the rest of its life.

    The file `fired` says how far it came: "." if there was such an operation, "!" if it failed.
    """
    seen, flag = 0, os.open(fired, os.O_CREAT | os.O_WRONLY)

    def operation(renamed: Any = None) -> None:
        nonlocal seen
        seen += 1
        if seen != number:
            return
        os.pwrite(flag, b"!", 0)
        if fault == "SIGKILL":
            if renamed is not None:
                os.truncate(renamed, Path(renamed).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, fault)
        raise OSError(code, os.strerror(code))

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def opened(path: Any, flags: int) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            os.pwrite(flag, b".", 0)
            limit(TAKEN + (Path(path).stat().st_size if flags & os.O_APPEND and Path(path).exists() else 0))

    def within(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        absolute = Path.cwd() / os.fsdecode(path)
        return absolute.is_relative_to(root) and "tensorboard" not in absolute.parts

    def watch(event: str, words: tuple[Any, ...]) -> None:
        writes = event == "open" and words[2] is not None and words[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename")) or not within(words[0]):
            return
        if fault not in CUTS:
            operation(renamed=words[0] if event == "os.rename" else None)
        else:
            limit(resource.RLIM_INFINITY)
            if writes:
                opened(words[0], words[2])

    fsync = os.fsync

    def failing_fsync(file: int) -> None:
        operation()
        fsync(file)

    if fault == "EFBIG":
        signal.signal(signal.SIGXFSZ, lambda *_: os.pwrite(flag, b"!", 0))
    elif fault == "SIGXFSZ":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    else:
        os.fsync = failing_fsync
    sys.addaudithook(watch)


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that a command has left and that must not depend on faults: no times, no caches."""
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir())
    passing = ("cache/", ".checksums", ".lock", "tensorboard")
    return {name: content(folder / name) for name in names if not any(part in name for part in passing)}


def content(path: Path) -> Any:
    """What a file holds, without times; InputError or ValueError if it is damaged."""
    if path.suffix in (".json", ".jsonl"):
        text = path.read_text()
        return [timeless(json.loads(line)) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    if path.suffix == ".safetensors":
        tensors, metadata = load_tensors(path)
        return {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}, timeless(metadata)
    return path.read_bytes()


def is_kept(path: Path, *known: Any) -> bool:
    """Whether a file is still there and whole: data and weights as they were or will be, JSON of any content."""
    try:
        return content(path) in known or path.suffix in (".json", ".jsonl")
    except (InputError, ValueError, OSError):
        return False


def state(folder: Path) -> str:
    """A digest of every name, mode and byte in a folder; unfinished files are named after a process that is gone."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"\.[0-9]+\.partial$", ".partial", path.relative_to(folder).as_posix())
        if "tensorboard" not in name:  # named after the time, and never read
            held = b"" if path.is_dir() else path.read_bytes()
            digest.update(f"{name} {path.stat().st_mode} {len(held)}\n".encode() + held)
    return digest.hexdigest()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in TIMES}
        return {key: timeless(json.loads(each) if key == "facts" else each) for key, each in kept.items()}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def survive(name: str, words: Sequence[str], folder: Path, every: int) -> Iterator[dict[str, str | float]]:
    """A row for each fault: how many operations failed in turn, and what came of it."""
    origin, work, modules, fired = (folder / part for part in ("base", "work", "modules", "fired"))

    def fresh() -> None:
        os.chdir(folder)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(origin, work)
        os.chdir(work)

    def undisturbed() -> int:
        ticks = itertools.count()
        time.monotonic = lambda: next(ticks) / 1000
        log.peak_memory_mib = lambda _: 0
        return srepr(list(words))

    @cache
    def finishes(_: str) -> bool:
        """Whether the same command ends well, by the state of the folder."""
        return in_a_child(undisturbed)[0] == 0 and outcome(work) == expected

    def first() -> int:
        code = undisturbed()
        modules.write_text("\n".join(sys.modules))
        return code

    def disturbed(number: int, fault: str) -> int:
        fail(work, number, fault, fired)
        return undisturbed()

    fresh()
    code, text = in_a_child(first)
    assert code == 0, text
    for module in modules.read_text().split():
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    expected, before = outcome(work), outcome(origin)
    for fault in FAULTS:
        counts: Counter[str] = Counter()
        for number in itertools.count(1, every):
            fresh()
            fired.unlink(missing_ok=True)
            code, text = in_a_child(partial(disturbed, number, fault))
            reached = fired.read_bytes()
            if not reached:
                break
            if reached == b"." and code != ENDS.get(fault):
                continue  # nothing was written to this file, or less
            counts["injected"] += 1
            last = (text.splitlines() or [""])[-1]
            clean = code in (0, ENDS.get(fault)) or (
                code == 2 and last.startswith("srepr: ") and "Traceback" not in text
            )
            counts["one line, or killed"] += clean
            kept = all(is_kept(work / file, was, expected[file]) for file, was in before.items())
            counts["nothing lost"] += kept
            done = code != 0 or outcome(work) == expected
            tried = finishes.cache_info().misses
            same = finishes(state(work)) and done
            counts["states left"] += finishes.cache_info().misses - tried
            counts["same result after the same command"] += same
            if not (clean and same and kept):
                print(f"{name} {fault} {number}: exit {code}, {last}; {done=}, {kept=}, {same=}", file=sys.stderr)
        columns = (
            "injected",
            "states left",
            "one line, or killed",
            "same result after the same command",
            "nothing lost",
        )
        yield {"command": name, "fault": fault} | {column: f"{counts[column]}" for column in columns}


def flipped(path: Path, places: int) -> Iterator[int]:
    """The file with one bit flipped, at places all over it; whole again at the end."""
    whole, found = path.read_bytes(), path.stat()
    chance = np.random.default_rng(len(whole))
    for place in np.linspace(0, len(whole) - 1, places).astype(int).tolist():
        content = bytearray(whole)
        content[place] ^= 1 << int(chance.integers(8))
        path.write_bytes(content)
        yield place
    path.write_bytes(whole)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # heads are ordered by it


def bits(folder: Path, places: int) -> Iterator[dict[str, str | float]]:
    """A row for each file of a run: how often a flipped bit was refused, or changed nothing."""
    work = folder / "bits"
    shutil.copytree(folder / "base", work)
    os.chdir(work)
    readers = [["evaluate", "run", "--json"], ["predict", "run", "x.npy"], ["report", "run", "-o", "page.html"]]
    readers.append(["retrain", "run", "--method", "crt", "--json"])

    def answer(words: Sequence[str]) -> tuple[int, str, str]:
        code, out, err = said(words)
        return code, out + (Path("page.html").read_text() if code == 0 and words[0] == "report" else ""), err

    head = ["retrain", "run", "--method", "srepr", "--samples", "2"]  # the report reads the analysis of its draws
    for words in (*readers, head, COMMANDS["analyze"]):
        assert said(words)[0] == 0
    shutil.copytree("run", "whole")
    expected = [answer(words)[1] for words in readers]
    shutil.rmtree("run")
    shutil.copytree("whole", "run")
    names = [path.relative_to("run") for path in sorted(Path("run").rglob("*")) if path.is_file()]
    kinds: dict[str, Counter[str]] = {}
    for name in names:
        if "tensorboard" in name.parts or name.name in (".lock", "report.html"):
            continue
        kind = name.as_posix()
        if name.parts[0] in ("cache", ".checksums") or name.suffix in (".png", ".svg"):
            kind = f"{name.parts[0]}/*{name.suffix if name.parts[0] != '.checksums' else ''}"
        counts = kinds.setdefault(kind, Counter())
        for place in flipped(Path("run") / name, places):
            damaged = (Path("run") / name).read_bytes()
            answers = []
            for words in readers:
                answers.append(answer(words))
                if (Path("run") / name).read_bytes() != damaged:  # made again
                    (Path("run") / name).write_bytes(damaged)
            refused = [
                "Traceback" not in err and (code == 2 or (code == 0 and name.name in err and "cannot be used" in err))
                for code, _, err in answers
            ]
            same = [code == 0 and out == wanted for (code, out, _), wanted in zip(answers, expected, strict=True)]
            result = "refused" if any(refused) else "the same answers"
            fine = all(one or other for one, other in zip(refused, same, strict=True))
            counts["flipped"] += 1
            counts[result if fine else "a wrong answer"] += 1
            if not fine:
                print(f"{name} at {place}: {[answer[0] for answer in answers]}", file=sys.stderr)
            shutil.rmtree("run")
            shutil.copytree("whole", "run")
    for kind, counts in kinds.items():
        columns = ("flipped", "refused", "the same answers", "a wrong answer")
        yield {"file": kind} | {column: f"{counts[column]}" for column in columns}


def states(folder: Path, places: int) -> Iterator[dict[str, str | float]]:
    """A row for each file that a resume reads: the training must end with the bits of an undisturbed one."""
    work = folder / "states"
    work.mkdir()
    shutil.copy(folder / "base" / "table.npz", work)
    os.chdir(work)
    words, number = [*TRAIN, "alone"], 0
    assert said(words)[0] == 0
    expected = outcome(work / "alone")
    words = [*TRAIN, "cut"]

    def cut(number: int) -> int:
        fail(work, number, "SIGKILL", folder / "fired")
        return srepr(words)

    while True:  # until the SWA branch is finished, and the baseline has begun
        number += 4
        shutil.rmtree("cut", ignore_errors=True)
        in_a_child(partial(cut, number))
        if Path("cut/representation.safetensors").exists() and len(list(Path("cut/state").glob("0*"))) == 2:
            break
    shutil.copytree("cut", "whole")
    for name in sorted(path.name for path in Path("cut/state").iterdir() if path.name[0] != "."):
        counts: Counter[str] = Counter()
        for place in flipped(Path("cut/state") / name, places):
            code, _, err = said(words)
            same = code == 0 and {
                key: value for key, value in outcome(Path("cut")).items() if key != "config.json"
            } == {key: value for key, value in expected.items() if key != "config.json"}
            fine = same or (code == 2 and "Traceback" not in err)
            counts["flipped"] += 1
            counts[("the same bits" if same else "refused") if fine else "a wrong result"] += 1
            if not fine:
                print(f"{name} at {place}: exit {code}, {err}", file=sys.stderr)
            shutil.rmtree("cut")
            shutil.copytree("whole", "cut")
        yield {"state": name} | {
            column: f"{counts[column]}" for column in ("flipped", "refused", "the same bits", "a wrong result")
        }


def main(parts: tuple[str, ...] = (*COMMANDS, "bits", "states"), every: int = 1, places: int = 24) -> None:
    """Inject the faults and print what came of them."""
    torch.set_num_threads(1)
    representation.CHECK_EVERY = 2
    figures.PRINT["savefig.dpi"] = 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "base").mkdir()
        base(folder / "base")
        more = {"bits": bits, "states": states}
        with served(folder) as address:
            COMMANDS["data get"].append(address)
            for part in parts:
                made = survive(part, COMMANDS[part], folder, every) if part in COMMANDS else more[part](folder, places)
                for number, row in enumerate(made):
                    lines = Table(title="", how="", rows=[row], verdicts=[]).markdown().splitlines()[4:7]
                    print(*(lines if not number else lines[2:]), sep="\n", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    tyro.cli(main)

"""Fuzz every reader of files from outside: valid files with changed bytes, headers and fields.

    python -m benchmarks.fuzz --cases 100000

Only `InputError` may come out of a reader. The table has the number of cases, how many were refused and accepted,
other exceptions, the longest time of a case, and by how much the memory of the process grew at most (on Linux).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from safetensors.torch import save

from srepr.data.about import About
from srepr.data.arrays import read_labelled
from srepr.data.augment import central_box, decode
from srepr.data.cifar import read as read_cifar
from srepr.data.files import read_list
from srepr.data.inaturalist import read_annotations
from srepr.data.sources import load
from srepr.data.texts import read_labelled_texts, read_texts
from srepr.data.unlabelled import read_unlabelled
from srepr.deploy.prior import read_prior
from srepr.errors import InputError
from srepr.run.folder import FORMAT, read_settings
from srepr.storage.files import read_json
from srepr.storage.reader import read as read_checkpoint
from srepr.storage.tensors import load_tensors

VECTORS = About(
    network="mlp", options={}, class_names=("0", "1"), counts=(9, 3), shape=(4,), mean=(0.0,) * 4, std=(1.0,) * 4
)
TEXTS = About(
    network="hf", options={}, class_names=("x", "y"), counts=(9, 3), shape=(8,), mean=(), std=(), tokenizer="{}"
)
FIELDS = [
    *(b"-1", b"0", b"1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"9" * 5000, b"18446744073709551615"),
    *(b"\xff\xfe", b"\0", b"\r", b"\n", b'"', b"'", b",", b"\\ud800", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"../" * 2000),
    *(b"[" * 5000, b'{"a":' * 5000, b"(10**15,)", b"(1000000000000000,)", b"True", b"|O", b"<U0", b"<M8[s]"),
    *(b"2020-01-01", b"\xe2\x80\xa8", b"=1+1", b"%s%n", b"a" * 200_000),
]
"""Bytes that readers stumble over."""
NUMBERS = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\0\0\0\x01")


@dataclass(frozen=True)
class Reader:
    """A reader, the name of its file, and valid contents to start from."""

    name: str
    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]


@dataclass
class Row:
    """What came out of the cases of a reader."""

    cases: int = 0
    refused: int = 0
    accepted: int = 0
    longest: float = 0.0
    memory: int = 0
    others: dict[str, bytes] | None = None
    """Other exceptions, each with a content that raises it."""


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with up to four changes: bits, bytes, runs, fields, numbers of a header, the length."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 2, 4, 8, 64)))
        kind = chance.randrange(8)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place:end] = chance.randbytes(end - place)
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place:end]
        elif kind == 4:
            changed[place:place] = changed[place:end] * chance.choice((1, 2, 100))
        elif kind == 5:
            changed[place:end] = chance.choice(FIELDS)
        elif kind == 6:
            number = chance.choice(NUMBERS)
            changed[place : place + len(number)] = number
        else:
            _swap_field(changed, chance)
    return bytes(changed)


def _swap_field(changed: bytearray, chance: random.Random) -> None:
    """Replace what stands between two marks of a text, such as a cell, a value of JSON or a size in a header."""
    marks = [place for place, byte in enumerate(changed[:4096]) if byte in b',:{}[]()"\n ']
    if len(marks) > 1:
        first = chance.randrange(len(marks) - 1)
        changed[marks[first] + 1 : marks[first + 1]] = chance.choice(FIELDS)


def repacked(content: bytes, chance: random.Random) -> bytes:
    """A zip archive with changes inside its members, whose checksums are right again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            inside = old.read(member)
            new.writestr(member.filename, mutated(inside, chance) if chance.random() < 0.5 else inside)
    return out.getvalue()


def arrays(**content: np.ndarray) -> list[bytes]:
    """The arrays as .npz files, plain and compressed."""
    files = []
    for write in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        write(out, **content)
        files.append(out.getvalue())
    return files


def images() -> list[bytes]:
    """A small picture in every format and several modes."""
    files = []
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
    for form, modes in {
        "JPEG": ("RGB", "L", "CMYK"),
        "PNG": ("RGB", "RGBA", "P", "LA", "1", "I;16"),
        "GIF": ("P",),
        "BMP": ("RGB", "1"),
        "WEBP": ("RGBA",),
        "TIFF": ("RGB", "L", "F", "I;16", "CMYK"),
        "PPM": ("RGB", "L"),
    }.items():
        for mode in modes:
            out = io.BytesIO()
            grey = Image.fromarray((np.asarray(picture.convert("L")).astype(np.uint16)) * 257)
            (grey if mode == "I;16" else picture.convert(mode)).save(out, form)
            files.append(out.getvalue())
    return files


def checkpoints() -> list[bytes]:
    """A state dict in both formats of torch.save."""
    files = []
    for zipped in (True, False):
        out = io.BytesIO()
        state = {"state_dict": {"fc.weight": torch.ones(2, 3)}, "epoch": 3}
        torch.save(state, out, _use_new_zipfile_serialization=zipped)
        files.append(out.getvalue())
    return files


def annotations() -> list[bytes]:
    """An annotation file of three images."""
    content = {
        "images": [{"id": i, "file_name": f"Aves/{i}.jpg"} for i in range(3)],
        "annotations": [{"image_id": i, "category_id": i % 2} for i in range(3)],
    }
    return [json.dumps(content).encode()]


def cifar(path: Path) -> object:
    """Read the file as both files of CIFAR-100."""
    (path.parent / "test.bin").write_bytes(path.read_bytes())
    return read_cifar(path.parent, name="cifar100-lt")


def npy() -> list[bytes]:
    """Rows for a network, in three types."""
    files = []
    for dtype in ("<f8", "<f4", ">i2"):
        out = io.BytesIO()
        np.save(out, np.arange(8).reshape(2, 4).astype(dtype))
        files.append(out.getvalue())
    return files


TABLE = b"path,label,split\na.png,x,train\nb.png,y,train\nc.png,x,test\n"
TEXT_TABLE = b'text,label,split\n"a wren",x,train\nb,y,train\nc,x,test\n'
LINES = b'{"text": "a wren", "label": "x", "split": "train"}\n{"text": "b", "label": "y", "split": "train"}\n'
VALUES = {"x": np.arange(32.0).reshape(8, 4), "y": np.arange(8) % 2}
WORDS = {
    "x_train": VALUES["x"],
    "y_train": np.array(["a", "b"] * 4),
    "x_test": VALUES["x"],
    "y_test": np.array(["a"] * 8),
}
SETTINGS = json.dumps({"format": FORMAT, "settings": {"source": "digits-lt", "epochs": 3}}).encode()
READERS = (
    Reader("CIFAR binary", "train.bin", cifar, lambda: [(b"\1\2" + bytes(3072)) * 2]),
    Reader("list of images", "list.txt", lambda path: read_list(path, 10), lambda: [b"a/b c.jpg 0\nd.jpg 9\n"]),
    Reader("table of images", "t.csv", load, lambda: [TABLE]),
    Reader("table of texts", "t.csv", lambda path: read_labelled_texts(path, TEXTS), lambda: [TEXT_TABLE]),
    Reader(
        "table of numbers", "t.csv", lambda path: read_unlabelled([path], VECTORS), lambda: [b"a,b,c,d\n1,2,3,4\n"]
    ),
    Reader("JSON lines", "t.jsonl", load, lambda: [LINES]),
    Reader("lines of text", "t.txt", read_texts, lambda: [b"a wren\na crow\n"]),
    Reader("npz, training", "a.npz", load, lambda: arrays(**VALUES) + arrays(**WORDS)),
    Reader("npz, evaluation", "a.npz", lambda path: read_labelled(path, ("0", "1")), lambda: arrays(**VALUES)),
    Reader("npy", "x.npy", lambda path: read_unlabelled([path], VECTORS).examples.load(np.arange(1)), npy),
    Reader(
        "prior", "p.json", lambda path: read_prior(str(path), VECTORS), lambda: [b'{"0": 0.7, "1": 3}', b"0.7, 0.3"]
    ),
    Reader("iNaturalist JSON", "train2018.json", lambda path: read_annotations(path, 10), annotations),
    Reader("image", "i.img", lambda path: decode(path, 16, central_box), images),
    Reader("checkpoint", "c.pth", read_checkpoint, checkpoints),
    Reader("safetensors", "s.safetensors", load_tensors, lambda: [save({"w": torch.ones(3)}, {"epoch": "3"})]),
    Reader("JSON of a run", "config.json", read_json, lambda: [SETTINGS]),
    Reader(
        "settings of a run",
        "config.json",
        lambda path: read_settings(path.parent),
        lambda: [SETTINGS],
    ),
)


def fuzz(reader: Reader, cases: int, folder: Path, *, seed: int = 0) -> Row:
    """Read so many changed files."""
    chance = random.Random(seed)
    seeds, row = reader.seeds(), Row(others={})
    assert row.others is not None
    path = folder / reader.file
    for name in "abc":
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
    before = memory("VmRSS", reset=True)
    for _ in range(cases):
        content = chance.choice(seeds)
        packed = content[:2] == b"PK" and chance.random() < 0.7
        content = repacked(content, chance) if packed else mutated(content, chance)
        path.write_bytes(content)
        row.cases += 1
        begin = time.perf_counter()
        try:
            reader.read(path)
            row.accepted += 1
        except InputError:
            row.refused += 1
        except Exception as error:
            row.others.setdefault(f"{type(error).__name__}: {error}"[:120], content)
        row.longest = max(row.longest, time.perf_counter() - begin)
    row.memory = memory("VmHWM") - before
    return row


def memory(kind: str, *, reset: bool = False) -> int:
    """Kilobytes of this process now (VmRSS) or at most since a reset (VmHWM); 0 where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind))


def main(words: Iterable[str] | None = None) -> int:
    """Fuzz all readers, print the table; exit code 1 if there were other exceptions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="number of files, over all readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name contains this")
    parser.add_argument("--keep", type=Path, help="folder for the files that raise other exceptions")
    asked = parser.parse_args(None if words is None else list(words))
    chosen = [reader for reader in READERS if asked.only in reader.name]
    warnings.filterwarnings("ignore", module=r"PIL\.")
    table = Table("reader", *(("cases", "InputErrors", "accepted", "other exceptions", "longest", "peak memory")))
    failed = {}
    with tempfile.TemporaryDirectory() as folder:
        for reader in chosen:
            row = fuzz(reader, -(-asked.cases // len(chosen)), Path(folder), seed=asked.seed)
            others = row.others or {}
            failed.update({f"{reader.name}: {what}": content for what, content in others.items()})
            cells = (row.cases, row.refused, row.accepted, row.cases - row.refused - row.accepted)
            numbers = [f"{row.longest:.3f} s", f"{row.memory / 1024:.0f} MB"]
            table.add_row(reader.name, *(f"{cell:,}" for cell in cells), *numbers)
    Console(width=110, markup=False).print(table)
    for number, (what, content) in enumerate(failed.items()):
        print(what)
        if asked.keep:
            asked.keep.mkdir(parents=True, exist_ok=True)
            (asked.keep / str(number)).write_bytes(content)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

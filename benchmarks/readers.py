"""The readers of files from outside, for `benchmarks.fuzz`: each with the name of its file and valid contents.

What stands in the metadata of a safetensors file is fuzzed as a file of its own, and packed into one before it is
read: a changed byte in the header would seldom get that far.
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save, save_file

from srepr.config import Train
from srepr.data import LongTailData
from srepr.data.about import About
from srepr.data.arrays import read_labelled
from srepr.data.augment import central_box, decode
from srepr.data.cifar import read as read_cifar
from srepr.data.files import read_list
from srepr.data.inaturalist import read_annotations
from srepr.data.sources import load
from srepr.data.texts import read_labelled_texts, read_texts
from srepr.data.unlabelled import read_unlabelled
from srepr.deploy.export import export
from srepr.deploy.prior import read_prior
from srepr.importing.checkpoint import read_checkpoint as read_network
from srepr.importing.huggingface import huggingface_network
from srepr.methods import METHODS
from srepr.models import mlp, resnet8
from srepr.run.checkpoints import load_classifier, load_model
from srepr.run.folder import load_run_data, newest_state, read_settings, save_state
from srepr.run.load import load as load_head_of
from srepr.run.log import read_log, seconds_of_training
from srepr.run.retrain import retrain_run
from srepr.run.schema import Analysis, Timed, read_config, read_results
from srepr.run.train import train
from srepr.storage import checksums
from srepr.storage.arrays import ArrayFolder
from srepr.storage.files import read_json
from srepr.storage.reader import read as read_checkpoint
from srepr.storage.tensors import load_tensors

VECTORS = About(
    network="mlp",
    options={"inputs": 4},
    class_names=("0", "1"),
    counts=(9, 3),
    shape=(4,),
    mean=(0.0,) * 4,
    std=(1.0,) * 4,
)
TEXTS = About(
    network="hf", options={}, class_names=("x", "y"), counts=(9, 3), shape=(8,), mean=(), std=(), tokenizer="{}"
)


@dataclass(frozen=True)
class Reader:
    """A reader, the name of its file, and valid contents to start from."""

    name: str
    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]


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
VIEWS = {"x": np.arange(96.0, dtype=np.float32).reshape(8, 3, 4), "y": VALUES["y"]}
KEPT = {"name": "features"}
MEASURED = {"acc": 0.5, "nll": 1.0, "ece": 0.1, "n": 9, "bins": [{"count": 9, "confidence": 0.6, "accuracy": 0.5}]}
CANDIDATE = {"title": "LA", "penalty": 0.1, "distill_weight": None, "temperature": 1.5, "balanced_acc": 0.5}
CANDIDATE |= {"nll": 1.0, "excess": 0.0, "standard_error": 0.1, "chosen": True}
FACTS = json.dumps(
    {
        "head": "la",
        "training": {"source": "birds", "seed": 0, "lr": 0.1},
        "method": {"head": "linear"},
        "metrics": {**MEASURED, "views": {"equal": MEASURED}, "validation": MEASURED, "tested": {"few": 3}},
        "choice": {"on": "validation", "candidates": [CANDIDATE]},
    }
)
HEADER = b'{"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "__metadata__": {"epoch": "3"}}'
HUGGINGFACE = ("config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json")


@cache
def temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder that lives as long as this process."""
    return tempfile.TemporaryDirectory()


@cache
def real_run() -> Path:
    """A small run with a head and a state, without checksums: they would notice every change."""
    run = Path(temporary().name) / "run"
    np.savez(run.with_name("table.npz"), x=np.eye(12)[np.arange(24) % 12], y=np.arange(24) % 2)
    source = str(run.with_name("table.npz"))
    train(Train(source=source, epochs=2, batch_size=4, network="mlp"), run, quiet=True)
    retrain_run(run, {"la": METHODS["la"]}, quiet=True)
    save_state(run, (1, 0), {"w": torch.ones(2)}, {"sums": [1.0, 2.0, 3.0]})
    (run / "analysis").mkdir()
    metrics = {"acc": 0.5, "nll": 1.0, "ece": 0.1}
    spread = {"pearson": 0.5, "quartiles": [[0, 1, 2]], "per_class": [0.5, None]}
    analysis = {"head": "la", "classifier": "la", "samples": 1, "ensemble": [{"samples": 1, **metrics}]}
    analysis |= {"single": metrics, "dispersion": {"feature": spread}, "metrics": {"after": metrics}}
    (run / "analysis" / "analysis.json").write_text(json.dumps(analysis))
    shutil.rmtree(run / checksums.FOLDER)
    with ArrayFolder(run / "kept").write([KEPT]) as (append,):
        append(np.ones(3, np.float32))
    (note,) = (run / "kept").glob("*.json")
    (run / "kept" / "array.json").write_bytes(note.read_bytes())
    (run / "record").write_text(checksums.line((run / "config.json").read_bytes()))
    return run


def of_run(what: str, file: str, read: Callable[[Path], object]) -> Reader:
    """The reader of a file of a run folder: the changed one takes its place for as long as it is read."""

    def replaced(path: Path) -> object:
        place = real_run() / file
        whole = place.read_bytes()
        try:
            place.write_bytes(path.read_bytes())
            return read(real_run())
        finally:
            place.write_bytes(whole)

    return Reader(what, Path(file).name, replaced, lambda: [(real_run() / file).read_bytes()])


def checked_config(run: Path) -> object:
    """Read config.json, whose checksum is the changed file."""
    (run / checksums.FOLDER).mkdir()
    try:
        shutil.copy(run / "record", run / checksums.FOLDER / "config.json")
        return read_json(run / "config.json")
    finally:
        shutil.rmtree(run / checksums.FOLDER)


def kept_array(run: Path) -> object:
    """An array whose note is the changed file."""
    (array,) = (run / "kept").glob("*.bin")
    shutil.copy(run / "kept" / "array.json", array.with_suffix(".json"))
    return ArrayFolder(run / "kept").read(KEPT, np.float32)


def metadata(entry: str, read: Callable[[Path], object], seed: str) -> Reader:
    """The reader of an entry in the metadata of a safetensors file, which the changed file becomes."""

    def packed(path: Path) -> object:
        entries = {"about": VECTORS.to_json(), entry: path.read_text("utf-8", "replace")}
        file = path.with_suffix(".safetensors")
        save_file(mlp(2, inputs=4).state_dict(), file, {"srepr": json.dumps(entries)})
        return read(file)

    return Reader(f"safetensors metadata: {entry}", f"{entry}.json", packed, lambda: [seed.encode()])


def card_of(path: Path) -> object:
    """The model card of an exported classifier."""
    return export(path, path.with_suffix(".card.safetensors"), "safetensors")


def header(path: Path) -> object:
    """Read a safetensors file with the changed file as its header."""
    file, content = path.with_suffix(".safetensors"), path.read_bytes()
    file.write_bytes(len(content).to_bytes(8, "little") + content + bytes(12))
    return load_tensors(file)


def foreign() -> list[bytes]:
    """The checkpoint of a small ResNet."""
    out = io.BytesIO()
    torch.save({"state_dict": resnet8(10).state_dict(), "epoch": 3}, out)
    return [out.getvalue()]


@cache
def huggingface_folder() -> Path:
    """A tiny BERT with a tokenizer of six words."""
    from transformers import BertConfig, BertModel

    folder = Path(temporary().name) / "bert"
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    BertModel(BertConfig(vocab_size=6, max_position_embeddings=16, **sizes)).save_pretrained(folder)
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "wren", "crow"))}
    model: dict[str, Any] = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": words}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    made: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    made |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    return folder


@cache
def few_texts() -> LongTailData:
    """Texts to start a network on."""
    file = Path(temporary().name) / "texts.csv"
    file.write_bytes(TEXT_TABLE)
    return load(file)


def of_huggingface(file: str) -> Reader:
    """The reader of a file in the folder of a network of Hugging Face."""

    def replaced(path: Path) -> object:
        folder = huggingface_folder()
        whole = (folder / file).read_bytes()
        try:
            (folder / file).write_bytes(path.read_bytes())
            return huggingface_network(str(folder), few_texts())
        finally:
            (folder / file).write_bytes(whole)

    return Reader(f"hf: {file}", Path(file).name, replaced, lambda: [(huggingface_folder() / file).read_bytes()])


READERS = (
    Reader("CIFAR binary", "train.bin", cifar, lambda: [(b"\1\2" + bytes(3072)) * 2]),
    Reader("list of images", "list.txt", lambda path: read_list(path, 10), lambda: [b"a/b c.jpg 0\nd.jpg 9\n"]),
    Reader("table of images", "t.csv", load, lambda: [TABLE]),
    Reader("table of texts", "t.csv", lambda path: read_labelled_texts(path, TEXTS), lambda: [TEXT_TABLE]),
    Reader(
        "table of numbers", "t.csv", lambda path: read_unlabelled([path], VECTORS), lambda: [b"a,b,c,d\n1,2,3,4\n"]
    ),
    Reader("table of texts, training", "t.csv", load, lambda: [TEXT_TABLE]),
    Reader("JSON lines", "t.jsonl", load, lambda: [LINES]),
    Reader("JSON lines, evaluation", "t.jsonl", lambda path: read_labelled_texts(path, TEXTS), lambda: [LINES]),
    Reader("lines of text", "t.txt", read_texts, lambda: [b"a wren\na crow\n"]),
    Reader("npz, training", "a.npz", load, lambda: arrays(**VALUES) + arrays(**WORDS)),
    Reader("npz, several vectors each", "a.npz", load, lambda: arrays(**VIEWS)),
    Reader("npz, evaluation", "a.npz", lambda path: read_labelled(path, ("0", "1")), lambda: arrays(**VALUES)),
    Reader("npy", "x.npy", lambda path: read_unlabelled([path], VECTORS).examples.load(np.arange(1)), npy),
    Reader(
        "prior", "p.json", lambda path: read_prior(str(path), VECTORS), lambda: [b'{"0": 0.7, "1": 3}', b"0.7, 0.3"]
    ),
    Reader("iNaturalist JSON", "train2018.json", lambda path: read_annotations(path, 10), annotations),
    Reader("image", "i.img", lambda path: decode(path, 16, central_box), images),
    Reader("checkpoint", "c.pth", read_checkpoint, checkpoints),
    Reader("checkpoint of a ResNet", "c.pth", read_network, foreign),
    Reader("safetensors", "s.safetensors", load_tensors, lambda: [save({"w": torch.ones(3)}, {"epoch": "3"})]),
    Reader("safetensors header", "h.json", header, lambda: [HEADER]),
    metadata("about", load_model, VECTORS.to_json()),
    metadata("classifier", load_classifier, '{"temperature": 1.5, "expects": [9, 3]}'),
    metadata("facts", card_of, FACTS),
    of_run("config.json", "config.json", lambda run: (read_settings(run), read_config(run), load_run_data(run))),
    of_run("results.json", "results.json", read_results),
    of_run("note of a head", "heads/la.json", lambda run: load_head_of(run, "la")),
    of_run("note of a head, timed", "heads/la.json", lambda run: read_json(run / "heads" / "la.json", Timed)),
    of_run("log.jsonl", "log.jsonl", lambda run: (read_log(run), seconds_of_training(run))),
    of_run("analysis.json", "analysis/analysis.json", lambda run: read_json(run / "analysis/analysis.json", Analysis)),
    of_run("weights of a run", "representation.safetensors", load_head_of),
    of_run("weights of a head", "heads/la.safetensors", lambda run: load_head_of(run, "la")),
    of_run("state of a training", "state/000001-0000000.safetensors", newest_state),
    of_run("checksums", "record", checked_config),
    of_run("note of an array", "kept/array.json", kept_array),
    *(of_huggingface(file) for file in HUGGINGFACE if importlib.util.find_spec("transformers")),
)

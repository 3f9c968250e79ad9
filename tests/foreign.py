"""Tiny networks of other libraries and the data for them: what a user would have in a folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

WORDS = {"wren": "small brown cocked tail", "crow": "large black clever beak", "owl": "silent night round eyes"}
COUNTS = {"wren": 40, "crow": 20, "owl": 8}


def birds(counts=COUNTS, *, seed: int = 0) -> list[tuple[str, str]]:
    """Texts about birds, of mixed words and lengths, with the bird of each."""
    chance = np.random.default_rng(seed)
    every = " ".join(WORDS.values()).split()
    rows = []
    for name, count in counts.items():
        for _ in range(count):
            own = chance.choice(WORDS[name].split(), 3)
            rows.append((" ".join([*own, *chance.choice(every, chance.integers(1, 4))]), name))
    return rows


def write_texts(path: Path, rows=None) -> Path:
    """A CSV file of texts and labels."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *(birds() if rows is None else rows)])
    return path


def write_photos(folder: Path, counts=COUNTS, side: int = 80) -> Path:
    """A folder of class folders; each class has its own colour."""
    chance = np.random.default_rng(0)
    for k, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = chance.integers(0, 120, (side, side, 3), dtype=np.uint8)
            pixels[..., k] += 100
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def save_bert(folder: Path, *, classifier: bool = False, labels: tuple[str, ...] = ("a", "b"), seed: int = 0) -> Path:
    """A tiny BERT with a tokenizer trained on the texts about birds, as transformers saves them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    made.train_from_iterator(
        [text for text, _ in birds()], trainers.WordPieceTrainer(vocab_size=200, special_tokens=special)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.model_max_length = 16
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.3,  # random features that differ from text to text
        id2label=dict(enumerate(labels)),
        label2id={label: k for k, label in enumerate(labels)},
    )
    (BertForSequenceClassification if classifier else BertModel)(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def save_vit(folder: Path, *, classifier: bool = False, side: int = 16) -> Path:
    """A tiny ViT with its image processor."""
    from transformers import ViTConfig, ViTForImageClassification, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=side,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=5,
        initializer_range=0.3,
    )
    (ViTForImageClassification if classifier else ViTModel)(config).save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.25, 0.3],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


MODULE = '''
from torch import nn


def build(classes):
    """A small network for colour images of any size; its configuration is as in timm."""
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, classes),
    )
    network.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "input_size": (3, 32, 32)}
    return network


def lines(classes):
    return [classes]


def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


class Choosy(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = build(8), nn.Linear(8, classes)

    def forward(self, x):
        x = self.body(x)
        return self.fc(x if float(x.sum()) > 0 else -x)


def half(classes):
    return build(classes).half()


def broken(classes):
    raise ValueError("no such\\nwidth")


class Tuple(nn.Sequential):
    def forward(self, x):
        return super().forward(x), x


def pair(classes):
    return Tuple(build(classes))


class Random(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = build(8), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(nn.functional.dropout(self.body(x)))


class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.b = build(classes), build(classes)

    def forward(self, x):
        return self.a(x) + self.b(x)


def without_bias(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, classes, bias=False))
'''


class Evil:
    """Pickled, it runs a command when it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


def pickled(model: nn.Module, path: Path, *, evil: str | None = None) -> None:
    """Weights as pytorch_model.bin, perhaps with a command in them."""
    weights: dict[str, object] = dict(model.state_dict())
    if evil is not None:
        weights["evil"] = Evil(evil)
    torch.save(weights, path)

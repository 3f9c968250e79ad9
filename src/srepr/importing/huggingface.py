"""A folder of Hugging Face, or a name on its hub, as the network that `srepr train` starts from: --network hf:FOLDER.

config.json                     the network, built by transformers without code of the folder
*.safetensors or *.bin          its weights, read as data and never unpickled
preprocessor_config.json        images: their size and normalisation
tokenizer.json, ...             texts: the tokenizer, which becomes part of every file of the run
1_Pooling/config.json           texts: how sentence-transformers makes one vector of a text
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.data import ArrayExamples, LongTailData
from srepr.data.about import About
from srepr.data.tokens import LARGEST_TOKEN, TextExamples, encode, tokenizer
from srepr.errors import InputError, check
from srepr.importing.checkpoint import report
from srepr.models.call import repeats
from srepr.models.huggingface import (
    LEFT_OUT,
    HuggingFace,
    Pooling,
    Task,
    huggingface,
    is_classifier,
    library,
    transformer,
)
from srepr.models.size import no_larger_than
from srepr.models.split import find_classifier
from srepr.run.description import Start
from srepr.storage.outside import check_regular, parse_json, read_text
from srepr.storage.reader import read, shown

LENGTH = 256
"""Largest number of tokens, if the network takes that many."""
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
WORDS = 1152
"""Features of the words of a text, and as many of two words in a row."""
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")
SIDES = ("height", "width")
ABSENT = ("missing_keys", "mismatched_keys")
TRIAL = ["a text", "another text, which is longer than the first one"]


def huggingface_network(name: str, data: LongTailData) -> Start:
    """The network in a folder, or of that name on the hub, for these data; its classifier stays if the classes do.

    >>> from srepr.data import load
    >>> huggingface_network("nothing/there", load("digits-lt"))
    Traceback (most recent call last):
    srepr.errors.InputError: digits-lt has inputs (1, 8, 8), and hf:nothing/there takes colour images or texts. ...
    """
    texts = isinstance(data.train, TextExamples)
    if not texts and (len(data.train.shape) != 3 or data.train.shape[0] != 3):
        raise InputError(
            f"{data.name} has inputs {data.train.shape}, and hf:{name} takes colour images or texts. Choose another"
            " `network`."
        )
    folder = place(name)
    for file in folder.iterdir():  # transformers opens some of them
        if file.exists() and not file.is_dir():
            check_regular(file, file.stat())
    config = read_json(folder / "config.json")
    task: Task = "text" if texts else "image"
    wrong: Task = "image" if texts else "text"
    try:
        if is_classifier(config, wrong):
            raise InputError(f"{folder} classifies {wrong}s, and {data.name} has {task}s. Choose another `network`.")
        about = of_texts(folder, config, data) if texts else of_images(folder, data)
        same = labels_of(config) == data.class_names and is_classifier(config, task)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # settings of other types
        reason = shown(f"{type(error).__name__}: {error}")
        raise InputError(f"{folder} has settings that cannot be used ({reason}). Fetch it again.") from None
    weights = weight_files(folder)
    tensors = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in stored(weights)}
    classes = len(data.class_names)
    network, options, classifier = filled(folder, config, tensors, task, about, classes)
    if network.words is not None:
        part = data.train.prepared(about)
        parts = np.array_split(np.arange(len(part)), len(part) // 500 + 1)
        network.count_words([part.load(rows) for rows in parts])
    digest = hashlib.sha256()
    for file in (folder / "config.json", *weights):
        digest.update(file.read_bytes())
    return Start(network, replace(about, options=options, classifier=classifier), digest.hexdigest(), trained=same)


def place(name: str) -> Path:
    """The folder itself, or what the hub has under that name, from its cache or downloaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    library()
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.txt", "*.model", "1_Pooling/*"]
    try:
        found = Path(snapshot_download(name, allow_patterns=[*patterns, "model*.safetensors"]))
        if not any(found.glob("model*.safetensors")):
            found = Path(snapshot_download(name, allow_patterns=[*patterns, "pytorch_model*.bin"]))
    except Exception as error:  # of the network, of the hub, of the name
        raise InputError(
            f"hf:{name} is no folder, and the hub does not give it ({type(error).__name__}). Check the name, or pass"
            " the folder of a network."
        ) from None
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of the folder."""
    if not path.exists():
        raise InputError(f"{path} does not exist. Pass a folder that transformers has saved.")
    found = parse_json(read_text(path), f"{path} is damaged:")
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object. Fetch it again.")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights: one, or several shards; safetensors come first."""
    for pattern in WEIGHTS:
        files = sorted(folder.glob(pattern))
        if files:
            return files
    raise InputError(f"{folder} has no weights: neither {WEIGHTS[0]} nor {WEIGHTS[2]}. Save them with transformers.")


def stored(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in files of weights, by name."""
    for file in files:
        found, _, unusual = read(file)
        report(file, unusual)
        if not isinstance(found, Mapping):
            raise InputError(f"{file} holds no weights by name. Save them with transformers.")
        yield from ((str(name), value) for name, value in found.items() if isinstance(value, Tensor))


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in a config, in the order of the logits."""
    names = {int(number): str(label) for number, label in (config.get("id2label") or {}).items()}
    return tuple(names[number] for number in sorted(names))


def of_images(folder: Path, data: LongTailData) -> About:
    """A description with the size and the normalisation that the folder's image processor has."""
    file = folder / "preprocessor_config.json"
    if not file.exists() and (folder / "processor_config.json").exists():
        processor = read_json(folder / "processor_config.json").get("image_processor", {})
    else:
        processor = read_json(file)
    size = processor.get("crop_size" if processor.get("do_center_crop") else "size") or 224
    sides = [size, size] if isinstance(size, int) else [size.get(key, size.get("shortest_edge")) for key in SIDES]
    if sides[0] != sides[1] or not isinstance(sides[0], int):
        raise InputError(f"{folder} takes images of the size {size}, and srepr makes square ones. Choose another.")
    # Pixels are scaled to [0, 1] here, and multiplied by the processor's factor there.
    factor = 255 * float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 255.0
    mean, std = [0.0] * 3, [1.0] * 3
    if processor.get("do_normalize", True):
        mean, std = (processor.get(key) or default for key, default in (("image_mean", mean), ("image_std", std)))
    shape = (3, sides[0], sides[0])
    part = data.train
    return replace(
        About.of(data, "hf", {}),
        shape=shape,
        given=part.raw_shape if isinstance(part, ArrayExamples) and part.raw_shape != shape else (),
        mean=tuple(value / factor for value in mean),
        std=tuple(value / factor for value in std),
    )


def token_numbers(folder: Path) -> Iterator[int]:
    """The numbers of the tokens in a folder's files of JSON: they take memory once the library has read them."""
    contents = {name: folder / f"{name}.json" for name in ("tokenizer", "vocab", "added_tokens", "tokenizer_config")}
    found = {name: parse_json(read_text(path), f"{path} is") for name, path in contents.items() if path.exists()}
    whole = {name: content for name, content in found.items() if isinstance(content, dict)}
    model, added = (whole.get("tokenizer", {}).get(part) for part in ("model", "added_tokens"))
    vocabularies = [
        whole.get("vocab"),
        whole.get("added_tokens"),
        model.get("vocab") if isinstance(model, dict) else 0,
    ]
    for numbers in vocabularies:
        yield from (
            number for number in (numbers.values() if isinstance(numbers, dict) else ()) if type(number) is int
        )
    for token in added if isinstance(added, list) else ():
        yield from (token["id"],) if isinstance(token, dict) and type(token.get("id")) is int else ()
    more = whole.get("tokenizer_config", {}).get("added_tokens_decoder")
    yield from (int(number) for number in more or () if number.isdecimal() and len(number) < 20)


def of_texts(folder: Path, config: Mapping[str, Any], data: LongTailData) -> About:
    """A description with the folder's tokenizer and the largest number of tokens."""
    transformers = library()
    # Without a vocabulary transformers makes an empty one, and every text is unknown.
    if not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        raise InputError(f"{folder} has no tokenizer: no tokenizer.json. Save the network's tokenizer there as well.")
    try:
        check(max(token_numbers(folder), default=0) < LARGEST_TOKEN, "a token has a number of 2^24 or more")
        with silent(transformers):
            own = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        words = own.backend_tokenizer.to_str()
    except Exception as error:  # every tokenizer has its own ideas of missing files
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{folder} has no tokenizer that can be used ({reason}). It needs tokenizer.json.") from None
    bert = folder / "sentence_bert_config.json"
    limits = [
        own.model_max_length,
        read_json(bert).get("max_seq_length") if bert.exists() else None,
        config.get("max_position_embeddings"),
    ]
    length = min([LENGTH, *(int(limit) for limit in limits if isinstance(limit, int | float) and limit > 0)])
    known, size = tokenizer(words, length).get_vocab(), config.get("vocab_size")
    if isinstance(size, int) and max(known.values(), default=0) >= size:
        raise InputError(f"{folder} has a tokenizer of {len(known):,} tokens and a network for {size:,}. Fetch both.")
    return replace(About.of(data, "hf", {}), shape=(length,), mean=(), std=(), tokenizer=words)


def filled(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], task: Task, about: About, classes: int
) -> tuple[HuggingFace, dict[str, Any], str]:
    """The network with its weights, the options that build it again, and the name of its classifier."""
    options: dict[str, Any] = {
        "config": {name: value for name, value in config.items() if name not in LEFT_OUT},
        "task": task,
    }
    trial = torch.rand(2, *about.shape, generator=torch.Generator().manual_seed(0))
    if task == "text":
        trial = encode(tokenizer(about.tokenizer, about.shape[0]), TRIAL)
        options |= {"pooling": text_pooling(folder), "length": about.shape[0]}
    try:
        if not is_classifier(config, task):
            with no_larger_than(tensors, options["config"]):
                encoder = transformer(config, classes, task).eval()
            options |= encoder_options(encoder, tensors, trial, task)
        with no_larger_than(tensors, options["config"]):
            network = huggingface(classes, **options).eval()
        classifier = find_classifier(network, trial)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    except Exception as error:  # of the code of a network that is not meant for this
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{folder} cannot be run on {task}s ({reason}). Choose another `network`.") from None
    if not isinstance(network.get_submodule(classifier), nn.Linear):
        raise InputError(f"{folder}: its classifier {classifier} is not linear. Choose another `network`.")
    missing = [name for name in fill(network.model, tensors) if not f"model.{name}".startswith(f"{classifier}.")]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(f"{folder} lacks the weights {missing[0]}{more} of its network. Fetch it again.")
    if not repeats(network, trial):  # such as ViTMAE, which hides patches at random
        raise InputError(f"{folder} gives other features for the same {task}s each time. Choose another `network`.")
    if task == "text" and padding_matters(network, trial):
        options["padded"] = network.padded = True
    return network, options, classifier


def encoder_options(model: Any, tensors: Mapping[str, Tensor], trial: Tensor, task: Task) -> dict[str, Any]:
    """The number of features of an encoder, and how it is pooled: a text after several layers and beside its words,
    an image by the encoder's own pooling if it has one and the weights of it.
    """
    missing = fill(model, tensors)
    inputs = {"pixel_values": trial} if task == "image" else {"input_ids": trial.clamp(min=0)}
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=task == "text")
    tokens = output.last_hidden_state
    options: dict[str, Any] = {"features": tokens.shape[1 if tokens.dim() == 4 else -1]}
    if task == "text":
        hidden = getattr(output, "hidden_states", None) or ()
        layers = pooled_layers(len(hidden) - 1)
        if len(layers) > 1:
            options = {"features": sum(hidden[layer].shape[-1] for layer in layers), "layers": layers}
        options |= {"words": WORDS, "neighbours": WORDS}
    else:
        own = getattr(output, "pooler_output", None) is not None
        options["pooling"] = "pooler" if own and not any("pooler" in name for name in missing) else "mean"
    return options


def pooled_layers(count: int) -> list[int]:
    """The layers of an encoder of texts that are pooled: the last, and those at two thirds and one third of its depth.

    >>> pooled_layers(6), pooled_layers(12), pooled_layers(2), pooled_layers(1)
    ([6, 4, 2], [12, 8, 4], [2, 1], [1])
    """
    return sorted({max(1, round(count * share / 3)) for share in (1, 2, 3)}, reverse=True)


def fill(model: Any, tensors: Mapping[str, Tensor]) -> list[str]:
    """Put the weights of a file into the model, under the names that transformers gives them; returns what is missing.

    A weight of another size, such as that of a classifier for other classes, is missing. One that only srepr
    has, the bias of a decoder's classifier, stays as it is.
    """
    transformers = library()
    how = {"config": model.config, "state_dict": dict(tensors), "ignore_mismatched_sizes": True}
    with silent(transformers):
        loaded, found = type(model).from_pretrained(None, output_loading_info=True, **how)
    absent = {key if isinstance(key, str) else key[0] for kind in ABSENT for key in found[kind]}
    own, theirs = model.state_dict(), loaded.state_dict()
    model.load_state_dict({name: own[name] if name in absent else theirs.get(name, own[name]) for name in own})
    return [name for name in own if name in absent]


def text_pooling(folder: Path) -> Pooling:
    """The first token if the folder is one of sentence-transformers that says so, else the mean of the tokens."""
    file = folder / "1_Pooling" / "config.json"
    how = read_json(file) if file.exists() else {}
    return "cls" if how.get("pooling_mode_cls_token") or how.get("pooling_mode") == "cls" else "mean"


def padding_matters(network: HuggingFace, trial: Tensor) -> bool:
    """Whether the network answers differently if its texts are padded, so that they must always be padded alike."""
    longer = F.pad(trial, (0, min(8, network.length - trial.shape[1])), value=-1)
    with torch.no_grad():
        logits, padded = network(trial), network(longer)
    return not torch.allclose(logits, padded, rtol=1e-3, atol=1e-4)


@contextmanager
def silent(transformers: Any) -> Iterator[None]:
    """Without the progress bars and warnings of transformers: what matters of them is an InputError here."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

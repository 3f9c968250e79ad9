"""Networks of Hugging Face transformers, built from the content of their config.json, with logits as output.

    a classifier     AutoModelForImageClassification or AutoModelForSequenceClassification, as the config names it
    an encoder       AutoModel -> pooling -> fc; of texts, pooled after several of its layers, beside their words

Images are [B, 3, H, W]. Texts are one tensor of token numbers [B, T], padded with -1 at the end: the network makes the
attention mask itself. Only code of transformers runs, never code that comes with the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.errors import InputError
from srepr.models.words import PAIRS, Words, pairs

Task = Literal["image", "text"]
Pooling = Literal["mean", "cls", "pooler"]

CLASSIFIERS: dict[Task, str] = {"image": "ForImageClassification", "text": "ForSequenceClassification"}
LEFT_OUT = ("auto_map", "_name_or_path", "torch_dtype", "dtype", "id2label", "label2id", "num_labels")
"""Entries of a config that are not about the network: other code, its place, its precision, its old classes."""


class HuggingFace(nn.Module):
    """A network of transformers as a function from one tensor to logits [B, K].

    An encoder gives `features` numbers, from which `fc` makes the logits; for a classifier it is None. `pooling` makes
    one feature vector of an encoder's output: the `mean` of the tokens (those of the text, without the padding), the
    first token (`cls`), or what the encoder itself offers (`pooler`). With `layers`, the outputs of these layers are
    pooled, each scaled to unit length, side by side: earlier ones know more about words, the last one more about
    meaning. `words` is the number of features that are made of the tokens themselves, `neighbours` that of features of
    two in a row (`srepr.models.words`). With `padded`, texts are always padded to `length` tokens, for networks whose
    answer depends on it.
    """

    def __init__(
        self,
        classes: int,
        config: Mapping[str, Any],
        task: Task,
        features: int | None,
        pooling: Pooling,
        layers: Sequence[int],
        words: int,
        neighbours: int,
        length: int,
        padded: bool,
    ) -> None:
        super().__init__()
        self.task, self.pooling, self.layers, self.length, self.padded = task, pooling, layers, length, padded
        self.model: nn.Module = transformer(config, classes, task)
        settings: Any = self.model.config
        self.pad = settings.pad_token_id if task == "text" else 0
        self.words = Words(len(self.model.get_input_embeddings().weight), words) if words else None
        self.neighbours = Words(PAIRS, neighbours, scale=1.0) if neighbours else None
        self.fc = None if features is None else nn.Linear(features + words + neighbours, classes)
        if self.fc is None and isinstance(getattr(self.model, "score", None), nn.Linear):
            self.model.score = nn.Linear(self.model.score.in_features, classes)  # a decoder's has no bias
            nn.init.zeros_(self.model.score.bias)
        if self.fc is not None and pooling != "pooler" and isinstance(getattr(self.model, "pooler", None), nn.Module):
            self.model.pooler = None  # it would have weights that nothing trains

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of images or token numbers."""
        if self.task == "image":
            output, mask = self.model(pixel_values=inputs), None
        else:
            if self.padded:
                inputs = F.pad(inputs, (0, self.length - inputs.shape[1]), value=-1)
            mask = inputs >= 0
            ids = torch.where(mask, inputs, self.pad)
            output = self.model(
                input_ids=ids, attention_mask=mask.long(), output_hidden_states=bool(self.layers) or None
            )
        logits: Tensor
        if self.fc is None:
            logits = output.logits
            return logits
        features = [self.pooled(output, mask)]
        if self.words is not None:
            features.append(self.words(inputs))
        if self.neighbours is not None:
            features.append(self.neighbours(pairs(inputs)))
        logits = self.fc(torch.cat(features, 1))
        return logits

    def count_words(self, batches: Sequence[Tensor]) -> None:
        """Weigh words and neighbours by how few of the texts, token numbers [B, T], have them."""
        if self.words is not None:
            self.words.count(batches)
        if self.neighbours is not None:
            self.neighbours.count(map(pairs, batches))

    def pooled(self, output: Any, mask: Tensor | None) -> Tensor:
        """The features [B, L] of an encoder's output."""
        if self.pooling == "pooler":
            pooled: Tensor = output.pooler_output.flatten(1)
            return pooled
        if self.layers:
            several = [self.one_vector(output.hidden_states[layer], mask) for layer in self.layers]
            return torch.cat([F.normalize(vector, dim=1) for vector in several], 1)
        return self.one_vector(output.last_hidden_state, mask)

    def one_vector(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The output of a layer [B, T, D] or [B, D, H, W] as [B, D]."""
        if tokens.dim() == 4:  # a map [B, L, H, W]
            return tokens.mean((2, 3))
        if self.pooling == "cls":
            return tokens[:, 0]
        if mask is None:
            return tokens.mean(1)
        share = mask.unsqueeze(-1).to(tokens.dtype)
        return (tokens * share).sum(1) / share.sum(1)


def huggingface(
    classes: int,
    *,
    config: Mapping[str, Any],
    task: Task,
    features: int | None = None,
    pooling: Pooling = "mean",
    layers: Sequence[int] = (),
    words: int = 0,
    neighbours: int = 0,
    length: int = 256,
    padded: bool = False,
) -> HuggingFace:
    """The network that the content of a config.json describes, with random weights.

    `features` is what an encoder gives; leave it out for a classifier. `layers` are those that are pooled, by default
    the last. `words` and `neighbours` are the numbers of features of words and of two words in a row beside them.

    >>> tiny = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 20, "hidden_size": 8,
    ...         "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> network = huggingface(3, config=tiny, task="text", features=8)
    >>> network(torch.tensor([[5, 6, 7], [8, -1, -1]])).shape
    torch.Size([2, 3])
    """
    return HuggingFace(classes, config, task, features, pooling, layers, words, neighbours, length, padded)


def library() -> Any:
    """The package transformers; an InputError if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise InputError(
            "networks of Hugging Face need transformers. Install it with: pip install 'srepr[hf]'"
        ) from None
    return transformers


def is_classifier(config: Mapping[str, Any], task: Task) -> bool:
    """Whether the config is that of a classifier of images or texts, and not of an encoder.

    >>> is_classifier({"architectures": ["ViTForImageClassification"]}, "image")
    True
    """
    return str((config.get("architectures") or [""])[0]).endswith(CLASSIFIERS[task])


def transformer(config: Mapping[str, Any], classes: int, task: Task) -> Any:
    """The network of transformers with random weights in single precision; a classifier has this many classes."""
    transformers = library()
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise InputError(f"transformers {transformers.__version__} does not know the model_type {kind!r}. Update it.")
    names = {"image": "AutoModelForImageClassification", "text": "AutoModelForSequenceClassification"}
    auto = getattr(transformers, names[task] if is_classifier(config, task) else "AutoModel")
    kept = {name: value for name, value in config.items() if name not in LEFT_OUT}
    try:
        settings = transformers.CONFIG_MAPPING[kind].from_dict({**kept, "num_labels": classes})
        if task == "text" and getattr(settings, "pad_token_id", None) is None:
            end = getattr(settings, "eos_token_id", None)
            settings.pad_token_id = end[0] if isinstance(end, list) else end or 0  # decoders find a text's end by it
        return auto.from_config(settings).float()
    except Exception as error:  # every network has its own ideas of a bad config
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"transformers cannot build a {kind} network from its config.json ({reason}). Fetch it again."
        ) from None

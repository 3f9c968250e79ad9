"""Small networks in the shapes in which people bring them, each with data of its own: 48 examples, K classes.

Written for the tests, in the style of torchvision, timm, Hugging Face and of code found in the wild.
"""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N, K = 48, 4
LABELS = torch.tensor([0] * 24 + [1] * 12 + [2] * 8 + [3] * 4)  # in this order: a loader shuffles


class Examples(Dataset):
    """(inputs, label), where the inputs are a tensor, a tuple of them or a dict that takes the label in."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return N

    def __getitem__(self, i):
        if isinstance(self.inputs, dict):
            return {key: value[i] for key, value in self.inputs.items()} | {"labels": LABELS[i]}
        if isinstance(self.inputs, tuple):
            return tuple(value[i] for value in self.inputs), LABELS[i]
        return self.inputs[i], LABELS[i]


def loader(inputs, **options):
    return DataLoader(Examples(inputs), **{"batch_size": 24, "shuffle": True, **options})


def images(channels=3, size=8, seed=0):
    """Noise, brighter in one quarter of the image, by class."""
    x = torch.randn(N, channels, size, size, generator=torch.Generator().manual_seed(seed))
    half = size // 2
    for i, k in enumerate(LABELS.tolist()):
        x[i, :, k // 2 * half : (k // 2 + 1) * half, k % 2 * half : (k % 2 + 1) * half] += 2
    return x


def table(seed=1):
    return torch.randn(N, 6, generator=torch.Generator().manual_seed(seed)) + 2 * F.one_hot(LABELS, 6)


def tokens(seed=2, vocabulary=11, length=6):
    ids = torch.randint(K + 1, vocabulary, (N, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = LABELS + 1
    return ids


def padded(seed=2):
    """Token ids with their attention mask: every second text is two tokens shorter."""
    ids, mask = tokens(seed), torch.ones(N, 6, dtype=torch.int64)
    ids[::2, 4:], mask[::2, 4:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


class ResNet(nn.Module):
    """torchvision's names: conv1, bn1, layer1, avgpool, fc."""

    def __init__(self, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.fc = nn.Linear(4 * width, K)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(x + self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class MobileNet(nn.Module):
    """Depthwise convolutions, and a classifier behind dropout in a Sequential."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.Conv2d(8, 16, 1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.classifier = nn.Sequential(nn.Linear(64, 16), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(16, K))

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 2).flatten(1))


class LeNet(nn.Module):
    """`view` behind a convolution, and a log-softmax at the end."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc1 = nn.Linear(6 * 9, 16)
        self.fc2 = nn.Linear(16, K)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = F.relu(self.fc1(x.view(-1, 6 * 9)))
        return F.log_softmax(self.fc2(F.dropout(x)), dim=1)  # dropout also in evaluation, as people forget


class VisionTransformer(nn.Module):
    """timm's names: patch_embed, cls_token, pos_embed, blocks, norm, head."""

    def __init__(self, width=8):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, stride=4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 2, 16, activation="gelu", batch_first=True) for _ in range(2))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class ConvNeXt(nn.Module):
    """Layer scale, LayerNorm over channels, GELU, and the head's parts under timm's names."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv_dw = nn.Conv2d(width, width, 3, padding=1, groups=width)
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.gamma = nn.Parameter(torch.full((width,), 0.1))

        def forward(self, x):
            y = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))
            return x + (self.gamma * y).permute(0, 3, 1, 2)

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.stages = nn.Sequential(self.Block(width), self.Block(width))
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(4 * width), "fc": nn.Linear(4 * width, K)})

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.stages(self.stem(x)), 2).flatten(1)
        return self.head["fc"](self.head["norm"](x))


class StandardisedConv2d(nn.Conv2d):
    """Weight standardisation with `view` on the weight."""

    def forward(self, x):
        flat = self.weight.view(len(self.weight), -1)
        weight = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-5)
        return self._conv_forward(x, weight.view_as(self.weight), self.bias)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.rnn = kind(8, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, K)

    def forward(self, ids):
        return self.out(self.rnn(self.embedding(ids))[0].mean(1))


class TiedTransformer(nn.Module):
    """A masked language model's tie beside the classifier, a persistent mask of -inf, and tokens pooled at the end."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.lm_head = nn.Linear(width, 11, bias=False)
        self.lm_head.weight = self.embed.weight
        self.score = nn.Linear(width, K)

    def forward(self, input_ids, attention_mask=None):
        hidden = self.block(self.embed(input_ids), src_mask=self.mask)
        return {"logits": self.score(hidden).mean(1), "words": self.lm_head(hidden)}


class TiedClassifier(nn.Module):
    """The classes are words, and the classifier, defined first, is their embedding."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(8, K)
        self.embedding = nn.Embedding(K, 8)
        self.embedding.weight = self.classifier.weight
        self.body = nn.Linear(8, 8)

    def forward(self, ids):
        return self.classifier(self.body(self.embedding(ids[:, 0] - 1)).tanh())


class Siamese(nn.Module):
    """One encoder, called for each of two images."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 4, 3, bias=False)
        self.encoder = nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 8))
        self.fc = nn.Linear(8, K)

    def forward(self, left, right):
        return self.fc((self.encoder(left) - self.encoder(right)).abs())


class TwoInputs(nn.Module):
    """An image and a table, by keywords; answers with an object."""

    def __init__(self):
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3)
        self.table = nn.Linear(6, 4)
        self.fc = nn.Linear(8, K)

    def forward(self, *, pixels, columns):
        both = torch.cat([self.image(pixels).amax((2, 3)), self.table(columns)], dim=1)
        return SimpleNamespace(logits=self.fc(both), features=both)


Outputs = namedtuple("Outputs", ["logits", "aux_logits"])


class Inception(nn.Module):
    """An auxiliary head of the same shape; both answers in training, one in evaluation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.aux = nn.Linear(4 * 36, K)
        self.fc = nn.Linear(4 * 36, K)

    def forward(self, x):
        x = self.body(x)
        return Outputs(self.fc(x), self.aux(x)) if self.training else self.fc(x)


class Mlp(nn.Module):
    """A table; `last` makes the logits of 8 features."""

    def __init__(self, last=None, factor=1.0):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1))
        self.last = nn.Linear(8, K) if last is None else last
        self.factor = factor

    def forward(self, x):
        return self.factor * self.last(self.hidden(x))


class NormedLinear(nn.Module):
    """A cosine classifier of weight [L, K]."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, K))
        self.scale = scale

    def forward(self, x):
        return self.scale * F.normalize(x, dim=1) @ F.normalize(self.weight, dim=0)


class CosineLinear(nn.Linear):
    """A cosine classifier that calls itself linear."""

    def forward(self, x):
        return 16 * F.linear(F.normalize(x), F.normalize(self.weight))


class Odd(Mlp):
    """Buffers and parameters of every kind, and state of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.polar(torch.ones(8), torch.arange(8.0)))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("absent", None)
        self.order = nn.Parameter(torch.arange(8).flip(0), requires_grad=False)

    def get_extra_state(self):
        return {"version": 2}

    def set_extra_state(self, state):
        assert state == {"version": 2}

    def forward(self, x):
        if self.training:
            self.steps += 1
        self.kept = self.hidden(x)[:, self.order]  # with its history, where there is one
        return self.last((self.kept * self.phase).real)


def frozen():
    model = ResNet()
    for part in (model.conv1, model.bn1):
        part.requires_grad_(False)
    return model


def old_weight_norm():
    with torch.no_grad():
        model = Mlp(nn.utils.weight_norm(nn.Linear(8, K)))
    nn.utils.weight_norm(model.hidden[0])
    return model


def lazy():
    conv = [nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*conv, nn.LazyLinear(K))


def grouped():
    conv = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), StandardisedConv2d(8, 8, 3), nn.InstanceNorm2d(8)]
    return nn.Sequential(*conv, nn.Flatten(), nn.Linear(8 * 16, K))


def hugging_face(kind, **sizes):
    """A network of transformers, made from a configuration alone."""
    import transformers  # here, because it takes seconds

    model = getattr(transformers, kind)
    return model(model.config_class(num_labels=K, **sizes))


def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return hugging_face("BertForSequenceClassification", vocab_size=11, max_position_embeddings=8, **sizes)


def distilbert():
    sizes = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    return hugging_face("DistilBertForSequenceClassification", vocab_size=11, max_position_embeddings=8, **sizes)


def gpt2():
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    return hugging_face("GPT2ForSequenceClassification", vocab_size=11, pad_token_id=0, eos_token_id=0, **sizes)


def hugging_face_vit():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return hugging_face("ViTForImageClassification", image_size=8, patch_size=4, **sizes)


@dataclass(frozen=True)
class Case:
    """How a network is made, its inputs, and the name of its classifier."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    name: str


ZOO = {
    "resnet": Case(ResNet, images, "fc"),
    "mobilenet": Case(MobileNet, images, "classifier.3"),
    "lenet": Case(LeNet, images, "fc2"),
    "vit": Case(VisionTransformer, images, "head"),
    "convnext": Case(ConvNeXt, images, "head.fc"),
    "groupnorm": Case(grouped, images, "6"),
    "lstm": Case(lambda: Recurrent(nn.LSTM), tokens, "out"),
    "gru": Case(lambda: Recurrent(nn.GRU), tokens, "out"),
    "tied transformer": Case(TiedTransformer, padded, "score"),
    "tied classifier": Case(TiedClassifier, tokens, "classifier"),
    "siamese": Case(Siamese, lambda: (images(), images(seed=5)), "fc"),
    "two inputs": Case(TwoInputs, lambda: {"pixels": images(), "columns": table()}, "fc"),
    "inception": Case(Inception, images, "fc"),
    "mlp": Case(Mlp, table, "last"),
    "one layer": Case(lambda: nn.Linear(6, K), table, ""),
    "weight norm": Case(lambda: Mlp(nn.utils.parametrizations.weight_norm(nn.Linear(8, K))), table, "last"),
    "spectral norm": Case(lambda: Mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(8, K))), table, "last"),
    "old weight norm": Case(old_weight_norm, table, "last"),
    "cosine": Case(lambda: Mlp(NormedLinear(16.0)), table, "last"),
    "cosine in linear": Case(lambda: Mlp(CosineLinear(8, K, bias=False)), table, "last"),
    "scaled cosine": Case(lambda: Mlp(NormedLinear(), factor=16.0), table, "last"),
    "scaled linear": Case(lambda: Mlp(factor=4.0), table, "last"),
    "odd tensors": Case(Odd, table, "last"),
    "frozen layers": Case(frozen, images, "fc"),
    "lazy": Case(lazy, images, "4"),
    "bert": Case(bert, padded, "classifier"),
    "distilbert": Case(distilbert, padded, "classifier"),
    "gpt2": Case(gpt2, padded, "score"),
    "hugging face vit": Case(hugging_face_vit, lambda: {"pixel_values": images()}, "classifier"),
}

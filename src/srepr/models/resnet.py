"""ResNets (He et al. 2016; ResNeXt: Xie et al. 2017) for small and large images, with one or several experts.

    small images   a 3x3 stem, three stages of 16, 32 and 64 channels, 6n + 2 layers (section 4.2): ResNet-32 on CIFAR
    large images   a 7x7 stem and max pooling, four stages; version 1.5, where the 3x3 convolution strides

Parameter names are torchvision's and, for small images, those of LDAM-DRW except for the classifier, `fc`. Networks
with several experts (RIDE, SADE) have `layer3s.E` for a stage of expert E; the classifier reads the experts' features
side by side, [B, E L].
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.errors import unknown
from srepr.models.cosine import Cosine

Shortcut = Literal["A", "B", "torchvision"]


class ResNet(nn.Module):
    """`features` [B, E L] of images [B, channels, H, W], and the classifier `fc`.

    Stage i has `depths[i]` blocks of `widths[i]` channels. Each expert has its own copy of the last `private` stages.
    `squeeze` and `groups` are for bottlenecks, `shortcut` for basic blocks. With a `scale` the classifier is cosine.

    >>> net = ResNet(10, depths=(1, 1, 1), widths=(16, 24, 48), experts=3, private=2, scale=[30.0] * 3)
    >>> net.features(torch.zeros(2, 3, 8, 8)).shape, net(torch.zeros(2, 3, 8, 8)).shape
    (torch.Size([2, 144]), torch.Size([2, 10]))
    >>> [name for name, _ in net.named_children()]
    ['conv1', 'bn1', 'layer1', 'layer2s', 'layer3s', 'fc']
    """

    def __init__(
        self,
        classes: int,
        *,
        channels: int = 3,
        stem: int = 16,
        kernel: int = 3,
        bottleneck: bool = False,
        depths: Sequence[int] = (5, 5, 5),
        widths: Sequence[int] = (16, 32, 64),
        squeeze: int = 4,
        groups: int = 1,
        shortcut: Shortcut = "A",
        experts: int = 1,
        private: int = 0,
        bias: bool = True,
        scale: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> nn.Module:
            if bottleneck:
                return Bottleneck(inputs, outputs, stride, squeeze=squeeze, groups=groups)
            return BasicBlock(inputs, outputs, stride, shortcut)

        def stage(depth: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(depth - 1))
            )

        self.experts, self.large = experts, kernel == 7
        self.conv1 = nn.Conv2d(channels, stem, kernel, 2 if self.large else 1, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.shared, self.private = [], []
        for i, (depth, inputs, outputs) in enumerate(zip(depths, (stem, *widths), widths, strict=False)):
            stride = 2 if i else 1
            if i < len(depths) - private:
                self.shared.append(f"layer{i + 1}")
                self.add_module(self.shared[-1], stage(depth, inputs, outputs, stride))
            else:
                self.private.append(f"layer{i + 1}s")
                stages = nn.ModuleList(stage(depth, inputs, outputs, stride) for _ in range(experts))
                self.add_module(self.private[-1], stages)
        linear = nn.Linear(experts * widths[-1], classes, bias=bias)
        self.fc = linear if scale is None else Cosine(linear.weight, torch.tensor(scale))
        for module in self.modules():
            if self.large and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif not self.large and isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def features(self, x: Tensor) -> Tensor:
        """The representation that the classifier sees: the experts' features [B, L] side by side."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for name in self.shared:
            x = self.get_submodule(name)(x)
        if not self.private:
            return x.mean((2, 3))
        parts = []
        for expert in range(self.experts):
            part = x
            for name in self.private:
                part = self.get_submodule(f"{name}.{expert}")(part)
            parts.append(part.mean((2, 3)))
        return torch.cat(parts, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]; those of several experts are averaged."""
        logits: Tensor = self.fc(self.features(x))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, relu(x' + bn(conv(relu(bn(conv(x)))))).

    x' is x, or x brought to the new shape: by option A without parameters, or by a 1x1 convolution, called `shortcut`
    (option B) or `downsample` (torchvision).

    >>> BasicBlock(16, 32, stride=2, shortcut="A")(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        if shortcut not in ("A", "B", "torchvision"):
            raise unknown("shortcut", shortcut, ["A", "B", "torchvision"])
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.name = "downsample" if shortcut == "torchvision" else "shortcut"
        pads = shortcut == "A" and (stride != 1 or inputs != outputs)
        path = SubsampleAndPad(stride, (outputs - inputs) // 2) if pads else _projection(inputs, outputs, stride)
        self.add_module(self.name, path)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output [B, outputs, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + getattr(self, self.name)(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the middle one is `squeeze` times narrower than the output.

    >>> Bottleneck(64, 256, stride=2)(torch.zeros(1, 64, 8, 8)).shape
    torch.Size([1, 256, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, squeeze: int = 4, groups: int = 1) -> None:
        super().__init__()
        width = outputs // squeeze
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output [B, outputs, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class SubsampleAndPad(nn.Module):
    """The shortcut of option A: every `stride`-th pixel, and `pad` zero channels on each side.

    >>> SubsampleAndPad(stride=2, pad=1)(torch.ones(1, 1, 2, 2)).flatten()
    tensor([0., 1., 0.])
    """

    def __init__(self, stride: int, pad: int) -> None:
        super().__init__()
        self.stride, self.pad = stride, pad

    def forward(self, x: Tensor) -> Tensor:
        """Images of the new shape [B, C + 2 pad, H / stride, W / stride]."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def resnet8(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> ResNet:
    """ResNet-8 for small images; trains in seconds on a laptop's processor.

    >>> sum(p.numel() for p in resnet8(10, channels=1).parameters())
    75002
    """
    return ResNet(classes, depths=(1, 1, 1), channels=channels, shortcut=shortcut)


def resnet14(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> ResNet:
    """ResNet-14 for small images.

    >>> sum(p.numel() for p in resnet14(10).parameters())
    172506
    """
    return ResNet(classes, depths=(2, 2, 2), channels=channels, shortcut=shortcut)


def resnet20(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> ResNet:
    """ResNet-20 for small images.

    >>> sum(p.numel() for p in resnet20(10).parameters())
    269722
    """
    return ResNet(classes, depths=(3, 3, 3), channels=channels, shortcut=shortcut)


def resnet32(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> ResNet:
    """ResNet-32 for small images, the network of the CIFAR10-LT and CIFAR100-LT tables.

    >>> sum(p.numel() for p in resnet32(10).parameters())
    464154
    """
    return ResNet(classes, depths=(5, 5, 5), channels=channels, shortcut=shortcut)


def resnet18(classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-18, 11.7 million parameters at 1000 classes.

    >>> resnet18(7).fc
    Linear(in_features=512, out_features=7, bias=True)
    """
    return ResNet(
        classes,
        channels=channels,
        stem=64,
        kernel=7,
        depths=(2, 2, 2, 2),
        widths=(64, 128, 256, 512),
        shortcut="torchvision",
    )


def resnet50(classes: int, *, channels: int = 3, squeeze: int = 4, groups: int = 1) -> ResNet:
    """ResNet-50, the network of the ImageNet-LT and iNaturalist-2018 tables; 25.6 million parameters.

    >>> resnet50(7).fc
    Linear(in_features=2048, out_features=7, bias=True)
    """
    return ResNet(
        classes,
        channels=channels,
        stem=64,
        kernel=7,
        bottleneck=True,
        depths=(3, 4, 6, 3),
        widths=(256, 512, 1024, 2048),
        squeeze=squeeze,
        groups=groups,
    )


def resnext50(classes: int, *, channels: int = 3) -> ResNet:
    """ResNeXt-50 (32x4d): the 3x3 convolutions twice as wide as in ResNet-50, in 32 groups; 25.0 million parameters.

    >>> resnext50(7).layer1[0].conv2
    Conv2d(128, 128, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=32, bias=False)
    """
    return resnet50(classes, channels=channels, squeeze=2, groups=32)

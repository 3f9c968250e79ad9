"""ResNets for small images (He et al. 2016, section 4.2): 6n + 2 layers, in three stages of 16, 32 and 64 channels.

Between stages, the image halves and the channels double. There, shortcut A has no parameters (every second pixel,
zeros for the new channels) and shortcut B is a 1x1 convolution. The long-tailed literature trains ResNet-32 with
option A on CIFAR. Parameter names are those of LDAM-DRW, except for the classifier, `fc`.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from srepr.errors import InputError

Shortcut = Literal["A", "B"]


class CifarResNet(nn.Module):
    """ResNet of 6n + 2 layers: `features` [B, 64] of images [B, channels, H, W], and the linear classifier `fc`.

    >>> import torch
    >>> net = CifarResNet(1, classes=10, channels=1)
    >>> net.features(torch.zeros(2, 1, 8, 8)).shape, net(torch.zeros(2, 1, 8, 8)).shape
    (torch.Size([2, 64]), torch.Size([2, 10]))
    """

    def __init__(self, n: int, classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(n, 16, 16, 1, shortcut)
        self.layer2 = _stage(n, 16, 32, 2, shortcut)
        self.layer3 = _stage(n, 32, 64, 2, shortcut)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, 64], the input of the classifier."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


class BasicBlock(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))), where x' is x, or shortcut(x) if the shape changes.

    >>> import torch
    >>> BasicBlock(16, 32, stride=2, shortcut="A")(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif shortcut == "A":
            self.shortcut = SubsampleAndPad(stride, (outputs - inputs) // 2)
        elif shortcut == "B":
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        else:
            raise InputError(f"shortcut {shortcut!r} is unknown: choose 'A' (no parameters) or 'B' (1x1 convolution)")

    def forward(self, x: Tensor) -> Tensor:
        """Output [B, outputs, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SubsampleAndPad(nn.Module):
    """Shortcut of option A: every `stride`-th pixel, and `pad` zero channels before and after the existing ones.

    >>> import torch
    >>> SubsampleAndPad(stride=2, pad=1)(torch.ones(1, 1, 2, 2)).flatten()
    tensor([0., 1., 0.])
    """

    def __init__(self, stride: int, pad: int) -> None:
        super().__init__()
        self.stride, self.pad = stride, pad

    def forward(self, x: Tensor) -> Tensor:
        """Output [B, C + 2 pad, H / stride, W / stride]."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))


def _stage(n: int, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1, shortcut) for _ in range(n - 1)))


def resnet8(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """ResNet-8, small enough to train on a laptop CPU in seconds.

    >>> sum(p.numel() for p in resnet8(10, channels=1).parameters())
    75002
    """
    return CifarResNet(1, classes, channels=channels, shortcut=shortcut)


def resnet14(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """ResNet-14.

    >>> sum(p.numel() for p in resnet14(10).parameters())
    172506
    """
    return CifarResNet(2, classes, channels=channels, shortcut=shortcut)


def resnet20(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """ResNet-20.

    >>> sum(p.numel() for p in resnet20(10).parameters())
    269722
    """
    return CifarResNet(3, classes, channels=channels, shortcut=shortcut)


def resnet32(classes: int, *, channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """ResNet-32, used for CIFAR10-LT and CIFAR100-LT.

    >>> sum(p.numel() for p in resnet32(10).parameters())
    464154
    """
    return CifarResNet(5, classes, channels=channels, shortcut=shortcut)

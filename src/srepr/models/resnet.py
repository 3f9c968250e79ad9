"""ResNets for large images (He et al. 2016; ResNeXt: Xie et al. 2017), version 1.5: the 3x3 convolution strides.

Parameter names are torchvision's, so state dicts are interchangeable.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn


class ResNet(nn.Module):
    """Four stages of `depths` blocks and `widths` channels: `features` [B, widths[-1]] and the classifier `fc`.

    `block(inputs, outputs, stride)` builds one block.

    >>> import torch
    >>> net = ResNet(BasicBlock, depths=(1, 1, 1, 1), widths=(8, 16, 32, 64), classes=10)
    >>> net.features(torch.zeros(2, 3, 64, 64)).shape, net(torch.zeros(2, 3, 64, 64)).shape
    (torch.Size([2, 64]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        *,
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int,
        channels: int = 3,
    ) -> None:
        super().__init__()

        def stage(depth: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(depth - 1))
            )

        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(depths[0], 64, widths[0], 1)
        self.layer2 = stage(depths[1], widths[0], widths[1], 2)
        self.layer3 = stage(depths[2], widths[1], widths[2], 2)
        self.layer4 = stage(depths[3], widths[2], widths[3], 2)
        self.fc = nn.Linear(widths[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Features [B, L], the input of the classifier."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the 3x3 has 1 / `squeeze` of the output channels.

    >>> import torch
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
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Output [B, outputs, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut.

    >>> import torch
    >>> BasicBlock(64, 128, stride=2)(torch.zeros(1, 64, 8, 8)).shape
    torch.Size([1, 128, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Output [B, outputs, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def resnet18(classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-18, 11.7 million parameters with 1000 classes.

    >>> resnet18(7).fc
    Linear(in_features=512, out_features=7, bias=True)
    """
    widths = (64, 128, 256, 512)
    return ResNet(BasicBlock, depths=(2, 2, 2, 2), widths=widths, classes=classes, channels=channels)


def resnet50(classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-50, used for ImageNet-LT and iNaturalist-2018; 25.6 million parameters.

    >>> resnet50(7).fc
    Linear(in_features=2048, out_features=7, bias=True)
    """
    widths = (256, 512, 1024, 2048)
    return ResNet(Bottleneck, depths=(3, 4, 6, 3), widths=widths, classes=classes, channels=channels)


def resnext50(classes: int, *, channels: int = 3) -> ResNet:
    """ResNeXt-50 (32x4d): 3x3 convolutions twice as wide as in ResNet-50, in 32 groups; 25.0 million parameters.

    >>> resnext50(7).layer1[0].conv2
    Conv2d(128, 128, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=32, bias=False)
    """
    widths, block = (256, 512, 1024, 2048), partial(Bottleneck, squeeze=2, groups=32)
    return ResNet(block, depths=(3, 4, 6, 3), widths=widths, classes=classes, channels=channels)

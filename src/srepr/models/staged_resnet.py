"""ResNets that match other projects' checkpoints: any depths and widths, several experts, cosine classifiers.

Parameter names are theirs: `layer1` .. `layer4` as in torchvision, and `layer3s.E` if each expert E has its own stage
(RIDE, SADE). The classifier `fc` takes the experts' features, concatenated to [B, E L].
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srepr.models import resnet, resnet_cifar
from srepr.models.cosine import Cosine


class StagedResNet(nn.Module):
    """Stages of `depths` blocks and `widths` channels; each expert has its own copy of the last `private` stages.

    A 3x3 stem keeps the resolution (CIFAR), a 7x7 stem reduces it to a quarter (ImageNet).

    >>> net = StagedResNet(10, depths=(1, 1, 1), widths=(16, 24, 48), experts=3, private=2, scale=[30.0] * 3)
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
        shortcut: resnet_cifar.Shortcut = "A",
        experts: int = 1,
        private: int = 0,
        bias: bool = True,
        scale: float | Sequence[float] | None = None,
    ) -> None:
        """`squeeze` and `groups` are for bottlenecks, `shortcut` for other blocks; with `scale`, `fc` is cosine."""
        super().__init__()

        def stage(depth: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
            block = (
                partial(resnet.Bottleneck, squeeze=squeeze, groups=groups)
                if bottleneck
                else partial(resnet_cifar.BasicBlock, shortcut=shortcut)
            )
            later = (block(outputs, outputs, 1) for _ in range(depth - 1))
            return nn.Sequential(block(inputs, outputs, stride), *later)

        self.experts, self.quarters = experts, kernel == 7
        self.conv1 = nn.Conv2d(channels, stem, kernel, 2 if self.quarters else 1, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.shared, self.private = [], []
        for i, (depth, inputs, outputs) in enumerate(zip(depths, (stem, *widths), widths, strict=False)):
            make = partial(stage, depth, inputs, outputs, 2 if i else 1)
            if i < len(depths) - private:
                self.shared.append(f"layer{i + 1}")
                self.add_module(self.shared[-1], make())
            else:
                self.private.append(f"layer{i + 1}s")
                self.add_module(self.private[-1], nn.ModuleList(make() for _ in range(experts)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        linear = nn.Linear(experts * widths[-1], classes, bias=bias)
        self.fc = linear if scale is None else Cosine(linear.weight, torch.tensor(scale))

    def features(self, x: Tensor) -> Tensor:
        """Features [B, E L], the input of the classifier: the experts' features, concatenated."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self.quarters:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for name in self.shared:
            x = self.get_submodule(name)(x)
        parts = []
        for expert in range(self.experts):
            part = x
            for name in self.private:
                part = self.get_submodule(f"{name}.{expert}")(part)
            parts.append(part.mean((2, 3)))
        return torch.cat(parts, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K], averaged over the experts."""
        logits: Tensor = self.fc(self.features(x))
        return logits

"""The networks of other projects, in plain PyTorch and under those projects' names; nothing here is srepr's."""

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 30.0


class NormedLinear(nn.Module):
    """cos(x, w_k) for the columns w_k of weight [L, K]; times s where the project has the scale in the layer."""

    def __init__(self, features, classes, s=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, classes))
        self.s = s

    def forward(self, x):
        return self.s * (x / x.norm(dim=1, keepdim=True)) @ (self.weight / self.weight.norm(dim=0, keepdim=True))


class PadShortcut(nn.Module):
    """Option A."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.side = (outputs - inputs) // 2

    def forward(self, x):
        x = x[:, :, ::2, ::2]
        zeros = x.new_zeros(len(x), self.side, *x.shape[2:])
        return torch.cat([zeros, x, zeros], 1)


class CifarBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = PadShortcut(inputs, outputs) if stride > 1 else nn.Sequential()

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Block(nn.Module):
    """torchvision's two blocks: `expansion` 1 is the basic one, 4 the bottleneck that strides in its 3x3."""

    def __init__(self, inputs, planes, stride, expansion=4, groups=1, per_group=64):
        super().__init__()
        outputs, self.expansion = planes * expansion, expansion
        width = planes * per_group // 64 * groups
        if expansion == 1:
            self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        else:
            self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
            self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
        self.bn1 = nn.BatchNorm2d(self.conv1.out_channels)
        self.bn2 = nn.BatchNorm2d(self.conv2.out_channels)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.expansion > 1:
            y = self.bn3(self.conv3(F.relu(y)))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def stage(block, depth, inputs, planes, stride, **options):
    expansion = options.get("expansion", 1 if block is CifarBlock else 4)
    blocks = [block(inputs, planes, stride, **options)]
    blocks += [block(planes * expansion, planes, 1, **options) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


class CifarBody(nn.Module):
    """conv1, bn1, layer1..3 of LDAM-DRW, CMO, MiSLAS and BCL's CIFAR variants."""

    def __init__(self, n=1, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(CifarBlock, n, 16, 16, 1)
        self.layer2 = stage(CifarBlock, n, 16, 32, 2)
        self.layer3 = stage(CifarBlock, n, 32, 64, 2)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return F.avg_pool2d(x, x.shape[3]).flatten(1)


class Ldam(CifarBody):
    def __init__(self, classes, normed, channels=3):
        super().__init__(channels=channels)
        self.linear = NormedLinear(64, classes) if normed else nn.Linear(64, classes)

    def forward(self, x):
        return self.linear(super().forward(x))


class ImageNetBody(nn.Module):
    """torchvision's ResNet without its classifier; an eighth of its width, and one block a stage."""

    def __init__(self, **options):
        super().__init__()
        expansion = options.get("expansion", 4)
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(Block, 1, 16, 8, 1, **options)
        self.layer2 = stage(Block, 2, 8 * expansion, 16, 2, **options)
        self.layer3 = stage(Block, 1, 16 * expansion, 32, 2, **options)
        self.layer4 = stage(Block, 1, 32 * expansion, 64, 2, **options)
        self.length = 64 * expansion

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class Torchvision(ImageNetBody):
    def __init__(self, classes, name="fc", **options):
        super().__init__(**options)
        self.name = name
        setattr(self, name, nn.Linear(self.length, classes))

    def forward(self, x):
        return getattr(self, self.name)(super().forward(x))


class RideCifar(nn.Module):
    def __init__(self, classes, experts, normed, widths=(24, 48), early_exit=False, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(CifarBlock, 1, 16, 16, 1)
        self.layer2s = nn.ModuleList(stage(CifarBlock, 2, 16, widths[0], 2) for _ in range(experts))
        self.layer3s = nn.ModuleList(stage(CifarBlock, 1, widths[0], widths[1], 2) for _ in range(experts))
        head = NormedLinear if normed else nn.Linear
        self.linears = nn.ModuleList(head(widths[1], classes) for _ in range(experts))
        self.s = SCALE if normed else 1.0
        if early_exit:
            self.expert_help_pred_hidden_fcs = nn.ModuleList(nn.Linear(widths[1], 16) for _ in range(experts - 1))
            self.expert_help_pred_fc = nn.Linear(21, 1)

    def forward(self, x):
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        outputs = []
        for second, third, linear in zip(self.layer2s, self.layer3s, self.linears, strict=True):
            outputs.append(self.s * linear(third(second(x)).mean((2, 3))))
        return torch.stack(outputs, 1).mean(1)


class RideImageNet(nn.Module):
    """Experts from layer3 on, or from layer4 on with `share`; three quarters as wide there."""

    def __init__(self, classes, experts, share, **options):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(Block, 1, 16, 8, 1, **options)
        self.layer2 = stage(Block, 1, 32, 16, 2, **options)
        third = [stage(Block, 1, 64, 24, 2, **options) for _ in range(1 if share else experts)]
        if share:
            self.layer3 = third[0]
        else:
            self.layer3s = nn.ModuleList(third)
        self.layer4s = nn.ModuleList(stage(Block, 1, 96, 48, 2, **options) for _ in range(experts))
        self.linears = nn.ModuleList(NormedLinear(192, classes) for _ in range(experts))
        self.share = share

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer2(self.layer1(x))
        outputs = []
        for expert, (fourth, linear) in enumerate(zip(self.layer4s, self.linears, strict=True)):
            y = self.layer3(x) if self.share else self.layer3s[expert](x)
            outputs.append(SCALE * linear(fourth(y).mean((2, 3))))
        return torch.stack(outputs, 1).mean(1)


class Backbone(nn.Module):
    """The model of RIDE and SADE around a network."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return self.backbone(x)


class Bcl(nn.Module):
    def __init__(self, encoder, length, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(length, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.fc = NormedLinear(length, classes, s=SCALE)
        self.head_fc = nn.Sequential(nn.Linear(length, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.fc(self.encoder(x))


class Fc(nn.Module):
    """The classifiers of MiSLAS and of classifier-balancing, which are models of their own."""

    def __init__(self, length, classes, scales=False):
        super().__init__()
        self.fc = nn.Linear(length, classes)
        if scales:
            self.scales = nn.Parameter(torch.rand(classes) + 0.5)

    def forward(self, x):
        return self.fc(x) * getattr(self, "scales", 1)


class LearnedNorm(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.learned_norm = nn.Parameter(torch.rand(1, classes) + 0.5)

    def forward(self, x):
        return self.learned_norm * x


def lived_in(network):
    """The network with BatchNorm layers that are no identities, in eval mode."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            module.num_batches_tracked.fill_(7)
    return network.eval()

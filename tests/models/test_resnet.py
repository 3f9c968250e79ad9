import pytest
import torch

from srepr.models import resnet18, resnet50, resnext50


@pytest.mark.parametrize(
    ("make", "parameters"), [(resnet18, 11_689_512), (resnet50, 25_557_032), (resnext50, 25_028_904)]
)
def test_parameter_counts_are_torchvisions(make, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in make(1000).parameters()) == parameters


def torchvision_keys(depths, convolutions, *, first_downsample):
    """The keys of torchvision's state dicts, in its order, by the rule of its module names."""

    def norm(name):
        return [f"{name}.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    keys = ["conv1.weight", *norm("bn1")]
    for stage, depth in enumerate(depths, 1):
        for i in range(depth):
            block = f"layer{stage}.{i}"
            for c in range(1, convolutions + 1):
                keys += [f"{block}.conv{c}.weight", *norm(f"{block}.bn{c}")]
            if i == 0 and (stage > 1 or first_downsample):
                keys += [f"{block}.downsample.0.weight", *norm(f"{block}.downsample.1")]
    return [*keys, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (resnet18, torchvision_keys((2, 2, 2, 2), 2, first_downsample=False)),
        (resnet50, torchvision_keys((3, 4, 6, 3), 3, first_downsample=True)),
        (resnext50, torchvision_keys((3, 4, 6, 3), 3, first_downsample=True)),
    ],
)
def test_state_dict_keys_are_torchvisions(make, keys):
    with torch.device("meta"):
        assert list(make(10).state_dict()) == keys


@pytest.mark.parametrize(("make", "width", "groups"), [(resnet50, 128, 1), (resnext50, 256, 32)])
def test_version_1_5_strides_on_the_3x3(make, width, groups):
    with torch.device("meta"):
        block = make(10).layer2[0]
    assert block.conv1.stride == block.conv3.stride == (1, 1)
    assert block.conv2.stride == block.downsample[0].stride == (2, 2)
    assert block.conv2.weight.shape == (width, width // groups, 3, 3)


def test_a_loaded_state_dict_gives_the_same_function():
    torch.manual_seed(0)
    one, other, images = resnet18(5).eval(), resnet18(5).eval(), torch.randn(2, 3, 32, 32)
    assert not torch.equal(one(images), other(images))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(images), other(images))


@pytest.mark.parametrize(("make", "length"), [(resnet18, 512), (resnet50, 2048), (resnext50, 2048)])
def test_shapes(make, length):
    with torch.device("meta"):
        net, images = make(7, channels=1).eval(), torch.zeros(2, 1, 64, 96)
        assert net.features(images).shape == (2, length)
        assert net(images).shape == (2, 7)
        assert net.layer4(torch.zeros(2, length // 2, 14, 14)).shape == (2, length, 7, 7)

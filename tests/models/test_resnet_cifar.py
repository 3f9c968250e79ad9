import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from srepr.errors import InputError
from srepr.models import resnet8, resnet14, resnet20, resnet32
from srepr.models.resnet import SubsampleAndPad


def count(net):
    return sum(p.numel() for p in net.parameters())


def by_hand(n, *, channels, classes, shortcut):
    """Weights of 6n + 2 layers, each convolution followed by a scale and a shift per channel."""
    total = 9 * channels * 16 + 2 * 16 + (64 + 1) * classes
    for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
        total += 9 * inputs * outputs + 9 * outputs * outputs * (2 * n - 1) + 2 * outputs * 2 * n
        if shortcut == "B" and inputs != outputs:
            total += inputs * outputs + 2 * outputs
    return total


@pytest.mark.parametrize(("make", "n"), [(resnet8, 1), (resnet14, 2), (resnet20, 3), (resnet32, 5)])
@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_parameter_count_is_the_sum_over_the_layers(make, n, shortcut):
    net = make(100, channels=1, shortcut=shortcut)
    assert count(net) == by_hand(n, channels=1, classes=100, shortcut=shortcut)


def test_resnet32_has_the_published_size():
    assert count(resnet32(10)) == 464_154


@pytest.mark.parametrize("classes", [2, 10_000])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_shapes_from_digits_to_cifar_and_from_two_to_ten_thousand_classes(classes, channels, size):
    net, images = resnet8(classes, channels=channels).eval(), torch.randn(2, channels, size, size)
    features = net.features(images)
    assert features.shape == (2, 64)
    assert torch.equal(net(images), net.fc(features))
    assert net(images).shape == (2, classes)


def test_names_are_those_of_the_long_tailed_peers():
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{key}" for key in norm)}
    for stage in (1, 2, 3):
        for i in range(5):
            block = f"layer{stage}.{i}"
            expected |= {f"{block}.conv1.weight", f"{block}.conv2.weight"}
            expected |= {f"{block}.{bn}.{key}" for bn in ("bn1", "bn2") for key in norm}
    assert set(resnet32(10).state_dict()) == expected
    shortcuts = {f"layer{stage}.0.shortcut.0.weight" for stage in (2, 3)}
    shortcuts |= {f"layer{stage}.0.shortcut.1.{key}" for stage in (2, 3) for key in norm}
    assert set(resnet32(10, shortcut="B").state_dict()) == expected | shortcuts


def test_an_unknown_shortcut_is_an_input_error():
    with pytest.raises(InputError, match=r"unknown shortcut 'C'.* Known: A, B"):
        resnet8(10, shortcut="C")


def test_weights_are_a_function_of_the_global_seed():
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in resnet8(10).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_convolutions_start_with_he_variance():
    torch.manual_seed(0)
    weight = resnet32(10).layer3[1].conv1.weight
    assert weight.var().item() == pytest.approx(2 / (9 * 64), rel=0.03)


@pytest.mark.parametrize(("inputs", "pad"), [(16, 8), (16, 4), (24, 12)])  # ResNet-32, and the 16/24/48 of RIDE
def test_option_a_keeps_every_second_pixel_between_zero_channels(inputs, pad):
    images = torch.randn(2, inputs, 6, 6)
    out = SubsampleAndPad(2, pad)(images)
    assert out.shape == (2, inputs + 2 * pad, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(out[:, pad : pad + inputs, row, column], images[:, :, 2 * row, 2 * column])
    assert out[:, :pad].abs().sum() == out[:, pad + inputs :].abs().sum() == 0


def reference_logits(state, images):
    """ResNet-8 with option A in float64 numpy, eval mode, from the state dict alone."""

    def conv(x, name, stride=1):
        windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
        return np.einsum("bchwij,ocij->bohw", windows[:, :, ::stride, ::stride], state[f"{name}.weight"])

    def norm(x, name):
        mean, var, scale, shift = (
            state[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(var + 1e-5) * scale + shift

    x = np.maximum(norm(conv(images, "conv1"), "bn1"), 0)
    for stage, stride in ((1, 1), (2, 2), (3, 2)):
        block = f"layer{stage}.0"
        y = np.maximum(norm(conv(x, f"{block}.conv1", stride), f"{block}.bn1"), 0)
        y = norm(conv(y, f"{block}.conv2"), f"{block}.bn2")
        shortcut = np.zeros_like(y)
        margin = (y.shape[1] - x.shape[1]) // 2
        shortcut[:, margin : margin + x.shape[1]] = x[:, :, ::stride, ::stride]
        x = np.maximum(y + shortcut, 0)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def test_forward_is_what_float64_numpy_says():
    torch.manual_seed(0)
    net = resnet8(10, channels=1).eval()
    for name, tensor in net.state_dict().items():
        if "running_" in name or "bn" in name:
            tensor.copy_(tensor + torch.rand(tensor.shape))
    images = torch.randn(3, 1, 8, 8)
    expected = reference_logits({k: v.double().numpy() for k, v in net.state_dict().items()}, images.double().numpy())
    np.testing.assert_allclose(net(images).detach().numpy(), expected, rtol=1e-4, atol=1e-4)

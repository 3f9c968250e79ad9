import pytest
import torch

from srepr.errors import InputError
from srepr.models import NETWORKS, build, mlp


@pytest.mark.parametrize("name", [name for name in NETWORKS if name.startswith("resn") or name == "mlp"])
def test_every_network_by_name_is_features_then_fc(name):
    vectors, colours = ({"inputs": 12}, (3, 12)), ({}, (3, 3, 32, 32))
    kinds = {"mlp": vectors, "linear": vectors, "efficientnet-lite0": colours}
    options, shape = kinds.get(name, ({"channels": 1}, (3, 1, 32, 32)))
    with torch.device("meta"):
        net, inputs = build(name, 4, **options).eval(), torch.zeros(shape)
        assert net(inputs).shape == (3, 4)
        assert net.features(inputs).shape == (3, net.fc.in_features)


def test_an_unknown_network_lists_the_known_and_the_nearest():
    with pytest.raises(InputError, match=r"^unknown network 'resnext-50'; did you mean resnext50\? Known: .*, mlp, "):
        build("resnext-50", 10)
    with pytest.raises(InputError, match=r"^unknown network 'transformer'\. Known"):
        build("transformer", 10)


def test_options_a_network_does_not_take_or_lacks_are_named():
    with pytest.raises(InputError, match=r"mlp.*'inputs'.*It takes classes, inputs, width, depth, dropout"):
        build("mlp", 3)
    with pytest.raises(InputError, match=r"resnet50.*'shortcut'.*It takes classes, channels"):
        build("resnet50", 3, shortcut="B")


@pytest.mark.parametrize("depth", [1, 3])
def test_mlp_flattens_and_has_depth_hidden_layers(depth):
    net = mlp(2, inputs=12, width=8, depth=depth, dropout=0.5).eval()
    rows = torch.randn(5, 3, 4)
    assert torch.equal(net(rows), net.fc(net.features(rows.flatten(1))))
    linear = 12 * 8 + 8 + (depth - 1) * (8 * 8 + 8) + 8 * 2 + 2
    assert sum(p.numel() for p in net.parameters()) == linear + depth * 2 * 8

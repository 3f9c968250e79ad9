"""Whatever a checkpoint holds, `srepr import` and `srepr train --from` answer in one line and leave nothing behind."""

import json
import struct

import pytest
import torch
from safetensors.torch import save, save_file
from tests.importing.networks import Ldam, RideCifar

from srepr.errors import InputError
from srepr.importing.checkpoint import read_checkpoint


def state(**changes):
    return {**Ldam(10, normed=False, channels=1).state_dict(), **{k.replace("__", "."): v for k, v in changes.items()}}


def experts(**changes):
    network = RideCifar(10, 2, normed=False, channels=1)
    return {f"backbone.{name}": tensor for name, tensor in {**network.state_dict(), **changes}.items()}


NAN, INF = float("nan"), float("inf")
CONTAINERS = {
    "list": [torch.zeros(2)],
    "tensor": torch.zeros(2),
    "number": 3,
    "none": None,
    "text": "weights",
    "empty": {},
    "numbers": {"fc.weight": 1.0, "conv1.weight": 2},
    "no state": {"state_dict": None},
    "a state of numbers": {"state_dict": {"fc.weight": 3}},
    "a state in a list": {"state_dict": [1, 2]},
    "numbered": dict(enumerate(state().values())),
    "texts": dict.fromkeys(state(), "tensor"),
    "mislas of numbers": {"state_dict_model": 1, "state_dict_classifier": 2},
    "mislas of texts": {"state_dict_model": state(), "state_dict_classifier": state(), "state_dict_lws_model": "x"},
    "balancing of nothing": {"state_dict_best": {"feat_model": None, "classifier": None}},
    "balancing of lists": {"state_dict_best": {"feat_model": [1], "classifier": {"fc.weight": torch.zeros(2, 2)}}},
}  # fmt: skip
TENSORS = {
    "a scalar": (state(linear__weight=torch.tensor(1.0)), "2 of its tensors are unexpected"),
    "a scalar bias": (state(linear__bias=torch.tensor(1.0)), "its bias is not [10]"),
    "a scalar stem": (state(conv1__weight=torch.tensor(1.0)), "only stems of 3x3"),
    "a scalar block": (state(layer1__0__conv2__weight=torch.tensor(1.0)), "cannot build a network"),
    "no classes": (state(linear__weight=torch.zeros(0, 64)), "has no numbers, [0, 64]"),
    "nan": (state(bn1__weight=torch.full((16,), NAN)), "bn1.weight contains NaN or infinity"),
    "infinity": (state(linear__weight=torch.full((10, 64), INF)), "contains NaN or infinity"),
    "too large": (state(bn1__bias=torch.full((16,), 1e300, dtype=torch.float64)), "contains NaN or infinity"),
    "variance": (state(bn1__running_var=torch.full((16,), -1.0)), "contains variances below 0"),
    "int8": (state(linear__weight=torch.ones(10, 64, dtype=torch.int8)), "numbers of the type torch.int8"),
    "bool": (state(bn1__weight=torch.ones(16, dtype=torch.bool)), "numbers of the type torch.bool"),
    "unlike experts": (experts(**{"layer3s.1.0.conv1.weight": torch.zeros(3, 3, 3, 3)}), "wrong shape"),
    "unlike heads": (experts(**{"linears.1.weight": torch.zeros(9, 64)}), "its classifier is"),
    "blocks": ({**state(), **{f"layer2.{k}.conv1.weight": torch.zeros(1) for k in range(999)}}, "its blocks lack"),
    "experts": (
        {**experts(), **{f"backbone.layer3s.{k}.0.conv1.weight": torch.zeros(1) for k in range(999)}},
        "its blocks lack",
    ),
    "a long name": ({**state(), "n" * 10**6: torch.zeros(1)}, "1 of its tensors are unexpected: nnn"),
    "a name of control characters": ({**state(), "\x1b[2J\n": torch.zeros(1)}, r"unexpected: \x1b[2J\n."),
}


@pytest.mark.parametrize("verb", ["import", "train"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_other_containers_are_refused(srepr, tmp_path, kind, verb):
    torch.save(CONTAINERS[kind], tmp_path / "c.pth")
    words = ["--source", "digits-lt"] if verb == "import" else ["digits-lt", "--from"]
    order = [tmp_path / "c.pth", *words] if verb == "import" else [*words, tmp_path / "c.pth"]
    assert f"{tmp_path / 'c.pth'}: " in srepr(verb, *order, "--out", tmp_path / "run").complaint
    assert [file.name for file in tmp_path.iterdir()] == ["c.pth"]


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_no_weights_are_named(tmp_path, kind):
    content, message = TENSORS[kind]
    torch.save(content, tmp_path / "c.pth")
    with pytest.raises(InputError) as refusal:
        read_checkpoint(tmp_path / "c.pth")
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_float_are_read(tmp_path, dtype):
    content = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state().items()}
    torch.save(content, tmp_path / "c.pth")
    assert {p.dtype for p in read_checkpoint(tmp_path / "c.pth").network.parameters()} == {torch.float32}


@pytest.mark.parametrize("scale", [0, -1, NAN, INF])
def test_a_scale_that_is_none_is_named(srepr, tmp_path, scale):
    torch.save(state(), tmp_path / "c.pth")
    answer = srepr("import", tmp_path / "c.pth", "--source", "digits-lt", "--out", tmp_path / "run", "--scale", scale)
    assert "--scale is" in answer.complaint


def test_a_network_whose_outputs_are_not_finite_leaves_nothing_behind(srepr, tmp_path):
    """Every weight is finite; their product is not."""
    huge = {"bn1__weight": torch.full((16,), 3e38), "bn1__bias": torch.full((16,), 3e38)}
    torch.save(state(**huge, linear__weight=torch.full((10, 64), 3e38)), tmp_path / "c.pth")
    answer = srepr("import", tmp_path / "c.pth", "--source", "digits-lt", "--out", tmp_path / "a" / "run")
    assert "NaN or infinity" in answer.complaint
    assert [file.name for file in tmp_path.iterdir()] == ["c.pth"]


GOOD = save(state(), {"srepr": "no json"})
SAFETENSORS = {
    "empty": b"",
    "cut": GOOD[:-40],
    "header only": GOOD[:200],
    "no header": struct.pack("<Q", 2) + b"[]",
    "long header": struct.pack("<Q", 2**63) + GOOD[8:],
    "lying offsets": struct.pack("<Q", 68) + b'{"w":{"dtype":"F32","shape":[999999],"data_offsets":[0,3999996]}}   ',
    "overlap": struct.pack("<Q", 126)
    + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(73)
    + bytes(4),
}


@pytest.mark.parametrize("verb", ["import", "train"])
@pytest.mark.parametrize("kind", SAFETENSORS)
def test_damaged_safetensors_are_refused(srepr, tmp_path, kind, verb):
    path = tmp_path / "c.safetensors"
    path.write_bytes(SAFETENSORS[kind])
    order = [path, "--source", "digits-lt"] if verb == "import" else ["digits-lt", "--from", path]
    assert str(path) in srepr(verb, *order, "--out", tmp_path / "run").complaint
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("metadata", [{"srepr": "no json"}, {"srepr": "3"}, {"srepr": json.dumps(["about"])[1:]}, {}])
def test_metadata_of_others_do_not_matter(srepr, tmp_path, metadata):
    path = tmp_path / "c.safetensors"
    save_file(state(), path, metadata)
    assert srepr("import", path, "--source", "digits-lt", "--out", tmp_path / "run", "--json").code == 0
    assert srepr("train", "digits-lt", "--from", path, "--epochs", 1, "--out", tmp_path / "more").code == 0


@pytest.mark.parametrize("about", ["no json", "3", "[]", "{}", '{"network": 3}', '{"network": "mlp", "options": []}'])
def test_metadata_that_claim_to_be_ours_are_refused(srepr, tmp_path, about):
    path = tmp_path / "c.safetensors"
    save_file(state(), path, {"srepr": json.dumps({"about": about})})
    assert str(path) in srepr("train", "digits-lt", "--from", path, "--out", tmp_path / "run").complaint
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]

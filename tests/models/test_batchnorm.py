import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from srepr.errors import InputError
from srepr.models import feature_extractor, mlp, resnet8, update_batchnorm


def parts(data, sizes):
    return list(data.split(sizes))


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    spread=st.sampled_from([0.0, 0.1, 1.0]),
    spatial=st.booleans(),
    seed=st.integers(0, 99),
)
def test_first_layer_has_the_statistics_of_the_whole_data_in_whatever_batches(sizes, offset, spread, spatial, seed):
    shape = (sum(sizes), 3, 2, 4) if spatial else (sum(sizes), 3)
    data = offset + spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    layer = nn.BatchNorm2d(3) if spatial else nn.BatchNorm1d(3)
    update_batchnorm(layer, parts(data, sizes))
    values = np.moveaxis(data.double().numpy(), 1, 0).reshape(3, -1)
    np.testing.assert_allclose(layer.running_mean, values.mean(1), rtol=1e-6, atol=1e-6)
    rounding = (
        np.finfo(np.float32).eps * offset
    )  # of a batch mean; the variance of the means moves by 2 of it x spread
    np.testing.assert_allclose(layer.running_var, values.var(1, ddof=1), rtol=1e-5, atol=2 * rounding * spread + 1e-12)


def test_deeper_layers_see_batches_normalised_as_in_training():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 6), nn.BatchNorm1d(6)
    )
    sizes, data = [7, 2, 16], torch.randn(25, 4)
    update_batchnorm(net, parts(data, sizes))

    state = {k: v.double().numpy() for k, v in net.state_dict().items()}
    first, second = [], []
    for batch in np.split(data.double().numpy(), np.cumsum(sizes)[:-1]):
        x = batch @ state["0.weight"].T + state["0.bias"]
        first.append(x)
        x = np.maximum((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), 0)  # no dropout
        second.append(x @ state["4.weight"].T + state["4.bias"])
    for name, seen in (("1", np.concatenate(first)), ("5", np.concatenate(second))):
        np.testing.assert_allclose(state[f"{name}.running_mean"], seen.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state[f"{name}.running_var"], seen.var(0, ddof=1), rtol=1e-5)


def test_flags_momentum_weights_and_the_random_state_stay_and_the_past_is_forgotten():
    torch.manual_seed(0)
    net, data = resnet8(10, channels=1), [torch.randn(6, 1, 8, 8), torch.randn(3, 1, 8, 8)]
    net.bn1.momentum, net.layer1[0].bn1.momentum = None, 0.3
    net.layer2.eval()
    net.bn1.running_mean.fill_(float("nan"))
    flags, weights = [m.training for m in net.modules()], [p.clone() for p in net.parameters()]
    random_state = torch.get_rng_state()
    update_batchnorm(net, data)
    once = {k: v.clone() for k, v in net.state_dict().items()}
    update_batchnorm(net, data)
    assert all(torch.equal(once[k], v) for k, v in net.state_dict().items())
    assert all(v.isfinite().all() for v in once.values())
    assert [m.training for m in net.modules()] == flags
    assert (net.bn1.momentum, net.layer1[0].bn1.momentum, net.bn1._forward_hooks) == (None, 0.3, {})
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    assert torch.equal(random_state, torch.get_rng_state())


def test_layers_without_statistics_or_not_reached_stay_as_they_are():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
            self.free = nn.BatchNorm1d(2, track_running_stats=False)

        def forward(self, x):
            return self.free(self.used(x))

    net = Net()
    update_batchnorm(net, [torch.randn(4, 2) + 5])
    assert net.used.running_mean.min() > 3
    assert torch.equal(net.unused.running_mean, torch.zeros(2))
    assert torch.equal(net.unused.running_var, torch.ones(2))
    assert net.free.running_mean is None


def test_a_batch_of_one_row_is_left_out_rather_than_fatal():
    rows = torch.randn(5, 3)
    whole, ragged = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    update_batchnorm(whole, [rows[:4]])
    update_batchnorm(ragged, [rows[:4], rows[4:]])
    assert torch.equal(whole.running_mean, ragged.running_mean)
    assert torch.equal(whole.running_var, ragged.running_var)
    image, alone = torch.randn(1, 3, 4, 4), nn.BatchNorm2d(3)
    update_batchnorm(alone, [image])  # one image has many values per channel
    np.testing.assert_allclose(alone.running_var, image.double().var((0, 2, 3)), rtol=1e-5)


def test_no_batch_is_an_input_error_and_no_layer_a_no_op():
    with pytest.raises(InputError, match="pass batches"):
        update_batchnorm(mlp(2, inputs=3), [])
    update_batchnorm(nn.Linear(2, 2), iter(["never read"]))


def test_reduce_pools_the_processes():
    torch.manual_seed(0)
    net, data = nn.BatchNorm1d(3), torch.randn(12, 3)
    gathered = []
    update_batchnorm(net, [data[:5]], reduce=lambda total: gathered.append(total) or total)
    update_batchnorm(net, [data[5:]], reduce=lambda total: total + gathered[0])
    np.testing.assert_allclose(net.running_mean, data.double().mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(net.running_var, data.double().var(0), rtol=1e-5)


def test_an_extractor_gets_the_statistics_of_its_model():
    torch.manual_seed(0)
    net, data = resnet8(10, channels=1), [torch.randn(6, 1, 8, 8), torch.randn(3, 1, 8, 8)]
    extractor = feature_extractor(net, "fc")
    update_batchnorm(net, data)
    update_batchnorm(extractor, data)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in extractor.state_dict().items())


def test_the_wrapper_of_data_parallel_and_dict_inputs_are_understood():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, values):
            return {"logits": self.norm(values)}

    net, data = Net(), torch.randn(9, 3)
    update_batchnorm(nn.DataParallel(net), [{"values": data}])
    np.testing.assert_allclose(net.norm.running_var, data.double().var(0), rtol=1e-5)

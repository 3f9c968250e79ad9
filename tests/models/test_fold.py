import pytest
import torch
from torch import nn

from srepr.models import feature_extractor, fold_batchnorm, resnet8, resnet18, resnet32, resnext50
from srepr.models.batchnorm import _BatchNorm


def norms(model):
    return sum(isinstance(module, _BatchNorm) for module in model.modules())


def shaken(model):
    """The model with BatchNorm scales, shifts and statistics that are not the ones it starts with."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                if tensor is not None:
                    tensor.data.add_(0.5 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


def assert_same(folded, model, inputs):
    expected = model(inputs)
    assert (folded(inputs) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: resnet32(10), 16),
        (lambda: resnet8(10, shortcut="B"), 16),
        (lambda: resnet18(5), 32),
        (lambda: resnext50(5), 32),
    ],
)
@torch.no_grad()
def test_a_folded_network_is_the_same_function_without_batchnorm(make, size):
    torch.manual_seed(0)
    model = shaken(make())
    folded = fold_batchnorm(model)
    assert norms(folded) == 0
    assert type(folded) is type(model)
    assert_same(folded, model, torch.randn(2, 3, size, size))


@torch.no_grad()
def test_the_model_itself_is_left_alone_and_the_copy_is_in_eval_mode():
    model = shaken(resnet8(10)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    folded = fold_batchnorm(model)
    assert not any(module.training for module in folded.modules())
    assert all(module.training for module in model.modules())
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@torch.no_grad()
def test_an_extractor_folds_to_an_extractor():
    model = shaken(resnet8(10))
    extractor = feature_extractor(model, "fc")
    folded, images = fold_batchnorm(extractor), torch.randn(2, 3, 8, 8)
    assert norms(folded) == 0
    assert_same(folded, model.features, images)
    folded.conv1.weight.zero_()  # the copy answers for itself, not for the one it was made from
    assert_same(extractor, model.features, images)
    assert (folded(images) - extractor(images)).abs().max() > 1e-2


class Net(nn.Module):
    def __init__(self, forward, *, track=True):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, track_running_stats=track)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


@pytest.mark.parametrize(
    ("forward", "left"),
    [
        (lambda net, x: net.norm(net.conv(x)), 0),
        (lambda net, x: net.norm(input=net.conv(input=x)), 0),
        (lambda net, x: net.conv(net.norm(x)), 1),
        (lambda net, x: net.norm(y := net.conv(x)) + y, 1),
        (lambda net, x: net.norm(net.conv(net.norm(net.conv(x)))), 1),
        (lambda net, x: net.norm(net.conv(x).relu()), 1),
        (lambda net, x: net.norm(net.conv(x)) if x.sum() < 1e9 else x, 1),
        (lambda net, x: net.norm(net.conv(x)) + net.conv.weight.sum(), 1),
        (lambda net, x: net.norm(net.conv(x)) * net.norm.weight.view(3, 1, 1), 1),
        (lambda net, x: net.norm(net.conv(x)) + net.norm.running_mean.view(3, 1, 1), 1),
    ],
    ids=[
        "folds",
        "by keyword",
        "norm first",
        "output used twice",
        "layers used twice",
        "relu between",
        "cannot be traced",
        "weight read beside",
        "scale read beside",
        "statistics read beside",
    ],
)
@torch.no_grad()
def test_only_a_norm_right_after_a_convolution_is_folded(forward, left):
    torch.manual_seed(0)
    model = shaken(Net(forward))
    folded = fold_batchnorm(model)
    assert norms(folded) == left
    assert_same(folded, model, torch.randn(2, 3, 8, 8))


@torch.no_grad()
def test_convolutions_that_make_their_weight_anew_and_norms_of_the_batch_stay():
    normed = shaken(Net(lambda net, x: net.norm(net.conv(x))))
    normed.conv = nn.utils.parametrizations.weight_norm(normed.conv)
    free = Net(lambda net, x: net.norm(net.conv(x)), track=False).eval()
    for model in (normed, free):
        assert norms(fold_batchnorm(model)) == 1
        assert_same(fold_batchnorm(model), model, torch.randn(2, 3, 8, 8))


class Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


@torch.no_grad()
def test_what_a_subclass_or_a_hook_adds_is_not_lost():
    torch.manual_seed(0)
    doubled, hooked, cut, lifted = (Net(lambda net, x: net.norm(net.conv(x))) for _ in range(4))
    doubled.norm = Doubled(3)
    hooked.conv.register_forward_hook(lambda module, given, made: made.relu())
    cut.norm.register_forward_hook(lambda module, given, made: made.relu())
    lifted.norm.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    for model in (doubled, hooked, cut, lifted):
        folded = fold_batchnorm(shaken(model))
        assert norms(folded) == 1
        assert_same(folded, model, torch.randn(2, 3, 8, 8))


@torch.no_grad()
def test_a_layer_under_two_names_is_folded_under_both():
    model = Net(lambda net, x: net.again(net.conv(x)))
    model.again = model.norm
    model = shaken(model)
    folded = fold_batchnorm(model)
    assert norms(folded) == 0
    assert_same(folded, model, torch.randn(2, 3, 8, 8))

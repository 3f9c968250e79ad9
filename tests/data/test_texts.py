"""Texts as a source: what is read, how it becomes token numbers, and what is said about files that cannot be used."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.foreign import birds, write_texts

from srepr.data import load
from srepr.data.about import About
from srepr.data.texts import read_texts
from srepr.data.tokens import PAD, TextExamples, portable
from srepr.errors import InputError

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def about():
    """A network that reads texts by whole words."""
    words = sorted({word for text, _ in birds() for word in text.split()})
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(["?", *words])}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=30)  # as some folders have it; it must not count
    return About(
        network="hf",
        options={},
        class_names=("crow", "owl", "wren"),
        counts=(1, 1, 1),
        shape=(5,),
        mean=(),
        std=(),
        tokenizer=made.to_str(),
    )


@pytest.fixture
def part(tmp_path, about):
    return load(write_texts(tmp_path / "birds.csv")).train.prepared(about)


def test_a_table_and_json_lines_are_the_same_texts(tmp_path):
    table = load(write_texts(tmp_path / "birds.csv"))
    lines = [json.dumps({"label": label, "text": text}) for text, label in birds()]
    (tmp_path / "birds.jsonl").write_text("\n\n".join(lines))
    objects = load(tmp_path / "birds.jsonl")
    assert table.fingerprint() == objects.fingerprint()
    assert table.class_names == ("crow", "owl", "wren")
    assert {name: len(found) for name, found in table.parts.items()} == {"train": 48, "validation": 6, "test": 14}
    assert load(tmp_path / "birds.csv", seed=1).fingerprint() != table.fingerprint()


def test_splits_and_quotes_are_kept(tmp_path):
    rows = ['"one, ""two""\nthree",b,train', "vier fünf,a,train", "sechs,a,test", "sieben,b,val"]
    (tmp_path / "t.csv").write_text("\ufefftext,label,split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    data = load(tmp_path / "t.csv")
    assert data.train.texts == ('one, "two"\nthree', "vier fünf")
    assert (data.validation.texts, data.test.texts) == (("sieben",), ("sechs",))


def test_token_numbers_end_with_padding(part, about):
    ids = part.load(np.arange(3))
    own = tokenizers.Tokenizer.from_str(about.tokenizer)
    own.no_padding()
    for row, text in zip(ids.tolist(), part.texts, strict=False):
        expected = own.encode(text).ids[:5]
        assert row == expected + [PAD] * (ids.shape[1] - len(expected))
    assert part.shape == (5,)
    assert (part.load(np.array([0])) >= 0).all()


def test_a_view_leaves_out_words_and_is_a_function_of_seed_epoch_and_index(part):
    everything = np.arange(len(part))
    plain = part.load(everything)
    views = [part.load(everything, (0, epoch)) for epoch in (3, 3, 4)]
    assert views[0].equal(views[1])
    assert not views[0].equal(views[2])
    alone = part.load(np.array([7]), (0, 3))[0]
    assert alone.tolist() == [number for number in views[0][7].tolist() if number != PAD]
    longer = replace(part, length=50)
    kept = (longer.load(everything, (0, 3)) >= 0).sum() / (longer.load(everything) >= 0).sum()
    assert 0.85 < kept < 0.95
    assert part.load(everything).equal(plain)


def test_unknown_characters_and_single_words_stay_texts(about):
    part = TextExamples(("☃", "wren"), np.array([0, 0]), ("a",)).prepared(about)
    assert part.load(np.arange(2), (0, 0)).shape == (2, 1)


def test_the_tokenizer_counts_for_the_fingerprint(part):
    assert part.fingerprint() != replace(part, length=4).fingerprint()
    assert part.fingerprint() != replace(part, tokenizer=part.tokenizer + " ").fingerprint()


def test_the_portable_tokenizer_cuts_off_and_pads_to_the_longest(about):
    own = tokenizers.Tokenizer.from_str(portable(about.tokenizer, 5))
    long, short = own.encode_batch(["small " * 9, "black"])
    assert (len(long.ids), short.attention_mask) == (5, [1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"text,kind\na,b\n", "has no column 'label'"),
        ("t.csv", b"text,label\na,x\n ,y\n", "line 3: the text is empty"),
        ("t.csv", b"text,label\na\n", "line 2: the label is empty"),
        ("t.csv", b"text,label,split\na,x,dev\n", "line 2: 'dev' is not a split"),
        ("t.csv", b"text,label,split\na,x,train\nb,y,test\n", "class 'y' has no training rows"),
        ("t.csv", "text,label\nfünf,x\n".encode("latin-1"), "t.csv is not UTF-8"),
        ("t.csv", b"text,label\n", "has no training rows"),
        (
            "t.csv",
            b"text;label\na;x\n",
            "has no column 'path' or 'text'. Its columns must be path,label or text,label, wi",
        ),
        ("t.jsonl", b'{"text": "a", "label": "x"}\n{"text": \n', "line 2: no JSON"),
        ("t.jsonl", b'{"text": "a", "label": "x"}\n["b"]\n', "line 2: not an object"),
        ("t.jsonl", b'{"text": 5, "label": "x"}\n', "line 1: the text is not a string"),
        ("t.jsonl", b'{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2: the label is empty"),
        ("t.jsonl", b'{"texts": "a", "label": "x"}\n', "has no column 'text'"),
        ("t.jsonl", b"", "has no training rows"),
        ("t.jsonl", '{"text": "fünf"}'.encode("latin-1"), "is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_of_texts_is_one_line(srepr, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    complaint = srepr("train", tmp_path / name, "--network", "hf:nowhere", "--out", tmp_path / "R").complaint
    assert message in complaint
    assert message in srepr("data", "check", tmp_path / name).complaint


def test_every_line_that_is_wrong_is_listed(srepr, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": 5, "label": "x"}\n{oops\n{"text": "b"}\n')
    answer = srepr("data", "check", tmp_path / "t.jsonl")
    assert "t.jsonl has 3 problems" in answer.complaint
    assert [line.split(":")[0][-6:] for line in answer.out.splitlines()] == ["line 2", "line 3", "line 4"]


def test_a_text_may_be_as_long_as_a_book(tmp_path):
    text = "word, " * 40_000 + "end"
    data = load(write_texts(tmp_path / "books.csv", [(text, "long"), ("a", "short")]))
    assert data.train.texts == (text, "a")


def test_the_suffix_may_be_in_capitals(srepr, tmp_path):
    assert load(write_texts(tmp_path / "BIRDS.CSV")).class_names == ("crow", "owl", "wren")
    assert read_texts(write_texts(tmp_path / "OTHER.CSV")) == read_texts(tmp_path / "BIRDS.CSV")
    (tmp_path / "BIRDS.JSONL").write_text('{"text": "a", "label": "x"}\n{"text": "b"}\n')
    assert "line 2: the label is empty" in srepr("data", "check", tmp_path / "BIRDS.JSONL").complaint


def test_texts_without_a_network_that_reads_them(srepr, tmp_path):
    path = write_texts(tmp_path / "birds.csv")
    assert srepr("data", "check", path).code == 0
    assert "crow" in srepr("data", "show", path).out
    for words in ([], ["--network", "resnet8"], ["--network", "linear"], ["--network", "srepr.models:resnet8"]):
        complaint = srepr("train", path, *words, "--out", tmp_path / "R").complaint
        assert complaint.startswith("birds has texts. Name a --network that reads them: hf:FOLDER")
    assert not (tmp_path / "R").exists()


def test_texts_to_predict(tmp_path):
    (tmp_path / "a.txt").write_text("one text\n\nanother\n")
    (tmp_path / "b.csv").write_text('id,text\n1,"one, text"\n')
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n')
    found = [read_texts(tmp_path / name) for name in ("a.txt", "b.csv", "c.jsonl")]
    assert found == [["one text", "another"], ["one, text"], ["one"]]
    (tmp_path / "b.csv").write_text("id,words\n1,a\n")
    with pytest.raises(InputError, match=r"b\.csv has no column 'text'"):
        read_texts(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"photo\.jpg: this network reads texts"):
        read_texts(tmp_path / "photo.jpg")

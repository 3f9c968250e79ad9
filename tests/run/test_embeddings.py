"""Vectors that are features already: no stage 1, one or several of them for each example."""

import csv
import json

import numpy as np
import pytest

from srepr.cli.train import holds_vectors
from srepr.data import load
from srepr.data.inputs import ExampleInputs
from srepr.errors import InputError
from srepr.storage.files import read_json

NAMES = np.repeat(["wren", "crow", "owl"], [60, 24, 9])
M, L = 4, 6


@pytest.fixture
def vectors(tmp_path):
    """`vectors(several)` writes embeddings [N, L] or [N, M, L] of noisy classes, with names for labels."""

    def write(several: bool):
        chance = np.random.default_rng(0)
        centre = np.searchsorted(np.unique(NAMES), NAMES)[:, None, None] * np.eye(L)[0] * 2.0
        x = (centre + chance.normal(size=(len(NAMES), M, L))).astype(np.float32)
        path = tmp_path / ("several.npz" if several else "one.npz")
        np.savez(path, x=x if several else x.mean(1), y=NAMES)
        return path

    return write


def test_several_vectors_are_views_and_their_mean_is_the_example(vectors):
    part = load(vectors(several=True)).train
    assert (part.shape, part.representations, part.thumbnail(0)) == ((L,), M, None)
    everything = np.arange(len(part))
    scaled = (part.inputs - np.array(part.mean)) / np.array(part.std)
    np.testing.assert_allclose(part.load(everything), scaled.mean(1), atol=1e-5)
    views = [inputs for view in range(1, M + 1) for inputs, _ in ExampleInputs(part, 0).sweep(view)]
    assert len(views) == 2 * M
    found = np.stack([np.concatenate(views[2 * k : 2 * k + 2]) for k in range(M)], 1)
    order = [int(np.abs(scaled - found[:, [k]]).sum((0, 2)).argmin()) for k in range(M)]
    assert sorted(order) == list(range(M))
    np.testing.assert_allclose(found, scaled[:, order], atol=1e-5)


def test_one_vector_for_each_example(srepr, vectors, tmp_path):
    run, path = tmp_path / "run", vectors(several=False)
    assert srepr("train", path, "--network", "linear", "--out", run).code == 0
    assert not (run / "log.jsonl").exists()
    answer = srepr("retrain", run, "--json")
    assert answer.code == 0, answer.err
    chosen = read_json(run / "heads" / "auto.json")["choice"]["candidates"]
    assert {row["method"] for row in chosen} == {"la", "crt"}
    complaint = srepr("retrain", run, "--method", "srepr").complaint
    assert complaint.startswith("srepr needs several representations of each example, and there is one. Give vectors")
    assert {row["label"] for row in csv.DictReader(srepr("predict", run, path).out.splitlines())} == {*NAMES}


def test_several_vectors_let_srepr_be_chosen(srepr, vectors, tmp_path):
    run, path = tmp_path / "run", vectors(several=True)
    assert srepr("train", path, "--network", "linear", "--out", run).code == 0
    assert srepr("retrain", run).code == 0
    note = read_json(run / "heads" / "auto.json")
    assert {row["method"] for row in note["choice"]["candidates"]} == {"la", "crt", "srepr"}
    assert note["settings"]["samples"] == M
    assert srepr("retrain", run, "--method", "srepr", "--samples", 2).code == 0
    assert read_json(run / "heads" / "srepr.json")["settings"]["samples"] == 2
    assert json.loads(srepr("evaluate", run, "--json").out)["auto"]["acc"] > 0.5
    assert len(srepr("predict", run, path).out.splitlines()) == len(NAMES) + 1


def test_several_vectors_train_a_network_as_well(srepr, vectors, tmp_path):
    path = vectors(several=True)
    assert holds_vectors(path)
    assert srepr("train", path, "--epochs", 3, "--out", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((9, 8, 8)), r"float64 \(9, 8, 8\)\. Give images as uint8"),
        (np.full((9, 2, 8), np.nan), "row 0 has a NaN"),
    ],
)
def test_images_that_are_not_uint8_are_no_vectors(tmp_path, x, message):
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(9) % 3)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "x.npz")

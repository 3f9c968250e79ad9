"""The tables as rows: what the paper compares, and that tables can share their work."""

from dataclasses import replace
from pathlib import Path

import pytest

from srepr.config import RECIPES, collect_settings
from srepr.methods import METHODS, Method
from srepr.reproduction.experiments import TABLES
from srepr.reproduction.plan import Experiment, Retraining, Training, plan


def rows(name, source="digits-lt", **changes):
    return {row.name: row for row in TABLES[name].rows(replace(RECIPES[source], baseline=True, **changes))}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("source", RECIPES)
def test_names_and_labels_tell_rows_apart(name, source):
    checkpoints = [Path("ride.pth")] if name == "combine" else []
    found = TABLES[name].rows(RECIPES[source], *checkpoints)
    assert len({row.name for row in found}) == len({row.label for row in found}) == len(found)
    if "many" in TABLES[name].columns:
        assert max(len(row.label) for row in found) <= 26  # what six columns leave of 100 characters


def test_a_run_folder_and_a_head_are_the_same_thing_in_every_table():
    """Whatever order tables are made in, none finds a folder or a head of another: epochs that meet, included."""
    trained, made = {}, {}
    for source, recipe in RECIPES.items():
        for epochs in (1, 2, 4, 5, 8, 9, 10, 16, 18, 20, 30, 40):
            for table in TABLES:
                base = replace(recipe, epochs=epochs, baseline=True)
                for piece in plan(Experiment(table=table, base=base, seeds=2, out=Path("O"))):
                    if isinstance(piece, Training):
                        assert trained.setdefault(piece.run, piece.train) == piece.train
                        assert piece.train.source == source
                    else:
                        assert trained[piece.run] == piece.train
                        for name, how in piece.methods.items():
                            what = (piece.stage1, how, piece.settings, piece.cold)
                            assert made.setdefault((piece.run, name), what) == what


@pytest.mark.parametrize("name", ["swa-crt", "ablation", "main", "full", "cifar", "temperature", "cost"])
def test_one_training_is_enough(name):
    assert len({row.train for row in rows(name).values()}) == 1


def test_the_ablation_is_the_balances_on_sgd_and_swa_step_by_step():
    found = rows("ablation")
    for balance, plain in {"cbs": "crt", "grw": "grw", "la": "la"}.items():
        last = "srepr" if balance == "la" else f"{balance}-distilled"
        steps = [found[f"sgd-{plain}"], found[plain], found[f"{balance}-stochastic"], found[last]]
        assert [step.stage1 for step in steps] == ["sgd", "swa", "swa", "swa"]
        start = "random" if balance == "cbs" else "stage 1"
        stochastic = Method(head="linear", balance=balance, representation="swag")
        assert [step.how for step in steps] == [
            *[Method(head="linear", start=start, balance=balance)] * 2,
            stochastic,
            replace(stochastic, distill=True),
        ]
    assert found["srepr"].how == METHODS["srepr"]


def test_sweeps_change_what_they_say_and_share_the_recipes_own_value():
    assert [row.retrain.temperature for row in rows("temperature").values()] == [1, 2, 5, 10, 20]
    decays = rows("weight-decay", "imagenet-lt")
    assert [row.train.optim.weight_decay for row in decays.values()] == [1e-4, 2e-4, 3e-4, 4e-4, 5e-4]
    assert {row.stage1 for row in decays.values()} == {"sgd"}
    assert decays["weight-decay-0.0003"].train == rows("main", "imagenet-lt")["swa"].train
    rates = rows("swa-lr", "cifar100-lt")
    assert [row.train.optim.swa_lr for row in rates.values()] == [0.1, 0.02, 0.01, 0.005, 0.001]
    assert [row.train.baseline for row in rates.values()] == [True, False, False, False, False]


def test_crt_gets_twice_the_epochs_of_srepr_and_every_time_includes_its_features():
    found = rows("cost", "imagenet-lt")
    assert {name: (row.retrain.epochs, row.retrain.on_the_fly) for name, row in found.items()} == {
        "crt-2x": (20, True),
        "srepr-1x": (10, True),
        "srepr-1x-kept": (10, False),
        "crt-4x": (40, True),
        "srepr-2x": (20, True),
        "srepr-2x-kept": (20, False),
    }
    assert all(row.cold for row in found.values())
    assert not any(row.cold for name in TABLES if name != "cost" for row in rows(name).values())


def test_long_training_is_in_multiples_of_the_recipe_beside_what_the_paper_quotes():
    found = rows("long-training", "imagenet-lt")
    ours = [row.train for row in found.values() if row.train]
    assert [train.epochs for train in ours] == [200, 180, 180, 300, 400]
    assert [train.mixup for train in ours] == [0, 0.2, 0, 0.2, 0.2]
    assert [train.network for train in ours] == ["resnet50", "resnet50", "resnext50", "resnet50", "resnet50"]
    quoted = [name for name, row in found.items() if row.train is None]
    assert quoted == ["kcl", "mislas", "lade", "liu-moco", "liu-moco-rwsam"]


def test_mixup_is_two_by_two():
    found = rows("mixup")
    cells = [(row.train.mixup, row.method, row.train.baseline) for row in found.values()]
    assert cells == [(0, "crt", True), (0.2, "crt", False), (0, "srepr", True), (0.2, "srepr", False)]


def test_a_checkpoint_is_measured_before_and_after_one_collection_for_each_seed():
    base, files = collect_settings(RECIPES["cifar100-lt"]), (Path("RIDE_CMO.pth"), Path("mine.pth"))
    experiment = Experiment(table="combine", base=base, seeds=2, out=Path("O"), checkpoints=files)
    assert [(row.name, row.label, row.paper_name, row.start) for row in experiment.rows] == [
        ("RIDE_CMO", "RIDE_CMO", "ride-cmo", files[0]),
        ("RIDE_CMO+srepr", "  + SWA + SRepr", "ride-cmo+srepr", files[0]),
        ("mine", "mine", "mine", files[1]),
        ("mine+srepr", "  + SWA + SRepr", "mine+srepr", files[1]),
    ]
    pieces = plan(experiment)
    assert [(type(piece), piece.run.name, piece.train.seed, piece.start) for piece in pieces] == [
        (kind, f"{file.stem}-seed{seed}", seed, file)
        for seed in (0, 1)
        for file in files
        for kind in (Training, Retraining)
    ]
    assert all(piece.methods == {"srepr": METHODS["srepr"]} for piece in pieces if isinstance(piece, Retraining))

"""Settings that cannot work are refused where they are made, by the name of the argument."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srepr.config import RECIPES, Data, Machine, Optim, Retrain, Train, collect_settings, settings_for
from srepr.errors import InputError

NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Optim(lr=0), "lr"),
        (lambda: Optim(lr=NAN), "lr"),
        (lambda: Optim(swa_lr=-0.1), "swa_lr"),
        (lambda: Optim(momentum=1.0), "momentum"),
        (lambda: Optim(weight_decay=-1e-4), "weight_decay"),
        (lambda: Optim(warmup_epochs=-1), "warmup_epochs"),
        (lambda: Optim(swa_start=1.0), "swa_start"),
        (lambda: Data(imbalance=0), "imbalance"),
        (lambda: Data(imbalance=1.5), "imbalance"),
        (lambda: Data(counts=(5, 0)), "counts"),
        (lambda: Data(holdout=1.0), "holdout"),
        (lambda: Data(image_size=7), "image_size"),
        (lambda: Machine(devices=0), "devices"),
        (lambda: Machine(num_nodes=0), "num_nodes"),
        (lambda: Machine(workers=-1), "workers"),
        (lambda: Train(source="digits-lt", epochs=0), "epochs"),
        (lambda: Train(source="digits-lt", batch_size=1), "batch_size"),
        (lambda: Train(source="digits-lt", mixup=-1), "mixup"),
        (lambda: Train(source="digits-lt", mixup=NAN), "mixup"),
        (lambda: Train(source="digits-lt", seed=-1), "seed"),
        (lambda: Train(source="digits-lt", seed=2**32), "seed"),
        (lambda: Retrain(epochs=0), "epochs"),
        (lambda: Retrain(lr=0), "lr"),
        (lambda: Retrain(momentum=0), "momentum"),
        (lambda: Retrain(weight_decay=-1), "weight_decay"),
        (lambda: Retrain(batch_size=0), "batch_size"),
        (lambda: Retrain(samples=0), "samples"),
        (lambda: Retrain(views=0), "views"),
        (lambda: Retrain(batchnorm="none"), "batchnorm"),
        (lambda: Retrain(calibration=1), "calibration"),
        (lambda: Retrain(temperature=NAN), "temperature"),
        (lambda: Retrain(distill_weight=1.1), "distill_weight"),
        (lambda: Retrain(rho=-0.5), "rho"),
        (lambda: Retrain(seed=-1), "seed"),
    ],
)
def test_a_setting_that_cannot_work_is_named_as_it_is_in_python(make, name):
    with pytest.raises(InputError, match=f"^`{name}` (is|has) [^`]*$") as complaint:
        make()
    assert "--" not in str(complaint.value)


@given(epochs=st.integers(1, 10_000), start=st.floats(0, 1, exclude_max=True))
def test_at_least_one_epoch_is_captured_and_all_after_the_start(epochs, start):
    settings = Train(source="digits-lt", epochs=epochs, optim=Optim(swa_start=start))
    assert 1 <= (settings.epochs - settings.swa_start) <= epochs
    assert settings.swa_start <= start * epochs


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_for_its_own_source_and_captures_the_last_quarter(name):
    recipe = settings_for(name)
    assert recipe.source == name
    assert recipe.epochs - recipe.swa_start == recipe.epochs // 4


def test_own_data_have_the_defaults():
    assert settings_for("photos") == Train(source="photos")


@given(epochs=st.integers(2, 100))
def test_around_a_trained_network_every_epoch_is_captured_at_the_rate_of_swa(epochs):
    recipe = RECIPES["cifar10-lt"]
    around = collect_settings(replace(recipe, baseline=True), epochs)
    assert (around.epochs - around.swa_start, around.baseline, around.optim.swa_lr) == (
        epochs,
        False,
        recipe.optim.swa_lr,
    )
    assert around.optim.warmup_epochs == 0

"""What a stream leaves open about training is taken from the recipe of its bank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from continual_petl import learn
from continual_petl.banks.choice import BankChoice
from continual_petl.banks.legal import Form
from continual_petl.banks.presets import PRESETS
from continual_petl.banks.recipes import RECIPES, recipe_of
from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.streams_in_code import stream, task


def _resolved(**more: Any) -> dict[str, tuple[float, int]]:
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", **more})
    found = {each.name: spec.resolved_training(each) for each in spec.tasks}
    return {name: (training.learning_rate, training.epochs) for name, training in found.items()}


def _task(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "classification", "data": "x.csv", **more}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_recipe_whatever_its_size(preset: str) -> None:
    assert recipe_of(PRESETS[preset]) == RECIPES[preset]
    (found,) = _resolved(bank=preset, tasks=[_task("a")]).values()
    assert found == (RECIPES[preset].learning_rate, RECIPES[preset].epochs)
    assert set(RECIPES) == set(PRESETS)


@pytest.mark.parametrize(
    ("bank", "like"),
    [
        ({"preset": "houlsby", "bottleneck": 8, "layers": "top-2"}, "houlsby"),
        ({"preset": "houlsby", "activation": "relu", "layernorms": "frozen"}, "houlsby"),
        ({"preset": "lora", "rank": 4, "scale": 3.0}, "lora"),
        ({"preset": "mam", "scale": 2.0}, "prefix_flat"),
        ({"preset": "diff_pruning", "density": 0.1}, "diff_pruning"),
        ({"modifications": [{"form": "additive", "modifies": "weights"}], "layernorms": "own"}, "full"),
        ({"modifications": [{"form": "additive", "modifies": "bias"}], "layernorms": "own"}, "bitfit"),
        ({"modifications": []}, "probe"),
    ],
)
def test_other_banks_are_trained_as_what_they_are_most_like(bank: dict[str, Any], like: str) -> None:
    assert recipe_of(BankChoice.model_validate(bank).resolve()) == RECIPES[like]


def test_every_form_has_a_recipe() -> None:
    forms = {m.form for spec in PRESETS.values() for m in spec.modifications}
    assert forms == set(get_args(Form))


def test_what_is_said_stays_and_null_opens_it_again() -> None:
    tasks = [_task("a"), _task("b", training={"learning_rate": None}), _task("c", bank="lora", training={"epochs": 4})]
    full, lora = RECIPES["full"], RECIPES["lora"]
    assert _resolved(bank="full", training={"learning_rate": 0.5}, tasks=tasks) == {
        "a": (0.5, full.epochs),
        "b": (full.learning_rate, full.epochs),
        "c": (0.5, 4),
    }
    tasks[2]["training"]["learning_rate"] = None
    assert _resolved(bank="full", training={"learning_rate": 0.5}, tasks=tasks)["c"] == (lora.learning_rate, 4)


def test_a_bank_with_the_settings_of_another_has_its_recipe() -> None:
    tasks = [_task("a", bank="bitfit"), _task("b", bank={"start_from": "a"})]
    found = _resolved(bank="full", tasks=tasks)
    assert found["b"] == found["a"] == (RECIPES["bitfit"].learning_rate, RECIPES["bitfit"].epochs)


def test_the_certificate_holds_what_it_was_trained_with(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    training = {"learning_rate": None, "epochs": None, "batch_size": 8, "precision": "fp32"}
    made = stream(backbone_folder("bert"), [task("a")], bank="bitfit", training=training)
    run = learn(made, run_dir=tmp_path / "run")
    then = run.store.manifest("a").training
    assert (then.learning_rate, then.epochs) == (RECIPES["bitfit"].learning_rate, RECIPES["bitfit"].epochs)
    assert made.spec.training.learning_rate is None

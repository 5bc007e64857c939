"""Training settings that a stream does not set come from the bank's recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.forms import FORMS
from continual_petl.banks.config.presets import FUSION, PRESETS, RECIPES, Recipe, recipe_of
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.streams_in_code import stream, task


def _resolved(**more: Any) -> dict[str, tuple[float, int | None]]:
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
    assert set(RECIPES) == {*PRESETS, FUSION}


@pytest.mark.parametrize(
    ("bank", "like"),
    [
        ({"preset": "houlsby", "bottleneck": 8, "layers": "top-2"}, "houlsby"),
        ({"preset": "houlsby", "activation": "relu", "layernorms": "frozen"}, "houlsby"),
        ({"preset": "lora", "rank": 4, "scale": 3.0}, "lora"),
        ({"preset": "mam", "scale": 2.0}, "mam"),
        ({"preset": "diff_pruning", "density": 0.1}, "diff_pruning"),
        ({"modifications": [{"form": "additive", "modifies": "weights"}], "layernorms": "own"}, "full"),
        ({"modifications": [{"form": "additive", "modifies": "bias"}], "layernorms": "own"}, "bitfit"),
        ({"modifications": []}, "probe"),
    ],
)
def test_custom_banks_use_the_recipe_of_the_most_similar_preset(bank: dict[str, Any], like: str) -> None:
    assert recipe_of(BankChoice.model_validate(bank).resolve()) == RECIPES[like]


OTHERS: dict[str, list[Any]] = {
    "bottleneck": [3], "activation": ["silu"], "depth": [2], "input_norm": [True], "scale": [3.0], "init": ["bert", "lora"],
    "output_norm": [True], "mlp_width": [5], "init_scale": [0.5], "dropout": [0.25], "normalised_input": [False],
    "reparametrise": ["none", "mlp", "lstm"],
    "hidden": [24], "implementation": ["gated"], "density": [0.25], "penalty": [1e-3], "layernorms": ["frozen", "own"],
    "layers": ["0", "top-2"], "scope": ["shared"], "start_from": ["other"],
}  # fmt: skip
"""Values to try for every option; `CHANGED` lists those that turn a preset into another one."""
CHANGED = {
    # With these options, a preset equals another one.
    ("prefix", "reparametrise", "none"): "prefix_flat",
    ("prefix_flat", "reparametrise", "mlp"): "prefix",
    # This bank equals no preset, but is trained through an MLP like the preset ``prefix``.
    ("multihead_parallel", "reparametrise", "mlp"): "prefix",
    ("mam", "reparametrise", "none"): "mam_flat",
    ("mam_flat", "reparametrise", "mlp"): "mam",
    ("prompt", "reparametrise", "mlp"): "p_tuning",
    ("prompt", "reparametrise", "lstm"): "p_tuning",
    ("p_tuning", "reparametrise", "none"): "prompt",
    ("layernorm", "layernorms", "frozen"): "probe",
    ("probe", "layernorms", "own"): "layernorm",
    ("full", "layers", "top-2"): "top_layers",
}


def _allowed(preset: str) -> list[dict[str, Any]]:
    """Return each option that a preset allows, with the options it requires."""
    found = []
    for option, values in OTHERS.items():
        for value in values:
            needed = {"init": "houlsby"} if option == "init_scale" else {}
            choice = {"preset": preset, option: value, **needed}
            try:
                BankChoice.model_validate(choice)
            except InputError:
                continue
            found.append(choice)
    return found


def test_every_option_is_covered() -> None:
    named = {name for preset in PRESETS for choice in _allowed(preset) for name in choice}
    # rank and length are aliases of bottleneck; presets do not allow modifications, and only fusion allows fuse.
    assert named == set(BankChoice.model_fields) - {"rank", "length", "modifications", "fuse"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_keeps_its_recipe_whatever_its_options(preset: str) -> None:
    for choice in _allowed(preset):
        changed = next((CHANGED[preset, *item] for item in choice.items() if (preset, *item) in CHANGED), preset)
        recipe = RECIPES[changed]
        tasks = [_task("other", bank="probe"), _task("a", bank=choice)]
        assert _resolved(tasks=tasks)["a"] == (recipe.learning_rate, recipe.epochs), choice


ADAPTER = {"form": "bottleneck", "modifies": "attention", "insertion": "parallel"}
PREFIX = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "length": 4}
LOWRANK = {"form": "lowrank", "modifies": "key", "insertion": "parallel", "rank": 2}
PROMPT = {"form": "prompt", "modifies": "input", "composition": "prepend", "length": 4}


@pytest.mark.parametrize(
    ("modifications", "rate"),
    [
        ([PROMPT, PREFIX, {**ADAPTER, "bottleneck": 4}], 1.5e-3),
        ([PROMPT, {**PREFIX, "reparametrise": "mlp"}], 1e-3),
        ([{**PROMPT, "reparametrise": "lstm"}, LOWRANK], 2e-3),
        ([{"form": "additive", "modifies": "bias"}, {**ADAPTER, "modifies": "ffn", "bottleneck": 4}], 1.5e-3),
    ],
)  # fmt: skip
def test_unmatched_bank_uses_the_smallest_rate_of_its_forms(modifications: list[Any], rate: float) -> None:
    assert recipe_of(
        BankChoice(modifications=tuple(map(Modification.model_validate, modifications))).resolve()
    ) == Recipe(rate, 8)


def test_a_preset_written_out_in_any_order_has_its_recipe() -> None:
    for name, spec in PRESETS.items():
        turned = BankSpec.model_validate(spec.model_dump() | {"modifications": spec.modifications[::-1]})
        assert recipe_of(turned) == RECIPES[name]


def test_every_form_has_a_recipe() -> None:
    assert {form.preset for form in FORMS.values()} <= set(RECIPES)


def test_explicit_values_win_and_null_restores_the_default() -> None:
    tasks = [_task("a"), _task("b", training={"learning_rate": None}), _task("c", bank="lora", training={"epochs": 4})]
    full, lora = RECIPES["full"], RECIPES["lora"]
    assert _resolved(bank="full", training={"learning_rate": 0.5}, tasks=tasks) == {
        "a": (0.5, full.epochs),
        "b": (full.learning_rate, full.epochs),
        "c": (0.5, 4),
    }
    tasks[2]["training"]["learning_rate"] = None
    assert _resolved(bank="full", training={"learning_rate": 0.5}, tasks=tasks)["c"] == (lora.learning_rate, 4)


def test_bank_started_from_another_uses_its_recipe() -> None:
    tasks = [_task("a", bank="bitfit"), _task("b", bank={"start_from": "a"})]
    found = _resolved(bank="full", tasks=tasks)
    assert found["b"] == found["a"] == (RECIPES["bitfit"].learning_rate, RECIPES["bitfit"].epochs)


def test_certificate_records_the_training_settings(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    training = {"learning_rate": None, "epochs": None, "batch_size": 8, "precision": "fp32"}
    made = stream(backbone_folder("bert"), [task("a")], bank="bitfit", training=training)
    run = learn(made, run_dir=tmp_path / "run")
    then = run.store.certificate("a").training
    assert (then.learning_rate, then.epochs) == (RECIPES["bitfit"].learning_rate, RECIPES["bitfit"].epochs)
    assert made.spec.training.learning_rate is None

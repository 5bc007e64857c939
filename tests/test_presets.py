"""Presets are pure data; a stream file selects one by its name or by its dimensions, and invalid banks are refused."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.legal import LEGAL, nearest
from continual_petl.banks.config.presets import PRESETS, preset_of
from continual_petl.banks.config.spec import Modification, select_layers
from continual_petl.errors import InputError


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_written_out_by_its_dimensions_is_the_same_bank(name: str) -> None:
    row = PRESETS[name]
    written = BankChoice.model_validate(row.model_dump())
    assert written.resolve() == row == BankChoice.model_validate(name).resolve()


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_recognised_with_any_sizes_and_layers(name: str) -> None:
    row = PRESETS[name]
    assert preset_of(row) == name
    wider = [m.model_copy(update={"bottleneck": 7} if m.bottleneck else {}) for m in row.modifications]
    assert preset_of(row.model_copy(update={"modifications": tuple(wider), "scope": "shared"})) == name
    assert preset_of(row.model_copy(update={"layers": "top-1" if name == "top_layers" else "0-1"})) == name


@pytest.mark.parametrize("change", [{"activation": "relu"}, {"layernorms": "frozen"}, {"init_scale": 0.5}])
def test_modified_preset_is_not_recognised(change: dict[str, Any]) -> None:
    assert preset_of(BankChoice.model_validate({"preset": "houlsby", **change}).resolve()) is None


@pytest.mark.parametrize(("key", "value"), [("bottleneck", 48), ("rank", 48), ("length", 48)])
def test_size_aliases_are_equivalent(key: str, value: int) -> None:
    bank = BankChoice.model_validate({"preset": "lora", key: value}).resolve()
    assert [m.bottleneck for m in bank.modifications] == [48, 48]


@pytest.mark.parametrize(
    ("choice", "fragments"),
    [
        ("houlsbee", ["unknown preset 'houlsbee'", *PRESETS]),
        ({"preset": "lora", "activation": "relu"}, ["activation has no effect in preset 'lora'"]),
        ({"preset": "probe", "modifications": []}, ["exactly one of the two"]),
        ({"preset": "houlsby", "layers": "5-3"}, ["layers '5-3'", "'6-11'"]),
        ({"preset": "houlsby", "bottleneck": 0}, ["a whole number of at least 1"]),
        ({"preset": "scaled_parallel", "scale": float("nan")}, ["finite"]),
        ({"preset": "houlsby", "botleneck": 3}, ["unknown key 'botleneck' (did you mean 'bottleneck'?)"]),
        ({"modifications": [{"form": "additive", "modifies": "bias", "bottleneck": 3}]}, ["takes no bottleneck"]),
        (
            {"modifications": [{"form": "lowrank", "modifies": "query", "insertion": "parallel"}]},
            ["needs a bottleneck"],
        ),
    ],
)
def test_invalid_bank_error_lists_what_is_allowed(choice: object, fragments: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        BankChoice.model_validate(choice)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_an_illegal_combination_lists_the_nearest_legal_ones() -> None:
    with pytest.raises(InputError) as caught:
        Modification.model_validate(
            {"form": "bottleneck", "modifies": "query", "insertion": "parallel", "bottleneck": 4}
        )
    rows = nearest("bottleneck", "query", "parallel", "add")
    assert [row.form for row in rows] == ["bottleneck", "decomposed", "lowrank"]
    assert all((str(row) in str(caught.value)) == (row in rows) for row in LEGAL)


def test_layer_ranges_are_parsed() -> None:
    assert select_layers("0,2,4-5", 6) == (0, 2, 4, 5)
    with pytest.raises(ValueError, match="has 6 layers, 0 to 5"):
        select_layers("4-6", 6)

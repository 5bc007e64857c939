"""Every choice of the four dimensions is legal or refused with the nearest legal ones; options without effect are refused."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.forms import FORMS, find_form
from continual_petl.banks.config.forms.base import Composition, Insertion, Site
from continual_petl.banks.config.legal import LEGAL, options_of
from continual_petl.banks.config.presets import PRESETS
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError

DIMENSIONS = ("form", "modifies", "insertion", "composition")
ALL = list(product(FORMS, get_args(Site), (*get_args(Insertion), None), get_args(Composition)))
ALLOWED = [
    (row.form, modifies, row.insertion, composition)
    for row in LEGAL
    for modifies in row.modifies
    for composition in row.compositions
]

# For each option, a value that is not its default.
OTHER: dict[str, Any] = {
    "bottleneck": 3,
    "activation": "tanh",
    "depth": 2,
    "input_norm": True,
    "output_norm": True,
    "scale": 2.0,
    "init": "houlsby",
    "init_scale": 0.5,
    "dropout": 0.5,
    "normalised_input": True,
    "reparametrise": "mlp",
    "hidden": 7,
    "mlp_width": 5,
    "implementation": "gated",
    "density": 0.5,
    "penalty": 1.0,
}


# For each option, the other options that it requires.
BESIDE: dict[str, dict[str, Any]] = {
    "init_scale": {"init": "houlsby"},
    "hidden": {"reparametrise": "mlp"},
    "mlp_width": {"reparametrise": "lstm"},
}


def written(choice: tuple[Any, ...], **options: Any) -> dict[str, Any]:
    sized = {"bottleneck": 2} if "bottleneck" in options_of(*choice) else {}
    return dict(zip(DIMENSIONS, choice, strict=True)) | sized | options


def test_legal_combinations_match_the_papers() -> None:
    # He et al. 2022, Table 1, method by method.
    for choice in [
        ("attention", "heads", "parallel", "gated"),  # prefix tuning
        ("bottleneck", "attention", "sequential", "add"),  # Houlsby
        ("bottleneck", "ffn", "sequential", "add"),  # Houlsby, Pfeiffer
        ("lowrank", "query", "parallel", "scaled"),  # LoRA
        ("lowrank", "value", "parallel", "scaled"),
        ("rescale", "key", "sequential", "multiply"),  # IA3, from a later paper
        ("bottleneck", "heads", "parallel", "add"),  # parallel adapter
        ("bottleneck", "ffn", "parallel", "add"),
        ("attention", "heads", "parallel", "add"),  # multi-head parallel adapter
        ("bottleneck", "ffn", "parallel", "scaled"),  # scaled parallel adapter
    ]:
        assert choice in ALLOWED
    assert len(ALLOWED) == len(set(ALLOWED))
    assert set(ALLOWED) <= set(ALL)


def test_illegal_combination_is_refused_with_nearest_legal_ones() -> None:
    refused = [choice for choice in ALL if choice not in ALLOWED]
    assert len(refused) == len(ALL) - len(ALLOWED)
    for choice in refused:
        with pytest.raises(InputError) as caught:
            Modification.model_validate(dict(zip(DIMENSIONS, choice, strict=True)) | {"bottleneck": 2})
        problem = str(caught.value)
        assert f"no method has {choice[0]} on {choice[1]}, insertion {choice[2]}" in problem
        agree = {
            row: sum((choice[0] == row.form, choice[1] in row.modifies, choice[2] == row.insertion))
            + (choice[3] in row.compositions)
            for row in LEGAL
        }
        own = {row: number for row, number in agree.items() if row.form == choice[0]}
        named = [row for row in LEGAL if agree[row] == max((own if row in own else agree).values())]
        listed = "; ".join(map(str, named))
        assert problem.endswith(f"nearest are {listed}; docs/methods.md lists all {len(LEGAL)}")
        assert named


@pytest.mark.parametrize("choice", ALLOWED, ids=lambda c: "-".join(map(str, c)))
def test_option_is_accepted_only_where_it_has_an_effect(choice: tuple[Any, ...]) -> None:
    taken = options_of(*choice)
    plain = Modification.model_validate(written(choice))
    assert plain.options == taken - find_form(choice[0]).idle(plain.reparametrise, plain.init)
    for name, value in OTHER.items():
        if name in taken:
            prompt = {"reparametrise": "mlp"} if (choice[0], name) == ("prompt", "depth") else {}
            changed = Modification.model_validate(written(choice, **BESIDE.get(name, prompt), **{name: value}))
            assert changed != plain
            assert getattr(changed, name) == value
        else:
            with pytest.raises(InputError, match=name):
                Modification.model_validate(written(choice, **{name: value}))


@pytest.mark.parametrize(
    ("choice", "options", "fragment"),
    [
        (
            ("lowrank", "query", "parallel", "add"),
            {"init_scale": 0.5},
            "init_scale 0.5 has no effect.*without init: houlsby",
        ),
        (
            ("prompt", "input", None, "prepend"),
            {"hidden": 7},
            "hidden 7 has no effect.*without reparametrise: mlp or lstm",
        ),
        (
            ("prompt", "input", None, "prepend"),
            {"depth": 2},
            "depth 2 has no effect.*without reparametrise: mlp or lstm",
        ),
        (
            ("prompt", "input", None, "prepend"),
            {"reparametrise": "mlp", "mlp_width": 7},
            "mlp_width 7 has no effect.*without reparametrise: lstm",
        ),
        (
            ("attention", "heads", "parallel", "gated"),
            {"reparametrise": "mlp", "init": "houlsby"},
            "init houlsby has no effect.*without reparametrise: none",
        ),
    ],
)
def test_option_without_its_prerequisite_is_refused(
    choice: tuple[Any, ...], options: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(InputError, match=fragment):
        Modification.model_validate(written(choice, **options))


def test_new_options_do_not_change_old_specification_digests() -> None:
    later = {"output_norm", "mlp_width"}
    for spec in PRESETS.values():
        assert all(not later & row.keys() for row in spec.model_dump(mode="json")["modifications"])
    said = BankChoice.model_validate({"preset": "p_tuning", "mlp_width": 9}).resolve()
    assert said.model_dump()["modifications"][0]["mlp_width"] == 9
    assert BankSpec.model_validate_json(said.model_dump_json()) == said


def test_unused_preset_values_are_dropped_after_an_override() -> None:
    plain = BankChoice.model_validate({"preset": "p_tuning", "reparametrise": "none"}).resolve()
    assert plain == PRESETS["prompt"]
    assert BankChoice.model_validate({"preset": "prefix", "reparametrise": "none"}).resolve() == PRESETS["prefix_flat"]
    with pytest.raises(InputError, match="hidden has no effect in preset 'prefix' without reparametrise"):
        BankChoice.model_validate({"preset": "prefix", "reparametrise": "none", "hidden": 9})


def test_every_option_has_an_effect_somewhere() -> None:
    everywhere = {name for choice in ALLOWED for name in options_of(*choice)}
    assert everywhere == set(OTHER) == set(Modification.model_fields) - set(DIMENSIONS)


@pytest.mark.parametrize("choice", ALLOWED, ids=lambda c: "-".join(map(str, c)))
def test_specification_roundtrips(choice: tuple[Any, ...]) -> None:
    modification = Modification.model_validate(written(choice))
    assert Modification.model_validate(modification.model_dump()) == modification
    assert Modification.model_validate_json(modification.model_dump_json()) == modification


@pytest.mark.parametrize("choice", [c for c in ALLOWED if "bottleneck" in options_of(*c)], ids=str)
def test_size_is_required_where_it_has_an_effect(choice: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="needs a bottleneck size"):
        Modification.model_validate(dict(zip(DIMENSIONS, choice, strict=True)))


@pytest.mark.parametrize("choice", [c for c in ALLOWED if c[3] in ("gated", "prepend")], ids=str)
def test_identity_initialisation_is_refused_where_impossible(choice: tuple[Any, ...]) -> None:
    assert Modification.model_validate(written(choice)).init == "bert"
    with pytest.raises(InputError, match="never the identity"):
        Modification.model_validate(written(choice, init="lora"))


PROMPT = written(("prompt", "input", None, "prepend"))
SPARSE = written(("sparse", "weights", None, "add"))
BIASES = written(("additive", "bias", None, "add"))


@pytest.mark.parametrize(
    ("bank", "fragment"),
    [
        ({"modifications": [PROMPT, PROMPT]}, "can have only one prompt"),
        ({"modifications": [SPARSE, SPARSE]}, "covers every parameter"),
        ({"modifications": [SPARSE, BIASES]}, "covers every parameter"),
        ({"modifications": [SPARSE], "layernorms": "own"}, "covers every parameter"),
        ({"modifications": [SPARSE], "scope": "shared"}, "sparse with these options is folded"),
        ({"modifications": [PROMPT | {"reparametrise": "lstm"}], "scope": "shared"}, "prompt with these options"),
        ({"modifications": [written(ALLOWED[0], reparametrise="lstm")]}, "no effect"),
        (
            {"modifications": [written(("attention", "heads", "parallel", "gated"), reparametrise="lstm")]},
            "for prompts",
        ),
    ],
)
def test_conflicting_modifications_are_refused(bank: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        BankSpec.model_validate(bank)

"""An option without effect is an error, even if only another option disables it."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.banks.config.choice import BankChoice
from continual_petl.errors import InputError

PREFIX = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "length": 3}
LORA = {"form": "lowrank", "modifies": "query", "insertion": "parallel", "rank": 4}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"preset": "lora", "init_scale": 0.5}, "init_scale has no effect in preset 'lora' without init: houlsby"),
        (
            {"preset": "houlsby", "init": "lora", "init_scale": 0.5},
            "init_scale has no effect in preset 'houlsby' without",
        ),
        ({"preset": "prefix_flat", "hidden": 9}, "hidden has no effect in preset 'prefix_flat' without reparam"),
        ({"preset": "prefix", "reparametrise": "none", "hidden": 9}, "hidden has no effect in preset 'prefix'"),
        ({"preset": "prompt", "hidden": 9}, "hidden has no effect in preset 'prompt'"),
        ({"preset": "prefix", "init": "houlsby"}, "init has no effect in preset 'prefix' without reparametrise: none"),
        ({"preset": "bitfit", "init": "bert"}, "init has no effect in preset 'bitfit': remove it"),
        ({"modifications": [{**PREFIX, "hidden": 9}]}, "hidden 9 has no effect on attention on heads"),
        ({"modifications": [{**LORA, "init_scale": 0.5}]}, "init_scale 0.5 has no effect on lowrank on query"),
        ({"modifications": [{**PREFIX, "reparametrise": "mlp", "init": "houlsby"}]}, "init houlsby has no effect on"),
        (
            {"modifications": [{"form": "additive", "modifies": "bias", "init": "bert"}]},
            "init bert has no effect on additive on bias, insertion None, composition add; options with an effect: none",
        ),
        (
            {"preset": "prompt", "layers": "top-1"},
            "layers top-1 has no effect, since no part of this bank is in a layer",
        ),
        ({"preset": "probe", "layers": 0}, "layers 0 has no effect, since no part of this bank is in a layer"),
    ],
)
def test_option_without_effect_is_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        BankChoice.model_validate(choice)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"preset": "prefix", "reparametrise": "none", "length": 30}, "prefix_flat"),
        ({"preset": "houlsby", "init_scale": 0.01}, "houlsby"),
        ({"preset": "prefix_flat", "reparametrise": "mlp", "hidden": 800}, "prefix"),
    ],
)
def test_override_that_disables_an_option_drops_its_value(choice: dict[str, Any], expected: str) -> None:
    assert BankChoice.model_validate(choice).resolve() == BankChoice.model_validate(expected).resolve()


def test_mlp_prefix_does_not_claim_identity_initialisation() -> None:
    spec = BankChoice.model_validate({"preset": "multihead_parallel", "reparametrise": "mlp"}).resolve()
    assert spec.modifications[0].init == "bert"

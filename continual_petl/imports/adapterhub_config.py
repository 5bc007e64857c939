"""The configuration of an adapter of `adapters` 1.3: options that a bank can express, and those refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.banks.config.spec import Activation
from continual_petl.errors import InputError
from continual_petl.export.adapterhub import ACTIVATIONS

_Text = Annotated[str, Field(max_length=1000)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Layers = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(max_length=10_000)]
_Flag = Annotated[bool, Field(strict=True)]


class HubConfig(FrozenModel):
    """The outer options of an adapter."""

    config: dict[str, Any]
    model_type: _Text
    name: Annotated[str, Field(min_length=1, max_length=200)]
    model_name: _Text | None = None
    hidden_size: int | None = None
    model_class: _Text | None = None
    version: _Text | None = None


class BottleneckConfig(FrozenModel):
    """The options of bottlenecks, with the defaults of `BnConfig`; others are refused if they are on."""

    mh_adapter: _Flag
    output_adapter: _Flag
    reduction_factor: _Positive
    non_linearity: _Text
    cross_adapter: _Flag = False
    is_parallel: _Flag = False
    scaling: _Number = 1.0
    original_ln_before: _Flag = False
    original_ln_after: Literal[True] = True
    residual_before_ln: Literal[True] = True
    leave_out: _Layers = ()

    @property
    def activation(self) -> Activation | None:
        """The non-linearity under its name in a bank; None if a bank has no equivalent."""
        known: Any = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"silu": "silu"}
        found: Activation | None = known.get(self.non_linearity.lower())
        return found


class LoraConfig(FrozenModel):
    """The options of LoRA, with the defaults of `LoRAConfig`."""

    architecture: Literal["lora"]
    r: Annotated[int, Field(strict=True, ge=1, le=2**20)]
    alpha: _Number
    selfattn_lora: _Flag = True
    intermediate_lora: _Flag = False
    output_lora: _Flag = False
    attn_matrices: Annotated[tuple[Literal["q", "k", "v"], ...], Field(max_length=3)] = ("q", "v")
    composition_mode: Literal["add"] = "add"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    leave_out: _Layers = ()


_WITHOUT_EFFECT = {
    *("init_weights", "init_weights_seed", "dropout", "stochastic_depth", "inv_adapter_reduction_factor", "dtype"),
    *("phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "factorized_phm_rule", "phm_c_init"),
    *("phm_init_range", "learn_phm", "hypercomplex_nonlinearity", "phm_rank", "phm_bias"),
}
"""Options that do not change what a saved adapter computes, or do so only together with one that is refused (phm_layer)."""


def read_hub_config(whole: Mapping[str, Any]) -> tuple[HubConfig, BottleneckConfig | LoraConfig]:
    """Return the options of an adapter.

    Raises:
        InputError: if a value is not allowed, or an option is on that a bank cannot express.
    """
    outer = _read(HubConfig, whole, set())
    kind = outer.config.get("architecture")
    if kind not in (None, "lora"):
        raise InputError(
            f"adapter_config.json: key config.architecture: got {repr(kind)[:200]}, but only bottlenecks and lora can "
            "be imported."
        )
    return outer, _read(
        BottleneckConfig if kind is None else LoraConfig, outer.config, _WITHOUT_EFFECT | {"architecture"}
    )


def _read(cls: type[Any], content: Mapping[str, Any], passive: set[str]) -> Any:
    known = cls.model_fields
    for key, value in content.items():
        if key not in known and key not in passive and value not in (None, False, "", 0, [], {}):
            raise InputError(
                f"adapter_config.json: key {key[:200]}: got {repr(value)[:200]}, but it changes what the adapter computes, "
                "or is unknown."
            )
    try:
        return cls.model_validate({key: value for key, value in content.items() if key in known})
    except ValidationError as error:
        first = error.errors()[0]
        where, got = ".".join(map(str, first["loc"]))[:200], repr(first.get("input"))[:200]
        raise InputError(
            f"adapter_config.json: key {where}: got {got}: {first['msg']}; a bank has no such option."
        ) from error

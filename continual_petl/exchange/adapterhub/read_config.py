"""The configuration of an adapter of `adapters` 1.3: the options that a bank can express; others are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from continual_petl._strict_model import StrictModel
from continual_petl.banks.config.spec import Activation
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.bottleneck import ACTIVATIONS

_Text = Annotated[str, Field(max_length=1000)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Layers = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(max_length=10_000)]
_Flag = Annotated[bool, Field(strict=True)]


class HubConfig(StrictModel):
    """The outer options of an adapter."""

    config: dict[str, Any]
    model_type: _Text
    name: Annotated[str, Field(min_length=1, max_length=200)]
    model_name: _Text | None = None
    hidden_size: int | None = None
    model_class: _Text | None = None
    version: _Text | None = None


class BottleneckConfig(StrictModel):
    """The options of bottlenecks, with the defaults of `BnConfig`; other options are refused if they are set."""

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
        name: Activation | None = known.get(self.non_linearity.lower())
        return name


class LoraConfig(StrictModel):
    """The options of LoRA and IA3, with the defaults of `LoRAConfig`."""

    architecture: Literal["lora"]
    r: Annotated[int, Field(strict=True, ge=1, le=2**20)]
    alpha: _Number
    selfattn_lora: _Flag = True
    intermediate_lora: _Flag = False
    output_lora: _Flag = False
    attn_matrices: Annotated[tuple[Literal["q", "k", "v"], ...], Field(max_length=3)] = ("q", "v")
    composition_mode: Literal["add", "scale"] = "add"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    leave_out: _Layers = ()

    @model_validator(mode="after")
    def _scale(self) -> LoraConfig:
        # In a fused module of queries, keys and values, `adapters` multiplies all three by alpha.
        if self.composition_mode == "scale" and (self.r, self.alpha, self.dropout) != (1, 1.0, 0.0):
            raise ValueError(
                f"composition_mode scale needs r 1, alpha 1 and no dropout; got r {self.r}, alpha {self.alpha}"
            )
        return self


class PrefixConfig(StrictModel):
    """The options of prefixes, with the defaults of `PrefixTuningConfig`."""

    architecture: Literal["prefix_tuning"]
    prefix_length: Annotated[int, Field(strict=True, ge=1, le=2**20)]
    flat: _Flag = False
    encoder_prefix: _Flag = True
    cross_prefix: _Flag = True
    non_linearity: _Text = "tanh"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    leave_out: _Layers = ()


MethodConfig = BottleneckConfig | LoraConfig | PrefixConfig
_CLASSES: Mapping[str | None, type[BottleneckConfig] | type[LoraConfig] | type[PrefixConfig]] = {
    None: BottleneckConfig,
    "lora": LoraConfig,
    "prefix_tuning": PrefixConfig,
}
_MAX_METHODS = 8
_WITHOUT_EFFECT = {
    *("init_weights", "init_weights_seed", "dropout", "stochastic_depth", "inv_adapter_reduction_factor", "dtype"),
    *("phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "factorized_phm_rule", "phm_c_init"),
    *("phm_init_range", "learn_phm", "hypercomplex_nonlinearity", "phm_rank", "phm_bias"),
    *("bottleneck_size", "shared_gating"),
}
"""Options that do not change what a saved adapter computes (a prefix's bottleneck_size follows from its tensors), or
that do so only together with an option that is refused (phm_layer, use_gating)."""


def read_hub_config(whole: Mapping[str, Any]) -> tuple[HubConfig, list[MethodConfig]]:
    """Return the options of an adapter and of its methods.

    Raises:
        InputError: if a value is not allowed, or an option is set that a bank cannot express.
    """
    outer: HubConfig = _read(HubConfig, whole, set())
    if outer.config.get("architecture") != "union":
        return outer, [_method(outer.config)]
    inner = outer.config.get("configs")
    if (
        not isinstance(inner, list)
        or not 1 <= len(inner) <= _MAX_METHODS
        or not all(isinstance(c, dict) for c in inner)
    ):
        raise InputError(
            f"adapter_config.json: key config.configs: got {repr(inner)[:200]}; expected a list of 1 to {_MAX_METHODS} "
            "configurations."
        )
    methods = [_method(config) for config in inner]
    lora = [method for method in methods if isinstance(method, LoraConfig)]
    prefixes = [method for method in methods if isinstance(method, PrefixConfig)]
    if len({method.leave_out for method in methods}) > 1 or len(lora) > 1 or len(prefixes) > 1:
        raise InputError(
            "adapter_config.json: key config.configs: its methods must have the same layers "
            "(leave_out), since a bank has one set of layers, and it may have LoRA and prefixes only once each."
        )
    return outer, methods


def _method(config: Mapping[str, Any]) -> MethodConfig:
    kind = config.get("architecture")
    cls = _CLASSES.get(kind) if kind is None or isinstance(kind, str) else None
    if cls is None:
        raise InputError(
            f"adapter_config.json: key config.architecture: got {repr(kind)[:200]}, but only bottlenecks, lora, "
            "prefix_tuning and unions of these can be imported."
        )
    method_config: MethodConfig = _read(cls, config, _WITHOUT_EFFECT | {"architecture"})
    return method_config


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
        where, got = ".".join(map(str, first["loc"]))[:200] or "config", repr(first.get("input"))[:200]
        raise InputError(
            f"adapter_config.json: key {where}: got {got}: {first['msg']}; a bank has no such option."
        ) from error

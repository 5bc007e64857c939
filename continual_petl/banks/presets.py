"""The papers' methods as rows of data (He et al. 2022, Table 1; Houlsby et al. 2019, section 2).

A preset is nothing but a named `BankSpec`; whatever a row says can be written out in a stream file by its dimensions.
This file never imports torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationInfo, field_validator, model_validator

from continual_petl._frozen import FrozenModel
from continual_petl.banks.spec import Activation, BankSpec, Init, Layers, Modification

_SEQUENTIAL = {"form": "bottleneck", "insertion": "sequential", "composition": "add", "bottleneck": 64}
_PARALLEL = {"form": "bottleneck", "insertion": "parallel", "modifies": "ffn", "bottleneck": 64, "activation": "relu"}
_LOWRANK = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "bottleneck": 8}
_HOULSBY = {**_SEQUENTIAL, "activation": "gelu_tanh", "init": "houlsby", "init_scale": 1e-2}

PRESETS: dict[str, BankSpec] = {
    name: BankSpec.model_validate(row)
    for name, row in {
        # Houlsby et al. 2019, section 2.1: two adapters a layer, each before its residual; LayerNorms per task.
        "houlsby": {
            "modifications": ({**_HOULSBY, "modifies": "attention"}, {**_HOULSBY, "modifies": "ffn"}),
            "layernorms": "own",
        },
        # Pfeiffer et al. 2021: one adapter a layer, reading the normalised output of the FFN sub-layer.
        "pfeiffer": {
            "modifications": (
                {**_SEQUENTIAL, "modifies": "ffn", "activation": "relu", "init": "bert", "normalised_input": True},
            )
        },
        # He et al. 2022, PA and Scaled PA on the FFN; s = 4 as in section 4.5.
        "parallel": {"modifications": ({**_PARALLEL, "init": "bert", "composition": "add"},)},
        "scaled_parallel": {"modifications": ({**_PARALLEL, "init": "lora", "composition": "scaled", "scale": 4.0},)},
        # Hu et al. 2022, on queries and values.
        "lora": {"modifications": ({**_LOWRANK, "modifies": "query"}, {**_LOWRANK, "modifies": "value"})},
        # Houlsby et al. 2019, section 3.4: only the LayerNorms are trained.
        "layernorm": {"layernorms": "own"},
        # Ben-Zaken et al. 2022: every bias of the encoder, those of the LayerNorms included.
        "bitfit": {"modifications": ({"form": "additive", "modifies": "bias"},)},
        # Feature-based transfer: nothing but the head.
        "probe": {},
        # Full fine-tuning: a copy of every parameter.
        "full": {"modifications": ({"form": "additive", "modifies": "weights"},)},
    }.items()
}


def _known(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: known are {', '.join(PRESETS)}; or write the modifications out")
    return name


class BankChoice(FrozenModel):
    """What a stream file says under ``bank``: a preset with changes, or the dimensions written out.

    A bare name, ``bank: houlsby``, means ``{preset: houlsby}``. Sizes and options beside a preset replace those of
    every modification in its row; an option that the row has no use for is an error.
    """

    preset: str | None = None
    """One of the presets."""
    modifications: tuple[Modification, ...] | None = None
    """The dimensions, written out; not together with a preset."""
    bottleneck: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("bottleneck", "rank", "length"))
    """Size of every form in the preset."""
    activation: Activation | None = None
    """Non-linearity of every bottleneck in the preset."""
    scale: float | None = None
    """The s of every scaled composition in the preset."""
    init: Init | None = None
    """Initialisation of every modification in the preset."""
    init_scale: float | None = Field(default=None, gt=0)
    """Sigma of init: houlsby."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout inside every modification of the preset."""
    layernorms: Literal["frozen", "own"] | None = None
    """own: the bank gets its own copies of the LayerNorms."""
    layers: Layers | None = None
    """all, 6, 6-11 or 0,2,4-5; counted from 0."""
    scope: Literal["task", "shared"] | None = None
    """task: a fresh bank for every task (default). shared: one bank for all tasks."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"preset": value} if isinstance(value, str) else value

    @field_validator("preset")
    @classmethod
    def _preset_exists(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else _known(value)

    @model_validator(mode="after")
    def _resolvable(self) -> BankChoice:
        self.resolve()
        return self

    def resolve(self) -> BankSpec:
        """Return the bank in full, or raise `ValueError` saying which option does not fit."""
        if (self.preset is None) == (self.modifications is None):
            raise ValueError("a bank is either a preset or a list of modifications, so give exactly one of the two")
        options = self.model_dump(
            include={"bottleneck", "activation", "scale", "init", "init_scale", "dropout"}, exclude_none=True
        )
        whole = self.model_dump(include={"layernorms", "layers", "scope"}, exclude_none=True)
        if self.modifications is not None:
            if options:
                raise ValueError(f"{', '.join(options)} belongs inside each modification when they are written out")
            return BankSpec(modifications=self.modifications, **whole)
        assert self.preset is not None
        row = PRESETS[_known(self.preset)]
        for key in options:
            if not any(key in _options_of(modification) for modification in row.modifications):
                raise ValueError(f"{key} has no effect in preset {self.preset!r}: remove it, or choose another preset")
        rows = [
            Modification.model_validate(
                modification.model_dump() | {k: v for k, v in options.items() if k in _options_of(modification)}
            )
            for modification in row.modifications
        ]
        return BankSpec.model_validate(row.model_dump() | {"modifications": rows} | whole)


def _options_of(modification: Modification) -> frozenset[str]:
    """Which options change what this modification computes."""
    if modification.form == "additive":
        return frozenset()
    options = {"bottleneck", "init", "dropout"}
    if modification.form == "bottleneck":
        options |= {"activation", "init_scale"}
    if modification.composition == "scaled":
        options.add("scale")
    return frozenset(options)

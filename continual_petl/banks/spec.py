"""The four dimensions of a modification (He et al. 2022, https://arxiv.org/abs/2110.04366, section 3.2 and Table 1).

A bank is a set of modifications. Each is one choice per dimension: functional form, modified representation, insertion,
composition. `LEGAL` lists which choices go together; anything else is refused with that list. This file is data and
validation only and never imports torch, so that a stream file is checked before anything heavy loads.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from continual_petl._frozen import FrozenModel

Form = Literal["bottleneck", "lowrank", "additive"]
Site = Literal["attention", "ffn", "query", "key", "value", "attention_out", "ffn_in", "ffn_out", "bias", "weights"]
Insertion = Literal["sequential", "parallel"]
Composition = Literal["add", "scaled"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Init = Literal["houlsby", "lora", "bert"]


class Combination(NamedTuple):
    """One legal row: a form, where it may act, how it is inserted, how it may be composed."""

    form: Form
    modifies: tuple[Site, ...]
    insertion: Insertion | None
    compositions: tuple[Composition, ...]

    def __str__(self) -> str:
        insertion = f", insertion: {self.insertion}" if self.insertion else ""
        composition = f", composition: {' | '.join(self.compositions)}"
        return f"{{form: {self.form}, modifies: {' | '.join(self.modifies)}{insertion}{composition}}}"


LEGAL: tuple[Combination, ...] = (
    Combination("bottleneck", ("attention", "ffn"), "sequential", ("add", "scaled")),
    Combination("bottleneck", ("ffn",), "parallel", ("add", "scaled")),
    Combination(
        "lowrank", ("query", "key", "value", "attention_out", "ffn_in", "ffn_out"), "parallel", ("add", "scaled")
    ),
    Combination("additive", ("bias", "weights"), None, ("add",)),
)

_LAYER_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def _layers(value: Any) -> Any:
    """Accept ``6``, ``"6-11"`` and ``"0,2,4-5"`` beside ``"all"``; leave the rest to pydantic."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    text = str(value).replace(" ", "")
    if text == "all":
        return text
    for part in text.split(","):
        match = _LAYER_RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"layers {value!r} is not a layer range: write 'all', '6', '6-11' or '0,2,4-5'")
    return text


Layers = Annotated[str, BeforeValidator(_layers)]


def select_layers(layers: str, num_layers: int) -> tuple[int, ...]:
    """Return the layer numbers, counted from 0, that a range names.

    Raises:
        ValueError: if a number is outside the model.

    Example:
        >>> select_layers("4-5", 6), select_layers("all", 2)
        ((4, 5), (0, 1))
    """
    if layers == "all":
        return tuple(range(num_layers))
    chosen: set[int] = set()
    for part in layers.split(","):
        match = _LAYER_RANGE.fullmatch(part)
        assert match is not None, "validated by _layers"
        chosen.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if max(chosen) >= num_layers:
        raise ValueError(
            f"layers {layers!r} names layer {max(chosen)}, but this backbone has {num_layers} layers, "
            f"0 to {num_layers - 1}: choose a range inside that, or 'all'"
        )
    return tuple(sorted(chosen))


class Modification(FrozenModel):
    """One change at one kind of site, in every layer of the range."""

    form: Form
    """Functional form: bottleneck with a non-linearity, low-rank, or a difference added to existing parameters."""
    modifies: Site
    """Modified representation: output of a sub-layer (attention, ffn), of one projection, or existing parameters."""
    insertion: Insertion | None = None
    """Sequential reads the representation that it modifies; parallel reads the input of the sub-layer or projection."""
    composition: Composition = "add"
    """h + delta, or h + scale * delta."""
    bottleneck: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("bottleneck", "rank", "length"))
    """The one size of every form; required except for additive."""
    activation: Activation = "relu"
    """Non-linearity of a bottleneck; gelu_tanh is the one of Houlsby's code."""
    scale: float = 1.0
    """The s of a scaled composition."""
    init: Init = "lora"
    """lora: zero up-projection, exactly the identity; houlsby: normal cut at two sigma; bert: normal of 0.02."""
    init_scale: float = Field(default=1e-2, gt=0)
    """Sigma of init: houlsby."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Bottleneck: on the bottleneck's activation. Low-rank: on its input."""
    normalised_input: bool = False
    """Sequential ffn only: read the sub-layer's output after the residual and its LayerNorm (Pfeiffer et al. 2021)."""

    @model_validator(mode="after")
    def _legal(self) -> Modification:
        rows = [row for row in LEGAL if row.form == self.form and self.modifies in row.modifies]
        if not any(row.insertion == self.insertion and self.composition in row.compositions for row in rows):
            came = f"{self.form} on {self.modifies}, insertion {self.insertion}, composition {self.composition}"
            raise ValueError(f"no method has {came}: legal are " + "; ".join(map(str, LEGAL)))
        if (self.bottleneck is None) != (self.form == "additive"):
            what = "takes no bottleneck" if self.form == "additive" else "needs a bottleneck size"
            raise ValueError(f"form {self.form} {what}, got {self.bottleneck}")
        if self.scale != 1.0 and self.composition != "scaled":
            raise ValueError(f"scale {self.scale} has no effect with composition {self.composition}: write scaled")
        if self.normalised_input and (self.form, self.modifies, self.insertion) != ("bottleneck", "ffn", "sequential"):
            raise ValueError("normalised_input is only for {form: bottleneck, modifies: ffn, insertion: sequential}")
        return self


class BankSpec(FrozenModel):
    """All that a task adds to the backbone, except its head."""

    modifications: tuple[Modification, ...] = ()
    """Empty with frozen LayerNorms: a linear probe on frozen features."""
    layernorms: Literal["frozen", "own"] = "frozen"
    """own: a copy per task of every LayerNorm in the layer range (with the embedding's where layer 0 is in it)."""
    layers: Layers = "all"
    """all, 6, 6-11 or 0,2,4-5; counted from 0."""
    scope: Literal["task", "shared"] = "task"
    """task: a fresh bank for every task. shared: one bank goes on through all tasks (the forgetting baseline)."""

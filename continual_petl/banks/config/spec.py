"""The four dimensions of a modification (He et al. 2022, https://arxiv.org/abs/2110.04366, section 3.2 and Table 1).

A bank is a set of modifications. Each is one choice per dimension: functional form, modified representation, insertion,
composition. `legal`, next to this file, lists which choices and options go together; anything else is refused with an
error that lists the alternatives. This file contains only data and validation and never imports torch, so that a stream file
is checked before anything heavy loads.

Layers are written ``all``, ``6``, ``6-11``, ``0,2,4-5``, or ``top-3``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from continual_petl._strict_model import AS_LIST, AS_TEXT, UserSpec
from continual_petl.banks.config.forms import FormName, find_form, form_names
from continual_petl.banks.config.forms.base import Composition, FormConfig, Insertion, Site
from continual_petl.banks.config.legal import LEGAL, NEEDS, nearest

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_TOP = re.compile(r"top-([1-9][0-9]{0,8})")
MAX_LENGTH = 1000
"""Maximum number of characters of a layer range."""


def _layers(value: Any) -> Any:
    """Accept ``6``, ``"6-11"``, ``"0,2,4-5"``, ``"top-3"`` and ``"all"``; values of other types are left to pydantic."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    if (isinstance(value, int) and abs(value) >= 10**9) or (isinstance(value, str) and len(value) > MAX_LENGTH):
        raise ValueError(f"a layer range has at most {MAX_LENGTH} characters, and a layer number at most 9 digits")
    text = str(value).replace(" ", "")
    if text == "all" or _TOP.fullmatch(text):
        return text
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"layers {value!r} is not a layer range: write 'all', '6', '6-11', '0,2,4-5' or 'top-3'")
    return text


Layers = Annotated[str, BeforeValidator(_layers)]


def select_layers(layers: str, num_layers: int) -> tuple[int, ...]:
    """Return the layer numbers (0-based) in a range.

    Raises:
        ValueError: if the model has no such layer.

    Example:
        >>> select_layers("4-5", 6), select_layers("all", 2), select_layers("top-2", 6)
        ((4, 5), (0, 1), (4, 5))
    """
    if layers == "all":
        return tuple(range(num_layers))
    if top := _TOP.fullmatch(layers):
        ranges = [(num_layers - int(top[1]), num_layers - 1)]
        outside = "" if ranges[0][0] >= 0 else f"the {top[1]} highest layers"
    else:
        matches = [match for part in layers.split(",") if (match := _RANGE.fullmatch(part))]
        ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches]
        highest = max(last for _, last in ranges)
        outside = "" if highest < num_layers else f"layer {highest}"
    if outside:
        raise ValueError(
            f"layers {layers!r} names {outside}, but this backbone has {num_layers} layers, 0 to {num_layers - 1}: choose a "
            "range within these, or 'all'"
        )
    # Expanded only now: an untrusted range may name a billion layers.
    return tuple(sorted({number for first, last in ranges for number in range(first, last + 1)}))


Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "elu", "sigmoid", "identity"]
Init = Literal["houlsby", "lora", "bert"]
Reparametrisation = Literal["none", "mlp", "lstm"]
# Bounds for untrusted files, far above any sensible value: memory is allocated for the sizes in a specification.
MAX_SIZE = 2**20
MAX_DEPTH = 100
MAX_MODIFICATIONS = 64
MAX_FUSED = 8

Size = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
Depth = Annotated[int, Field(strict=True, ge=1, le=MAX_DEPTH)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
MAX_AVERAGED = 8


def _two_or_more(value: Any) -> Any:
    """Check that a list of tasks has an allowed length, and that no task appears twice."""
    if not isinstance(value, list | tuple):
        return value
    if not 2 <= len(value) <= MAX_AVERAGED:
        raise ValueError(f"got a list of {len(value)} tasks; allowed: one name, or a list of 2 to {MAX_AVERAGED} names")
    if AUTO in value or len(set(map(str, value))) < len(value):
        raise ValueError(f"got {list(value)}; allowed: names of distinct tasks; {AUTO} has to stand alone")
    return tuple(value)


TaskName = Annotated[str, Field(min_length=1, max_length=64)]
AUTO = "auto"
"""The value of ``start_from`` that tries earlier banks and a fresh one."""
StartFrom = Annotated[
    Annotated[TaskName, Tag(AS_TEXT)] | Annotated[tuple[TaskName, ...], Tag(AS_LIST)],
    Discriminator(
        lambda value: AS_LIST if isinstance(value, tuple) else AS_TEXT if isinstance(value, str) else None,
        custom_error_type="shape",
        custom_error_message="must be the name of a task, a list of names, or auto",
    ),
    BeforeValidator(_two_or_more),
]


def named_parents(start_from: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the tasks that a value of ``start_from`` names.

    Example:
        >>> named_parents("sst2"), named_parents(("sst2", "yelp")), named_parents("auto"), named_parents(None)
        (('sst2',), ('sst2', 'yelp'), (), ())
    """
    if isinstance(start_from, tuple):
        return start_from
    return () if start_from in (None, AUTO) else (start_from,)


class Modification(UserSpec):
    """One change at one type of site, in every layer of the range."""

    form: Annotated[FormName, Field(examples=["bottleneck"])]
    """Functional form: bottleneck with a non-linearity, lowrank, decomposed (lowrank with a learned magnitude), rescale
    (learned factors), attention over learned keys and values, prompt (learned input vectors), or a difference added to
    existing parameters: additive (to all entries) or sparse (to a few entries)."""
    modifies: Annotated[Site, Field(examples=["ffn"])]
    """Modified representation: output of a sub-layer (attention, ffn), of the attention heads, of one projection, the
    FFN's inner states (ffn_inner, the input of its second projection), the input, or existing parameters."""
    insertion: Insertion | None = None
    """Sequential reads the representation that it modifies; parallel reads the input of the sub-layer or projection."""
    composition: Composition = "add"
    """add: h + d; scaled: h + s d; learned: h + s d, where s is trained and starts at `scale`; multiply: h (1 + d); gated:
    (1 - g) h + g d, where the gate g follows from the softmax; prepend: in front of the input."""
    bottleneck: Size | None = Field(default=None, validation_alias=AliasChoices("bottleneck", "rank", "length"))
    """The size of the form: width of a bottleneck, rank, or number of prefix or prompt vectors."""
    activation: Activation = "relu"
    """Non-linearity of a bottleneck; gelu_tanh is the one in Houlsby's code."""
    depth: Depth = 1
    """Number of non-linear layers of a bottleneck (all but the first map the bottleneck width to itself), or of the MLP that
    a prompt is trained through (2 in peft's P-tuning without an LSTM)."""
    input_norm: Annotated[bool, Field(strict=True)] = False
    """Whether the bottleneck has its own LayerNorm on its input."""
    output_norm: Annotated[bool, Field(strict=True)] = False
    """Whether the bottleneck has its own LayerNorm on its output, before the composition (ln_after in `adapters`)."""
    scale: Number = 1.0
    """Factor s of a scaled composition, and the initial value of a learned one."""
    init: Init = "lora"
    """lora: the up-projection or the values start at zero, so a fresh bank changes nothing; houlsby: normal, truncated at two
    sigma; bert: normal with sigma 0.02, the default of prefixes and prompts, which cannot start as the identity."""
    init_scale: Annotated[Number, Field(gt=0)] = 1e-2
    """Standard deviation sigma for init: houlsby."""
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Dropout on the activation of a bottleneck, the input of a low-rank form, or the vectors of a prefix or prompt."""
    normalised_input: Annotated[bool, Field(strict=True)] = False
    """Sequential ffn only: read the sub-layer's output after the residual and its LayerNorm (Pfeiffer et al. 2021)."""
    reparametrise: Reparametrisation = "none"
    """The network that vectors are trained through: for a prefix, mlp (one per type of attention); for a prompt, mlp or lstm
    (P-tuning). After training, only the vectors that it computes are kept."""
    hidden: Size = 512
    """Hidden width of the reparametrisation network."""
    mlp_width: Size | None = None
    """Hidden width of the MLP after the LSTM of a prompt; null means the same as hidden (peft's P-tuning: twice hidden)."""
    implementation: Literal["concat", "gated"] = "concat"
    """How a prefix is computed. concat: its keys and values precede those of the text; gated: the equivalent gated sum (He et
    al. 2022, equation 7)."""
    density: Annotated[Number, Field(gt=0, le=1)] = 0.005
    """Sparse: share of the entries in the layer range that may differ from the backbone after training."""
    penalty: Annotated[Number, Field(ge=0)] = 1.25e-7
    """Sparse: weight of the penalty on the expected number of non-zero entries."""

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # So that specifications written before these options existed keep their digests.
        tree: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {k: v for k, v in tree.items() if k not in _ADDED_LATER or v != fields[k].default}

    @model_validator(mode="before")
    @classmethod
    def _default_init(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {"init": default_of("init", value.get("form")), **value}

    @model_validator(mode="after")
    def _legal(self) -> Modification:
        if not any(row.allows(self.form, self.modifies, self.insertion, self.composition) for row in self.config.rows):
            combination = f"{self.form} on {self.modifies}, insertion {self.insertion}, composition {self.composition}"
            rows = "; ".join(map(str, nearest(self.form, self.modifies, self.insertion, self.composition)))
            raise ValueError(
                f"no method has {combination}: the nearest are {rows}; docs/methods.md lists all {len(LEGAL)}"
            )
        sized = "bottleneck" in self.options
        if (self.bottleneck is None) == sized:
            fault = "needs a bottleneck size" if sized else "takes no bottleneck"
            raise ValueError(f"form {self.form} {fault}, got {self.bottleneck}")
        for name in type(self).model_fields:
            idle = name not in _DIMENSIONS and name not in self.options
            if idle and getattr(self, name) != default_of(name, self.form):
                needs = f" without {NEEDS[name]}" if name in self.known_options else ""
                raise ValueError(
                    f"{name} {getattr(self, name)} has no effect on {self.form} on {self.modifies}, insertion "
                    f"{self.insertion}, composition {self.composition}{needs}; options with an effect: "
                    f"{', '.join(sorted(self.options)) or 'none'}"
                )
        self.config.check(self)
        return self

    @property
    def config(self) -> FormConfig:
        """The description of the form."""
        return find_form(self.form)

    @property
    def known_options(self) -> frozenset[str]:
        """Names of the fields that this combination of dimensions uses."""
        return self.config.options_of(self.modifies, self.insertion, self.composition)

    @property
    def options(self) -> frozenset[str]:
        """Names of the fields that change the result of this modification."""
        return self.known_options - self.config.idle(self.reparametrise, self.init)

    @property
    def folds(self) -> bool:
        """Whether the form that is stored differs from the form that is trained."""
        return self.config.folds(self)


ITSELF_FUSED = "it is itself fused from other banks"
_ADDED_LATER = {"output_norm", "mlp_width"}
_DIMENSIONS = {"form", "modifies", "insertion", "composition", "bottleneck"}


def default_of(name: str, form: Any) -> Any:
    """Return the default of an option of `Modification` for a form."""
    if name == "init" and isinstance(form, str) and form in form_names():
        return find_form(form).init
    return Modification.model_fields[name].default


class BankSpec(UserSpec):
    """Everything that a task adds to the backbone, except its head."""

    modifications: Annotated[tuple[Modification, ...], Field(max_length=MAX_MODIFICATIONS)] = ()
    """The modifications. A bank without any, and with frozen LayerNorms, is a linear probe on frozen features."""
    layernorms: Literal["frozen", "own"] = "frozen"
    """own: the task has its own copy of every LayerNorm in the layer range. The LayerNorm of
    the embeddings counts as part of the first layer, the final LayerNorm as part of the last."""
    layers: Layers = "all"
    """all, 6, 6-11, 0,2,4-5 (0-based, encoder first, then decoder), or top-3 for the three nearest the output."""
    scope: Literal["task", "shared"] = "task"
    """task: a fresh bank for every task. shared: one bank is trained on all tasks in turn (the forgetting baseline)."""
    start_from: StartFrom | None = None
    """The task whose bank this one is initialised from, several tasks whose banks are averaged, or auto."""
    fuse: Annotated[tuple[TaskName, ...], Field(max_length=MAX_FUSED)] = ()
    """The tasks whose banks this one reads and combines by attention; they all have the same modifications and layers."""

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = handler(self)
        # So that specifications written before these keys existed keep their digests.
        return {k: v for k, v in tree.items() if v or k not in ("start_from", "fuse")}

    @model_validator(mode="after")
    def _fits_together(self) -> BankSpec:
        if self.scope == "shared" and self.start_from is not None:
            raise ValueError(
                f"scope shared continues the newest shared bank, so it cannot start from {self.start_from!r}: remove "
                "start_from, or write scope: task"
            )
        if self.fuse and (why := self.model_copy(update={"fuse": ()}).why_not_fused) is not None:
            raise ValueError(f"fuse: this bank cannot read {', '.join(map(repr, self.fuse))} at its sites, since {why}")
        for config in {m.config: None for m in self.modifications}:
            config.check_bank(self)
        outside = all(m.config.outside for m in self.modifications) and self.layernorms == "frozen"
        if outside and self.layers != "all":
            raise ValueError(
                f"layers {self.layers} has no effect, since no part of this bank is in a layer: remove layers"
            )
        folding = [m.form for m in self.modifications if m.folds]
        if self.scope == "shared" and folding:
            raise ValueError(
                f"scope shared keeps training one bank, but {folding[0]} with these options is folded into another form "
                "when a task is learned: use scope task, or reparametrise none"
            )
        return self

    @property
    def not_mergeable(self) -> list[str]:
        """The forms of the bank that cannot be merged into weights."""
        return sorted({m.form for m in self.modifications if not m.config.mergeable})

    def why_not_averaged(self) -> str | None:
        """Return why banks like this one cannot be averaged; None if they can."""
        if self.fuse:
            return ITSELF_FUSED
        form = next((m.form for m in self.modifications if not m.config.averages), None)
        if form is not None:
            return f"only bottleneck and low-rank forms can be averaged, and this bank has the form {form}"
        return None if self.modifications else "this bank has no modifications that could be averaged"

    @property
    def why_not_fused(self) -> str | None:
        """Why this bank cannot be fused with others; None if it can."""
        if self.fuse:
            return ITSELF_FUSED
        if self.scope == "shared":
            return "it has scope: shared, so its task predicts with the newest shared bank"
        if self.layernorms == "own":
            return (
                "it has its own LayerNorms (layernorms: own), and only the changes that adapters make can be combined"
            )
        forms = [m.form for m in self.modifications if not m.config.fuses]
        return f"its form is {forms[0]}" if forms else None if self.modifications else "it modifies nothing"

    @property
    def num_prompt_vectors(self) -> int:
        """Number of learned vectors in front of the input."""
        return sum(m.bottleneck or 0 for m in self.modifications if m.config.outside)

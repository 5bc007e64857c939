"""The value of ``bank`` in a stream file: a preset with changes, or modifications written out in full."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.banks.config.legal import NEEDS
from continual_petl.banks.config.presets import DEFAULT, FUSION, PRESETS
from continual_petl.banks.config.spec import (
    AUTO,
    MAX_FUSED,
    MAX_MODIFICATIONS,
    Activation,
    BankSpec,
    Depth,
    Init,
    Layers,
    Modification,
    Number,
    Reparametrisation,
    Size,
    StartFrom,
    TaskName,
    default_of,
    named_parents,
)

_SIZES = ("rank", "length")
"""Other names for the size of certain forms (rank of low-rank forms, length of prefixes and prompts): in a preset with
several forms, they say which size is meant."""


class BankChoice(UserSpec):
    """The value of ``bank`` in a stream file: a preset with changes, or modifications written out in full.

    A bare name, ``bank: houlsby``, means ``{preset: houlsby}``, which is also the default if neither a preset nor
    modifications are given. Sizes and options next to a preset replace those of every
    modification of the preset that uses them; an option that no modification uses is an error.
    """

    preset: str | None = None
    """Name of a preset; houlsby if no modifications are given either, and no bank to take them from (start_from, fuse)."""
    modifications: Annotated[tuple[Modification, ...], Field(max_length=MAX_MODIFICATIONS)] | None = None
    """The modifications, written out in full; cannot be combined with a preset."""
    bottleneck: Size | None = None
    """Size of every form in the preset; if the preset mixes forms (mam), of its bottlenecks only."""
    rank: Size | None = None
    """Size of the low-rank forms; in a preset with a single form, the same as bottleneck."""
    length: Size | None = None
    """Number of vectors of a prefix or prompt; in a preset with a single form, the same as bottleneck."""
    activation: Activation | None = None
    """Non-linearity of every bottleneck in the preset."""
    depth: Depth | None = None
    """Number of non-linear layers of every bottleneck in the preset, or of the MLP that its prompt is trained through."""
    input_norm: Annotated[bool, Field(strict=True)] | None = None
    """Whether every bottleneck in the preset has its own LayerNorm on its input."""
    output_norm: Annotated[bool, Field(strict=True)] | None = None
    """Whether every bottleneck in the preset has its own LayerNorm on its output."""
    scale: Number | None = None
    """Factor s of every scaled composition in the preset."""
    init: Init | None = None
    """Initialisation of every modification in the preset."""
    init_scale: Annotated[Number, Field(gt=0)] | None = None
    """Sigma of init: houlsby."""
    dropout: Annotated[Number, Field(ge=0, lt=1)] | None = None
    """Dropout inside every modification of the preset."""
    normalised_input: Annotated[bool, Field(strict=True)] | None = None
    """Whether a sequential adapter on the FFN reads the normalised sum (pfeiffer) or the FFN's output."""
    reparametrise: Reparametrisation | None = None
    """Network through which a prefix or prompt is trained."""
    hidden: Size | None = None
    """Hidden width of the reparametrisation network."""
    mlp_width: Size | None = None
    """Hidden width of the MLP after the LSTM of a prompt; null means the same as hidden."""
    implementation: Literal["concat", "gated"] | None = None
    """Implementation of a prefix."""
    density: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Share of entries that diff_pruning keeps."""
    penalty: Annotated[Number, Field(ge=0)] | None = None
    """diff_pruning only: weight of the penalty on the expected number of non-zero entries."""
    layernorms: Literal["frozen", "own"] | None = None
    """own: the bank gets its own copies of the LayerNorms."""
    layers: Layers | None = None
    """all, 6, 6-11 or 0,2,4-5 (0-based), or top-3."""
    scope: Literal["task", "shared"] | None = None
    """task: a fresh bank for every task (default). shared: one bank for all tasks."""
    start_from: StartFrom | None = None
    """What the bank starts from; banks named here are not changed. An earlier task: its bank is copied, and its head too if
    kind and labels are the same; without preset and modifications, all settings are taken from that bank. A list of earlier
    tasks: a weighted average of their banks, with weights learned on this task's rows. auto: a fresh bank, the most
    similar earlier banks and, if at least two of these clearly beat the fresh bank, their average are each trained briefly,
    and the best on this task's validation rows is taken."""
    fuse: Annotated[tuple[TaskName, ...], Field(max_length=MAX_FUSED)] | None = None
    """With preset fusion only: earlier tasks whose banks are read and combined by attention at every site. These banks are
    not changed; they must have the same modifications, of form bottleneck, the same layers, and frozen LayerNorms."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"preset": value}
        if not isinstance(value, dict) or value.get("start_from") not in (None, AUTO):
            return value
        named = any(value.get(key) is not None for key in ("preset", "modifications", "fuse"))
        return value if named else {**value, "preset": DEFAULT}

    @field_validator("preset")
    @classmethod
    def _preset_exists(cls, value: str | None) -> str | None:
        return None if value is None else _known(value)

    @model_validator(mode="after")
    def _resolvable(self) -> BankChoice:
        if self.fuse is not None or self.preset == FUSION:
            self._check_fuse()
        elif not self.inherits:
            self.resolve()
        elif beside := ", ".join(self.model_dump(exclude={"start_from"}, exclude_none=True)):
            raise ValueError(
                f"start_from without a preset takes all settings from the other bank, so {beside} cannot be given as well: "
                "remove it, or name a preset too"
            )
        return self

    @property
    def inherits(self) -> bool:
        """Whether all settings are taken from the banks that this one starts from or reads; see `resolve_bank`."""
        return self.fuse is not None or (
            bool(named_parents(self.start_from)) and self.preset is None and self.modifications is None
        )

    def _check_fuse(self) -> None:
        example = "{preset: fusion, fuse: [TASK, TASK]}"
        if self.preset != FUSION:
            raise ValueError(f"fuse belongs to preset fusion, got {self.preset or 'no preset'}: write {example}")
        if self.fuse is None:
            raise ValueError(f"preset fusion needs the earlier tasks whose banks it reads: write {example}")
        if len(self.fuse) < 2:
            raise ValueError(f"fuse needs at least two tasks, got {len(self.fuse)}: to use one bank, write start_from")
        if len(set(self.fuse)) < len(self.fuse):
            raise ValueError(f"fuse names a task twice: {', '.join(self.fuse)}; name each task once")
        if beside := ", ".join(self.model_dump(exclude={"preset", "fuse"}, exclude_none=True)):
            raise ValueError(
                f"preset fusion takes all other settings from the banks that it reads, so {beside} cannot be given as "
                f"well: remove it, and write {example}"
            )

    def resolve(self) -> BankSpec:
        """Return the full specification, or raise `ValueError` naming the option that is not allowed."""
        if (self.preset is None) == (self.modifications is None):
            raise ValueError("a bank is either a preset or a list of modifications, so give exactly one of the two")
        whole = self.model_dump(include={"layernorms", "layers", "scope", "start_from"}, exclude_none=True)
        options = self.model_dump(
            exclude={"preset", "modifications", "layernorms", "layers", "scope", "start_from"}, exclude_none=True
        )
        if self.modifications is not None:
            if options:
                raise ValueError(
                    f"with a list of modifications, give {', '.join(options)} inside each modification, not beside the list"
                )
            return BankSpec.checked({"modifications": self.modifications, **whole})
        assert self.preset is not None
        row = PRESETS[_known(self.preset)]
        changes = [_changes(modification, row, options) for modification in row.modifications]
        used = {key for change in changes for key in change[1]}
        for key in options:
            if key not in used:
                known = any(key in m.known_options for m in row.modifications)
                without = f" without {NEEDS[key]}" if known and key in NEEDS else ""
                raise ValueError(
                    f"{key} has no effect in preset {self.preset!r}{without}: remove it, or choose another preset"
                )
        rows = [
            Modification.checked(modification.model_dump() | change[0])
            for modification, change in zip(row.modifications, changes, strict=True)
        ]
        return BankSpec.checked(row.model_dump() | {"modifications": rows} | whole)


def _changes(modification: Modification, row: BankSpec, options: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the changes that the options make to one modification of a preset, and the names of the options used."""
    use = modification.known_options
    names = [key for key in options if key in use and key != "bottleneck"]
    changed = {key: options[key] for key in names}
    if "bottleneck" in use:
        sized = {m.form for m in row.modifications if "bottleneck" in m.options}
        own = [key for key in _SIZES if key == modification.config.size]
        # If only one form has a size, all three names mean that size.
        mine = ["bottleneck", *_SIZES] if len(sized) == 1 else own or ["bottleneck"]
        sizes = [key for key in mine if key in options]
        if len(sizes) > 1:
            raise ValueError(f"{' and '.join(sizes)} set the same size: give only one of them")
        if sizes:
            changed["bottleneck"] = options[sizes[0]]
            names += sizes
    # Options that have no effect after these changes are treated as not given.
    whole = modification.model_dump() | changed
    idle = use & modification.config.idle(whole["reparametrise"], whole["init"])
    changed |= {name: default_of(name, modification.form) for name in idle}
    return changed, set(names) - idle


def _known(name: str) -> str:
    if name not in PRESETS and name != FUSION:
        raise ValueError(
            f"unknown preset {name!r}: known presets are {', '.join((*PRESETS, FUSION))}; or write the modifications out"
        )
    return name

"""The description of a form: its legal combinations, the options that have an effect, and the preset whose recipe it uses.

Each other file of this package describes one form and never imports torch, so that a stream file is checked before anything
heavy loads; the file of the same name in `continual_petl.banks.forms` implements it. The table of legal combinations and the
checks of a specification (`legal` and `spec`, next to this package) are derived from these descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

Site = Literal[
    "attention",
    "ffn",
    "heads",
    "input",
    "query",
    "key",
    "value",
    "attention_out",
    "ffn_in",
    "ffn_out",
    "ffn_inner",
    "bias",
    "weights",
]
Insertion = Literal["sequential", "parallel"]
Composition = Literal["add", "scaled", "learned", "multiply", "gated", "prepend"]

ADDED: tuple[Composition, ...] = ("add", "scaled", "learned")
PROJECTIONS: tuple[Site, ...] = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")


class Combination(NamedTuple):
    """One row of the table of legal combinations: a form, where it may act, how it is inserted, how it may be composed."""

    form: str
    modifies: tuple[Site, ...]
    insertion: Insertion | None
    compositions: tuple[Composition, ...]

    def allows(self, form: str, modifies: str, insertion: str | None, composition: str) -> bool:
        """Return whether this row allows a choice."""
        return (form, insertion) == (self.form, self.insertion) and (
            modifies in self.modifies and composition in self.compositions
        )

    def agrees(self, form: str, modifies: str, insertion: str | None, composition: str) -> int:
        """Return in how many of the four dimensions a choice agrees with this row."""
        own = (form == self.form, modifies in self.modifies, insertion == self.insertion)
        return sum(own) + (composition in self.compositions)

    def __str__(self) -> str:
        insertion = f", insertion: {self.insertion}" if self.insertion else ""
        composition = f", composition: {' | '.join(self.compositions)}"
        return f"{{form: {self.form}, modifies: {' | '.join(self.modifies)}{insertion}{composition}}}"


class ModificationLike(Protocol):
    """The attributes of a `Modification` that a form reads; importing `Modification` itself here would be circular."""

    @property
    def modifies(self) -> str:
        """Modified representation."""

    @property
    def composition(self) -> str:
        """How the change is composed with the representation."""

    @property
    def init(self) -> str:
        """Initialisation."""

    @property
    def reparametrise(self) -> str:
        """The network that vectors are trained through."""

    @property
    def config(self) -> FormConfig:
        """The description of its form."""


class BankLike(Protocol):
    """The attributes of a `BankSpec` that a form reads."""

    @property
    def modifications(self) -> Sequence[ModificationLike]:
        """All modifications of the bank."""

    @property
    def layernorms(self) -> str:
        """Whether LayerNorms are frozen or the bank's own."""


class FormConfig:
    """The description of one form. The defaults are for a form that changes states and is stored as it is trained."""

    name: ClassVar[str]
    """The name in a stream file."""
    rows: ClassVar[tuple[Combination, ...]]
    """The legal choices."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Options that have an effect with every choice."""
    preset: ClassVar[str]
    """The best-known preset with this form; its recipe is used for banks that match no preset."""
    size: ClassVar[str | None] = None
    """Another name of the option ``bottleneck`` for this form: rank or length."""
    init: ClassVar[str] = "lora"
    """The default initialisation."""
    averages: ClassVar[bool] = False
    """Whether a weighted average of several banks' tensors is a useful starting point."""
    mergeable: ClassVar[bool] = False
    """Whether it can be merged into the weights of a copy of the backbone."""
    outside: ClassVar[bool] = False
    """Whether it puts its vectors in front of the input, before all layers, instead of acting inside layers."""
    in_heads: ClassVar[bool] = False
    """Whether it adds keys and values inside attention heads."""
    own_parameters: ClassVar[bool] = False
    """Whether it has its own versions of backbone parameters."""
    fuses: ClassVar[bool] = False
    """Whether the changes of several banks with this form can be combined by attention (`fuse`)."""
    copies: ClassVar[bool] = False
    """Whether its versions of backbone parameters are full copies, stored next to the modifications (`Bank.own`)."""

    def form(self) -> Any:
        """Return what the form computes, a `continual_petl.banks.forms.base.Form`; torch is imported here.

        By default None, for ``FORM`` in the file of the same name in `continual_petl.banks.forms`.
        """
        return None

    def options_of(self, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
        """Return the options that change the result of a combination."""
        return self.options | ({"scale"} if composition in ("scaled", "learned") else set())

    def idle(self, reparametrise: str, init: str) -> frozenset[str]:
        """Return the options that have no effect because of the values of other options."""
        return frozenset({"hidden"} if reparametrise == "none" else set()) | (
            frozenset() if init == "houlsby" else {"init_scale"}
        )

    def check(self, modification: ModificationLike) -> None:
        """Raise `ValueError` if the values of legal options are incompatible."""

    def check_bank(self, spec: BankLike) -> None:
        """Raise `ValueError` if a bank cannot combine this form with its other parts."""

    def folds(self, modification: ModificationLike) -> bool:
        """Return whether the form that is stored differs from the form that is trained."""
        return modification.reparametrise != "none"

    def trained_through(self, modification: ModificationLike) -> str:
        """Describe the part that is folded away after training."""
        return f"an {modification.reparametrise} that computes its vectors"

    def like(self, modification: ModificationLike) -> str:
        """Return the preset whose recipe is used for this modification by default."""
        return self.like_plain(modification)

    def like_plain(self, modification: ModificationLike) -> str:
        """Return the same as `like` for a modification whose vectors are trained directly, not through a network."""
        return self.preset


def check_has_no_identity(modification: ModificationLike) -> None:
    """Raise `ValueError` if a form that cannot be the identity is initialised as the identity."""
    if modification.init == "lora" and modification.composition in ("gated", "prepend"):
        raise ValueError(
            f"init lora starts a change at zero, but a {modification.composition} composition is never the identity: "
            "use bert (normal with sigma 0.02) or houlsby (with init_scale)"
        )

"""What a form of modification says of itself: which choices it allows, which options act, what it is trained as.

One file of this package describes one form and never imports torch, so that a stream file is checked before anything heavy
loads; the file of the same name in `continual_petl.banks.forms` computes it. The table of legal combinations and the checks
of a specification (`legal` and `spec`, beside this package) are derived from these descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

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
    """One legal row: a form, where it may act, how it is inserted, how it may be composed."""

    form: str
    modifies: tuple[Site, ...]
    insertion: Insertion | None
    compositions: tuple[Composition, ...]

    def allows(self, form: str, modifies: str, insertion: str | None, composition: str) -> bool:
        """Return whether a choice is in this row."""
        return (form, insertion) == (self.form, self.insertion) and (
            modifies in self.modifies and composition in self.compositions
        )

    def agrees(self, form: str, modifies: str, insertion: str | None, composition: str) -> int:
        """Return in how many of the four dimensions a choice is in this row."""
        own = (form == self.form, modifies in self.modifies, insertion == self.insertion)
        return sum(own) + (composition in self.compositions)

    def __str__(self) -> str:
        insertion = f", insertion: {self.insertion}" if self.insertion else ""
        composition = f", composition: {' | '.join(self.compositions)}"
        return f"{{form: {self.form}, modifies: {' | '.join(self.modifies)}{insertion}{composition}}}"


class ModificationLike(Protocol):
    """What a form reads of a `Modification`, which is built from the forms and so defined above them."""

    @property
    def modifies(self) -> str:
        """Modified representation."""

    @property
    def composition(self) -> str:
        """How the change is composed with it."""

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
    """What a form reads of a `BankSpec`."""

    @property
    def modifications(self) -> Sequence[ModificationLike]:
        """All modifications of the bank."""

    @property
    def layernorms(self) -> str:
        """Whether LayerNorms are frozen or the bank's own."""


class FormConfig:
    """The description of one form; a subclass says what differs from a change of states that is stored as it is trained."""

    name: ClassVar[str]
    """As in a stream file."""
    rows: ClassVar[tuple[Combination, ...]]
    """The legal choices."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Options that act whatever the choice."""
    preset: ClassVar[str]
    """The preset that it is known from; a bank that is like no preset is trained as that one."""
    size: ClassVar[str | None] = None
    """The name of its size besides bottleneck: rank or length."""
    init: ClassVar[str] = "lora"
    """The initialisation when a stream does not say."""
    mergeable: ClassVar[bool] = False
    """Whether it can be written into the weights of a copy of the backbone."""
    outside: ClassVar[bool] = False
    """Whether it adds its vectors to the input, in front of all layers, instead of acting in layers."""
    in_heads: ClassVar[bool] = False
    """Whether it adds keys and values inside attention heads."""
    own_parameters: ClassVar[bool] = False
    """Whether it has versions of backbone parameters."""
    fits_by_size: ClassVar[bool] = False
    """Whether it fits any backbone that is at least as wide as its size."""
    copies: ClassVar[bool] = False
    """Whether these are whole copies, kept beside the modifications (`Bank.own`)."""

    def options_of(self, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
        """Return which options change what a combination computes."""
        return self.options | ({"scale"} if composition in ("scaled", "learned") else set())

    def idle(self, reparametrise: str, init: str) -> frozenset[str]:
        """Return which options have no effect because of what others say."""
        return frozenset({"hidden"} if reparametrise == "none" else set()) | (
            frozenset() if init == "houlsby" else {"init_scale"}
        )

    def check(self, modification: ModificationLike) -> None:
        """Raise `ValueError` if values of legal options do not go together."""

    def check_bank(self, spec: BankLike) -> None:
        """Raise `ValueError` if a bank cannot have this form beside what else it has."""

    def folds(self, modification: ModificationLike) -> bool:
        """Return whether its stored form is another one than the one that is trained."""
        return modification.reparametrise != "none"

    def trained_through(self, modification: ModificationLike) -> str:
        """Return in words what is folded away after training."""
        return f"an {modification.reparametrise} around its vectors"

    def like(self, modification: ModificationLike) -> str:
        """Return the preset that it is trained as."""
        return self.like_plain(modification)

    def like_plain(self, modification: ModificationLike) -> str:
        """Return the same whatever it is trained through."""
        return self.preset


def check_has_no_identity(modification: ModificationLike) -> None:
    """Raise `ValueError` if a change that is never the identity is initialised as one."""
    if modification.init == "lora" and modification.composition in ("gated", "prepend"):
        raise ValueError(
            f"init lora makes a change zero, but a {modification.composition} composition is never the identity: "
            "use bert (normal of 0.02) or houlsby (with init_scale)"
        )

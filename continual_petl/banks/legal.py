"""Which choices of the four dimensions go together, and which options each combination has a use for.

The rows are those of He et al. 2022, Table 1, with what Houlsby et al. 2019, section 3.6, tried.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Form = Literal["bottleneck", "lowrank", "attention", "prompt", "additive", "sparse"]
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
    "bias",
    "weights",
]
Insertion = Literal["sequential", "parallel"]
Composition = Literal["add", "scaled", "learned", "multiply", "gated", "prepend"]


class Combination(NamedTuple):
    """One legal row: a form, where it may act, how it is inserted, how it may be composed."""

    form: Form
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


_ADDED: tuple[Composition, ...] = ("add", "scaled", "learned")
PROJECTIONS: tuple[Site, ...] = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")

LEGAL: tuple[Combination, ...] = (
    Combination("bottleneck", ("attention", "ffn"), "sequential", (*_ADDED, "multiply")),
    # Heads: what the heads have computed, before their output projection.
    Combination("bottleneck", ("attention", "heads", "ffn"), "parallel", (*_ADDED, "multiply")),
    Combination("lowrank", PROJECTIONS, "parallel", _ADDED),
    # Gated is prefix tuning; the others are the multi-head parallel adapter.
    Combination("attention", ("heads",), "parallel", ("gated", *_ADDED)),
    Combination("prompt", ("input",), None, ("prepend",)),
    Combination("additive", ("bias", "weights"), None, ("add",)),
    Combination("sparse", ("weights",), None, ("add",)),
)


def nearest(form: str, modifies: str, insertion: str | None, composition: str) -> list[Combination]:
    """Return the legal rows that agree with a choice in most dimensions, and those of its form that do."""
    choice = (form, modifies, insertion, composition)
    most = max(row.agrees(*choice) for row in LEGAL)
    most_of_form = max(row.agrees(*choice) for row in LEGAL if row.form == form)
    return [row for row in LEGAL if row.agrees(*choice) == (most_of_form if row.form == form else most)]


def options_of(form: str, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
    """Return which options change what a combination computes."""
    options: set[str] = set()
    match form:
        case "bottleneck":
            options |= {
                "bottleneck",
                "init",
                "init_scale",
                "dropout",
                "activation",
                "depth",
                "input_norm",
                "output_norm",
            }
            if (modifies, insertion) == ("ffn", "sequential"):
                options.add("normalised_input")
        case "lowrank":
            options |= {"bottleneck", "init", "init_scale", "dropout"}
        case "attention":
            options |= {"bottleneck", "init", "init_scale", "dropout", "reparametrise", "hidden"}
            options.add("implementation" if composition == "gated" else "activation")
        case "prompt":
            options |= {"bottleneck", "init", "init_scale", "dropout", "reparametrise", "hidden", "depth", "mlp_width"}
        case "sparse":
            options |= {"density", "penalty"}
    if composition in ("scaled", "learned"):
        options.add("scale")
    return frozenset(options)


NEEDS = {
    "hidden": "reparametrise: mlp or lstm",
    "depth": "reparametrise: mlp or lstm",
    "mlp_width": "reparametrise: lstm",
    "init_scale": "init: houlsby",
    "init": "reparametrise: none",
}
"""Without which other option an option has no effect."""


def idle_options(form: str, reparametrise: str, init: str) -> frozenset[str]:
    """Return which options have no effect because of what others say."""
    idle: set[str] = set()
    if form == "prompt" and reparametrise != "lstm":
        idle.add("mlp_width")
    if reparametrise == "none":
        idle |= {"hidden", "depth"} if form == "prompt" else {"hidden"}
    elif form == "attention":
        # The MLP of a prefix is drawn as torch draws it.
        idle |= {"init", "init_scale"}
    if init != "houlsby":
        idle.add("init_scale")
    return frozenset(idle)

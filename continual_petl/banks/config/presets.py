"""Published methods as a table of presets (He et al. 2022, Table 1; Houlsby et al. 2019, section 2).

A row is a bank with its default learning rate and epochs. The best learning rates differ widely: a prompt needs hundreds of
times the learning rate of a full copy. A bank needs no preset: its dimensions can be written out in the stream file instead
(see `choice`). A bank is trained like the preset that it matches, regardless of its options; a bank that matches no preset
gets the smallest learning rate of its forms. This file never imports torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError, known_names


class Recipe(NamedTuple):
    """How a bank is trained by default."""

    learning_rate: float
    """The peak of a schedule that warms up and then decays to zero."""
    epochs: int


class Preset(NamedTuple):
    """A named method."""

    bank: BankSpec
    recipe: Recipe
    studied: bool
    """Whether the learning rate was chosen on validation rows (experiments/he2022/results/recipes.md); a test compares
    the rate with that study."""


def _preset(
    learning_rate: float, *modifications: dict[str, Any], epochs: int = 8, studied: bool = True, **more: str
) -> Preset:
    bank = BankSpec.checked({"modifications": modifications, **more} if modifications else more)
    return Preset(bank, Recipe(learning_rate, epochs), studied)


_SEQUENTIAL = {"form": "bottleneck", "insertion": "sequential", "composition": "add", "bottleneck": 64}
_PARALLEL = {"form": "bottleneck", "insertion": "parallel", "bottleneck": 64, "activation": "relu", "init": "bert"}
_SCALED = {**_PARALLEL, "modifies": "ffn", "init": "lora", "composition": "scaled", "scale": 4.0}
_LOWRANK = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "bottleneck": 8}
_HOULSBY = {**_SEQUENTIAL, "activation": "gelu_tanh", "init": "houlsby", "init_scale": 1e-2}
_RESCALE = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
_PREFIX = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "bottleneck": 30}
_PREFIX_MLP = {**_PREFIX, "reparametrise": "mlp", "hidden": 800}
_MULTIHEAD = {**_PREFIX, "composition": "add", "activation": "relu", "init": "lora"}
_PROMPT = {"form": "prompt", "modifies": "input", "composition": "prepend", "bottleneck": 20}
_WEIGHTS = {"form": "additive", "modifies": "weights"}

_ROWS: dict[str, Preset] = {
    # Houlsby et al. 2019, section 2.1: two adapters per layer, each before its residual; LayerNorms per task.
    "houlsby": _preset(
        1.5e-3, {**_HOULSBY, "modifies": "attention"}, {**_HOULSBY, "modifies": "ffn"}, layernorms="own"
    ),
    # Pfeiffer et al. 2021: one adapter per layer, reading the normalised output of the FFN sub-layer.
    "pfeiffer": _preset(
        1.5e-3, {**_SEQUENTIAL, "modifies": "ffn", "activation": "relu", "init": "bert", "normalised_input": True}
    ),
    # He et al. 2022, parallel adapter (PA) on attention: it changes the heads' output before the output projection, as in
    # their code.
    "parallel_attention": _preset(1.5e-3, {**_PARALLEL, "modifies": "heads"}),
    # He et al. 2022, PA and Scaled PA on the FFN; s = 4 as in section 4.5.
    "parallel": _preset(5e-3, {**_PARALLEL, "modifies": "ffn"}),
    "scaled_parallel": _preset(2e-3, _SCALED),
    # He et al. 2022, section 4.4: prefix tuning with ReLU instead of softmax, added instead of gated.
    "multihead_parallel": _preset(5e-3, _MULTIHEAD),
    # Li and Liang 2021, trained through their MLP (800 wide in the code of He et al.), which is dropped after training.
    "prefix": _preset(1e-3, _PREFIX_MLP),
    "prefix_flat": _preset(5e-3, _PREFIX),
    # Lester et al. 2021; with an encoder, Liu et al. 2021 (P-tuning).
    "prompt": _preset(5e-2, _PROMPT),
    "p_tuning": _preset(5e-3, {**_PROMPT, "reparametrise": "lstm", "hidden": 128}),
    # Hu et al. 2022, on queries and values; on the FFN as in He et al. 2022, section 4.5 (r = 102, s = 4 there).
    "lora": _preset(2e-3, {**_LOWRANK, "modifies": "query"}, {**_LOWRANK, "modifies": "value"}),
    "lora_ffn": _preset(
        2e-3, {**_LOWRANK, "modifies": "ffn_in", "scale": 4.0}, {**_LOWRANK, "modifies": "ffn_out", "scale": 4.0}
    ),
    # Liu et al. 2024 (arXiv 2402.09353), section 4: LoRA with learned magnitudes, at the same sites and learning rate as
    # lora.
    "dora": _preset(
        2e-3,
        {**_LOWRANK, "form": "decomposed", "modifies": "query"},
        {**_LOWRANK, "form": "decomposed", "modifies": "value"},
        studied=False,
    ),
    # Liu et al. 2022 (arXiv 2205.05638), section 3.3: keys, values and the FFN's inner states are multiplied by learned
    # vectors; the learning rate is from section 4.2.
    "ia3": _preset(3e-3, *({**_RESCALE, "modifies": site} for site in ("key", "value", "ffn_inner")), studied=False),
    # He et al. 2022, section 4.6: prefix of 30 with a scaled parallel adapter of 512. For RoBERTa on GLUE they use
    # length 16, bottleneck 16, scale 2. mam trains the prefix through its MLP, as released; mam_flat as plain vectors.
    "mam": _preset(1e-3, _PREFIX_MLP, {**_SCALED, "bottleneck": 512}),
    "mam_flat": _preset(1e-3, _PREFIX, {**_SCALED, "bottleneck": 512}),
    # Houlsby et al. 2019, section 3.4: only the LayerNorms are trained.
    "layernorm": _preset(1.5e-3, layernorms="own"),
    # Ben-Zaken et al. 2022: every bias of the encoder, including those of the LayerNorms.
    "bitfit": _preset(6e-3, {"form": "additive", "modifies": "bias"}),
    # Guo et al. 2021: a difference added to every weight; half a percent of its entries are kept.
    "diff_pruning": _preset(1e-3, {"form": "sparse", "modifies": "weights"}),
    # Variable fine-tuning (Houlsby et al. 2019, section 3.3): copies of the top layers.
    "top_layers": _preset(3e-4, _WEIGHTS, epochs=5, layers="top-2"),
    # Full fine-tuning: a copy of every parameter.
    "full": _preset(1.5e-4, _WEIGHTS, epochs=5),
    # Feature-based transfer: only the head is trained.
    "probe": _preset(2e-2),
}

PRESETS: dict[str, BankSpec] = {name: row.bank for name, row in _ROWS.items()}
DEFAULT = "houlsby"
"""The preset of a bank that names none."""
FUSION = "fusion"
"""Pfeiffer et al. 2021 (arXiv 2005.00247): not a row of the table, since a fused bank has the modifications of the banks
that it reads (`continual_petl.banks.config.inherit`)."""
RECIPES: dict[str, Recipe] = {name: row.recipe for name, row in _ROWS.items()} | {FUSION: Recipe(1e-3, 8)}
STUDIED: frozenset[str] = frozenset(name for name, row in _ROWS.items() if row.studied)
"""Presets whose learning rate comes from a committed study."""


@lru_cache(maxsize=128)
def preset_of(spec: BankSpec) -> str | None:
    """Return the preset that a bank matches, regardless of sizes, layers, scope and start_from; None if there is none.

    Example:
        >>> preset_of(PRESETS["mam"])
        'mam'
    """
    if spec.fuse:
        return FUSION
    shape = _shape(spec)
    fitting = [name for name, known in _SHAPES.items() if known == shape]
    # The only difference between top_layers and full is that its layers are counted from the top.
    same = (name for name in fitting if _from_top(PRESETS[name]) == _from_top(spec))
    return next(same, next(iter(fitting), None))


def _from_top(spec: BankSpec) -> bool:
    return str(spec.layers).startswith("top-")


def _shape(spec: BankSpec) -> tuple[object, ...]:
    """Return the properties that identify the method of a bank."""
    return spec.layernorms, *(m.model_dump(exclude={"bottleneck"}) for m in spec.modifications)


_SHAPES = {name: _shape(row) for name, row in PRESETS.items()}


def in_words(spec: BankSpec) -> str:
    """Describe a bank: its preset, if it matches one, and its changes."""
    preset, changes = preset_of(spec), changes_in_words(spec)
    return changes if preset is None else f"{preset}: {changes}"


def changes_in_words(spec: BankSpec) -> str:
    """Describe the changes that a bank makes."""
    forms = [
        f"{m.form} on {m.modifies}" + ("" if m.bottleneck is None else f" ({m.bottleneck})") for m in spec.modifications
    ]
    nothing = "own LayerNorms" if spec.layernorms == "own" else "nothing but the head"
    return ", ".join(dict.fromkeys(forms)) or nothing


def in_short(spec: BankSpec) -> str:
    """Return the preset of a bank, or its forms if it matches none, with their sizes."""
    preset = preset_of(spec)
    sizes = [str(m.bottleneck) for m in spec.modifications if m.bottleneck is not None]
    if preset is not None:
        return " ".join([preset, ", ".join(dict.fromkeys(sizes))]).rstrip()
    named = [m.form + ("" if m.bottleneck is None else f" {m.bottleneck}") for m in spec.modifications]
    return ", ".join(dict.fromkeys(named)) or "own LayerNorms"


def recipe_of(bank: BankSpec, written: str | None = None) -> Recipe:
    """Return how a bank is trained by default.

    A bank is trained like the preset with the same forms at the same sites, regardless of sizes and options. A bank that
    matches no preset gets the smallest of its forms' learning rates, since a bank still learns at a rate that is too
    low, but learns nothing at one that is too high.

    Args:
        bank: its full specification.
        written: the preset named in the stream. It decides between `full` and `top_layers`, which differ only in their
            layers.

    Example:
        >>> from continual_petl.banks.config.choice import BankChoice
        >>> recipe_of(BankChoice(preset="prefix", hidden=512).resolve()) == RECIPES["prefix"]
        True
    """
    if bank.fuse:
        return RECIPES[FUSION]
    if not bank.modifications:
        return RECIPES["layernorm" if bank.layernorms == "own" else "probe"]
    fitting = [name for name, method in _METHODS.items() if method == _method(bank)]
    if "top_layers" in fitting and str(bank.layers).startswith("top-"):
        return RECIPES["top_layers"]
    if written in fitting:
        return RECIPES[written]
    if fitting:
        # Copies of layers whose range is not written as top-n are trained like `full`, which has a lower learning rate than
        # `top_layers`.
        return min((RECIPES[name] for name in fitting), key=_rate)
    return min(map(_recipe_like, bank.modifications), key=_rate)


def _recipe_like(modification: Modification) -> Recipe:
    preset = modification.config.like(modification)
    if preset not in RECIPES:
        raise InputError(
            f"form {modification.form!r}: its recipe is that of preset {preset!r}, which does not exist; allowed: "
            f"{known_names([*RECIPES])}"
        )
    return RECIPES[preset]


def _rate(recipe: Recipe) -> float:
    return recipe.learning_rate


def _method(bank: BankSpec) -> list[tuple[object, ...]]:
    """Return the properties that determine the recipe: forms, sites, compositions, and reparametrisation."""
    return sorted(
        (m.form, m.modifies, m.insertion or "", m.composition, m.reparametrise != "none") for m in bank.modifications
    )


_METHODS = {name: _method(bank) for name, bank in PRESETS.items() if bank.modifications}

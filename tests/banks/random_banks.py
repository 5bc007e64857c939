"""Random legal banks: one to three modifications with any options, in any layer range."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from continual_petl.banks.config.legal import LEGAL, options_of
from continual_petl.banks.config.spec import BankSpec

# 8 is the largest rank for keys that heads share, and 16 is the hidden size; 9 and 17 are just too large.
_SIZES = st.sampled_from([1, 2, 2, 3, 3, 3, 4, 5, 5, 8, 8, 9, 16, 17])
_RARELY = st.sampled_from([False, False, False, True])
_VALUES: dict[str, SearchStrategy[Any]] = {
    "init": st.sampled_from(["houlsby", "lora", "bert"]),
    "init_scale": st.sampled_from([1e-3, 0.3]),
    "dropout": st.sampled_from([0.1, 0.5]),
    "activation": st.sampled_from(
        ["relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "elu", "sigmoid", "identity"]
    ),
    "depth": st.integers(1, 3),
    "input_norm": st.booleans(),
    "output_norm": st.booleans(),
    "mlp_width": st.integers(1, 6),
    "normalised_input": _RARELY,
    "scale": st.sampled_from([-1.0, 0.5, 4.0]),
    "hidden": st.integers(1, 6),
    "implementation": st.sampled_from(["concat", "gated"]),
    "density": st.sampled_from([1e-6, 0.01, 0.5, 1.0]),
    "penalty": st.sampled_from([0.0, 1e-3]),
}
_NEVER_IDENTITY = ("gated", "prepend")


@st.composite
def modifications(draw: DrawFn) -> dict[str, Any]:
    """Return one legal modification, as written in a stream file."""
    # Draw the row of LEGAL first, so that rows with few choices are as frequent as others.
    row = draw(st.sampled_from(LEGAL))
    chosen: dict[str, Any] = {
        "form": row.form,
        "modifies": draw(st.sampled_from(row.modifies)),
        "insertion": row.insertion,
        "composition": draw(st.sampled_from(row.compositions)),
    }
    for name in sorted(options_of(**chosen)):
        if name == "bottleneck":
            chosen[name] = draw(_SIZES)
        elif name == "reparametrise":
            networks = ["none", "none", "mlp"] + (["lstm"] if row.form == "prompt" else [])
            chosen[name] = draw(st.sampled_from(networks))
        elif name == "init" and chosen["composition"] in _NEVER_IDENTITY:
            chosen[name] = draw(st.sampled_from(["houlsby", "bert"]))
        elif draw(st.booleans()):
            chosen[name] = draw(_VALUES[name])
    # Drop options without effect, which are refused: see `test_legal`.
    if chosen.get("reparametrise", "none") == "none":
        chosen.pop("hidden", None)
        if row.form == "prompt":
            chosen.pop("depth", None)
    elif row.form == "attention":
        chosen.pop("init", None)
    if chosen.get("reparametrise") != "lstm":
        chosen.pop("mlp_width", None)
    if chosen.get("init") != "houlsby":
        chosen.pop("init_scale", None)
    return chosen


@st.composite
def layer_ranges(draw: DrawFn, num_layers: int) -> str:
    """Return a layer range in any of its spellings."""
    first, last = sorted(draw(st.tuples(*[st.integers(0, num_layers - 1)] * 2)))
    return draw(st.sampled_from(["all", "all", str(first), f"{first}-{last}", f"{first},{last}", f"top-{last + 1}"]))


@st.composite
def banks(draw: DrawFn, num_layers: int) -> BankSpec:
    """Return a complete specification; a modification that a bank may have only once is not repeated."""
    rows: list[dict[str, Any]] = []
    norms = draw(st.sampled_from(["frozen", "own"]))
    for row in draw(st.lists(modifications(), min_size=1, max_size=3)):
        had = {each["form"] for each in rows}
        if row["form"] == "prompt" and "prompt" in had:
            continue
        if row["form"] in ("additive", "sparse") and (
            "sparse" in had or (row["form"] == "sparse" and "additive" in had)
        ):
            continue
        norms = "frozen" if row["form"] == "sparse" else norms
        rows.append(row)
    # A layer range is refused if the bank changes nothing in it.
    inside = norms == "own" or any(row["form"] != "prompt" for row in rows)
    layers = draw(layer_ranges(num_layers)) if inside else "all"
    return BankSpec.model_validate({"modifications": rows, "layernorms": norms, "layers": layers})

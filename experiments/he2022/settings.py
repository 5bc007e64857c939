"""The settings of both encoder studies after He et al. 2022: methods, their learning rates, and their banks at several
parameter budgets.

Budgets are shares of MiniLM's 22.7 million parameters; sizes follow from the library's parameter counts (`budgets`). A method
that cannot come within a tenth of a budget has no row for it: one rank of LoRA on queries and values is 0.04 %, so 0.1 % is
between two ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from experiments.he2022.budgets import Spec, count, sized, whole
from experiments.he2022.rows import Row
from experiments.studies.tuning import Method

EPOCHS = {"": 3}
SMALL, MIDDLE, LARGE = 0.001, 0.005, 0.02
"""Budgets: the 0.1 % and 0.5 % of the paper's Tables 2 and 4, and 2 % for the larger budgets of Tables 3, 5 and 6."""
BUDGETS = (SMALL, MIDDLE, LARGE)


def preset(name: str, size: str = "bottleneck", **options: Any) -> Callable[[int], Spec]:
    """Return a function from a size to the bank of a preset."""
    return lambda value: {"preset": name, size: value, **options}


def written(modifies: str, insertion: str, **options: Any) -> Callable[[int], Spec]:
    """Return a function from a size to a bank with one kind of adapter, written out without a preset."""
    one = {"form": "bottleneck", "modifies": modifies, "insertion": insertion, "init": "bert", **options}
    return lambda value: {"modifications": [one | {"bottleneck": value}]}


def mam(value: int) -> Spec:
    """Return MAM with a flat prefix whose length equals the adapters' width, as in the paper for RoBERTa (16 and 16)."""
    return {"preset": "mam_flat", "length": value, "bottleneck": value}


def at(name: str, of_size: Callable[[int], Spec], rates: tuple[float, ...], first: float, *budgets: float) -> list[Row]:
    """Return the rows of a method at the budgets that it can match.

    Args:
        name: name of the method.
        of_size: returns the bank of a given size.
        rates: the learning rates from which one is chosen.
        first: the budget at which the rate is chosen.
        budgets: budgets of the rows.
    """
    chooser = sized("minilm", of_size, first)
    assert chooser is not None, "the rate must be chosen at a budget that the method can match"
    method = Method(name=name, banks=(chooser,), rates=rates, epochs=EPOCHS)
    banks = [(budget, sized("minilm", of_size, budget)) for budget in budgets]
    return [Row(name=name, bank=bank, method=method, budget=budget) for budget, bank in banks if bank is not None]


def alone(name: str, bank: Spec, *rates: float) -> Row:
    """Return the row of a method of fixed size."""
    return Row(name=name, bank=bank, method=Method(name=name, banks=(bank,), rates=rates, epochs=EPOCHS))


@functools.cache
def encoder_rows() -> tuple[Row, ...]:
    """Return the rows in the form of Table 2, and related ones."""
    return (
        alone("full fine-tuning", "full", 1e-4, 3e-4),
        *at("MAM (flat)", mam, (1e-3, 4e-3), MIDDLE, *BUDGETS),
        *at("prefix", preset("prefix_flat", "length"), (5e-3, 2e-2), MIDDLE, *BUDGETS),
        *at("scaled parallel", preset("scaled_parallel"), (5e-4, 2e-3), MIDDLE, *BUDGETS),
        *at("Houlsby", preset("houlsby"), (1.5e-3, 5e-3), MIDDLE, MIDDLE, LARGE),
        *at("LoRA (q, v)", preset("lora", "rank"), (2e-3, 6e-3), MIDDLE, *BUDGETS),
        *at("Pfeiffer", preset("pfeiffer"), (1.5e-3, 5e-3), LARGE, LARGE),
        alone("BitFit", "bitfit", 2e-3, 6e-3),
        alone("LayerNorms only", "layernorm", 2e-3, 6e-3),
        alone("prompt", {"preset": "prompt", "length": 20}, 1e-2, 5e-2),
        alone("diff-pruning, top 3", _diff_pruning(), 3e-4, 1e-3),
        alone("probe", "probe", 5e-3, 2e-2),
    )


def _diff_pruning() -> dict[str, Any]:
    """Return diff-pruning with the density that matches the middle budget.

    It is limited to three of six layers: it draws two gates for every entry in every step, so with all layers and the
    embeddings, a trial would take as long as ten trials of another method.
    """
    bank = {"preset": "diff_pruning", "layers": "top-3"}
    reach = count("minilm", bank | {"density": 1.0})
    return bank | {"density": float(f"{MIDDLE * whole('minilm') / reach:.4g}")}


@functools.cache
def design_rows() -> tuple[Row, ...]:
    """Return the rows in the form of Tables 3 to 5 that are not in `encoder_rows`."""
    adapters, lowrank = (1.5e-3, 5e-3), (5e-4, 2e-3)
    return (
        *at("SA attn", written("attention", "sequential"), adapters, LARGE, LARGE),
        *at("SA ffn", written("ffn", "sequential"), adapters, LARGE, LARGE),
        *at("PA attn", preset("parallel_attention"), adapters, LARGE, LARGE, SMALL),
        *at("PA ffn", preset("parallel"), adapters, LARGE, LARGE, SMALL),
        *at("MH-PA attn", preset("multihead_parallel", "length"), adapters, SMALL, SMALL),
        *at("LoRA ffn, s = 4", preset("lora_ffn", "rank"), lowrank, LARGE, LARGE),
        *at("LoRA ffn, s = 1", preset("lora_ffn", "rank", scale=1.0), (2e-3, 6e-3), LARGE, LARGE),
        *at("PA ffn, s learned", _learned, lowrank, LARGE, LARGE),
    )


def _learned(value: int) -> Spec:
    form = {"form": "bottleneck", "modifies": "ffn", "insertion": "parallel", "init": "lora"}
    return {"modifications": [form | {"composition": "learned", "scale": 4.0, "bottleneck": value}]}


def find(name: str, budget: float | None = None) -> Row:
    """Return a row of either study."""
    (row,) = (r for r in (*encoder_rows(), *design_rows()) if (r.name, r.budget) == (name, budget))
    return row

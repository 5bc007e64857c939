"""README.md of an export, which the Hub shows as its model card: a description, and the lines of Python that use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from continual_petl.exchange.model_card import base_model, new_card, template
from continual_petl.exchange.readme_code import Code, Loading, code_of
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of


def write_readme(subject: Subject, folder: Path, how: Loading, config: Mapping[str, Any]) -> Code:
    """Write README.md of an export; return the code in it.

    Args:
        subject: the task.
        folder: the folder of the export.
        how: how the export is loaded.
        config: the configuration of an adapter of `peft`; empty for other exports.
    """
    plan, code = subject.plan, code_of(subject, how)
    spec, lora = plan.generation, kind_of(plan).continues and config.get("peft_type") == "LORA"
    text = template("exchange", "readme.j2").render(
        library=how.library,
        method=config.get("peft_type"),
        plan=plan,
        one_by_one=how.one_by_one,
        repeats=spec is not None and (spec.repetition_penalty != 1 or spec.no_repeat_ngram_size),
        eager=how.library == "adapters" and subject.bank.prefixes(),
        not_in_vllm=_not_in_vllm(config) if lora else [],
        several_factors=lora and _several_factors(config),
        chooses=kind_of(plan).chooses,
        labels=", ".join(map(repr, plan.labels or ())),
        decision={} if plan.decision is None else plan.decision.in_words(plan.labels or ()),
        code=code.text,
    )
    library = "adapter-transformers" if how.library == "adapters" else how.library  # the Hub's name
    tags = [*([] if library == "transformers" else [library]), "continual-learning"]
    card = new_card(base_model(subject.backbone.name), library, tags, plan.name, text)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return code


def _not_in_vllm(config: Mapping[str, Any]) -> list[str]:
    """Return the reasons why vLLM does not load a LoRA adapter (vllm/lora/peft_helper.py)."""
    return [name for name, key in (("DoRA", "use_dora"), ("modules_to_save",) * 2) if config.get(key)]


def _several_factors(config: Mapping[str, Any]) -> bool:
    """Return whether the modules of a LoRA adapter have different factors."""
    ranks, alphas = config["rank_pattern"], config["alpha_pattern"]
    factors = {alphas.get(name, config["lora_alpha"]) / ranks.get(name, config["r"]) for name in {*ranks, *alphas}}
    return not all(math.isclose(factor, config["lora_alpha"] / config["r"]) for factor in factors)

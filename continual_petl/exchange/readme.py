"""README.md of an export, which the Hub shows as its model card: a description, and the lines of Python that use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from continual_petl.exchange.model_card import base_model, new_card
from continual_petl.exchange.readme_code import Code
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import find_kind
from continual_petl.learner.task_plan import TaskPlan


def peft_card(subject: Subject, code: Code, config: Mapping[str, Any]) -> str:
    """Return the text of README.md of an adapter of `peft`.

    Args:
        subject: the task.
        code: the code that uses it.
        config: the adapter's configuration.
    """
    kind, form = subject.plan.kind, config["peft_type"]
    text = f"""An adapter of [peft](https://huggingface.co/docs/peft) ({form}) for a task of kind {kind}, exported by
continual-petl. On the rows in the task's certificate, its outputs match those of the certified bank within 1e-5 in float32.
"""
    text += _in_vllm(config) if find_kind(kind).continues and form == "LORA" else ""
    text += _sampled(subject.plan) + _labels_and_code(subject, code)
    return new_card(base_model(subject.backbone.name), "peft", ("peft", "continual-learning"), subject.plan.name, text)


def checkpoint_card(subject: Subject, code: Code, *, one_by_one: bool) -> str:
    """Return the text of README.md of a merged checkpoint.

    Args:
        subject: the task.
        code: the code that uses it.
        one_by_one: whether its class finds the last token of a text by its id.
    """
    plan = subject.plan
    text = f"""A checkpoint of [transformers](https://huggingface.co/docs/transformers) for a task of kind {plan.kind}: a bank
of continual-petl, merged into its backbone. On the rows in the task's certificate, and on texts with special tokens, empty
ones and long ones, its outputs match those of the certified bank within 1e-5 in float32.
"""
    if one_by_one:
        text += """
Its class finds the last token of a text by its id, so that padding or an end token inside a text would mislead it: pass one
text at a time, as below.
"""
    text += _counted_tokens(plan) + _sampled(plan) + _labels_and_code(subject, code)
    return new_card(base_model(subject.backbone.name), "transformers", ("continual-learning",), plan.name, text)


def _sampled(plan: TaskPlan) -> str:
    if plan.generation is None or not plan.generation.do_sample:
        return ""
    return """
Texts are sampled: `generate` draws other random numbers than continual-petl, whose samples depend only on the seed and the
row.
"""


def _counted_tokens(plan: TaskPlan) -> str:
    """Return a note for a task with options against repetition: `generate` applies them to its input too."""
    spec = plan.generation
    if spec is None or (spec.repetition_penalty == 1 and not spec.no_repeat_ngram_size and not spec.stop):
        return ""
    return """
For `repetition_penalty` and `no_repeat_ngram_size`, `generate` also counts the tokens of the source, or the start token, and
it knows no stop strings from a file: the code below does as in training, a `pipeline` does not.
"""


def _in_vllm(config: Mapping[str, Any]) -> str:
    """Return a note if vLLM does not load a LoRA adapter, or computes something else (vllm/lora/peft_helper.py)."""
    if refused := [name for name, key in (("DoRA", "use_dora"), ("modules_to_save",) * 2) if config.get(key)]:
        return f"\nvLLM does not load it ({', '.join(refused)}): use peft, as below.\n"
    ranks, alphas = config["rank_pattern"], config["alpha_pattern"]
    factors = {alphas.get(name, config["lora_alpha"]) / ranks.get(name, config["r"]) for name in {*ranks, *alphas}}
    if all(math.isclose(factor, config["lora_alpha"] / config["r"]) for factor in factors):
        return ""
    return """
Its modules have different factors (`alpha_pattern`). vLLM ignores `alpha_pattern`, and so would compute something else: use
peft, as below, or learn the task with the same `scale` for all modifications.
"""


def _named(plan: TaskPlan) -> str:
    """Return the words that introduce the labels of a task."""
    if plan.options_from is None:
        return "Labels, in the order of the outputs"
    by = "" if plan.normalise == "none" else f", divided by the option's number of {plan.normalise}"
    return (
        "The prediction is the option with the highest sum of log-probabilities of its tokens, the end token included, after "
        f"the text{by}"
    )


def _labels_and_code(subject: Subject, code: Code) -> str:
    labels = subject.plan.labels
    labels_line = "" if labels is None else f"\n{_named(subject.plan)}: {', '.join(map(repr, labels))}.\n"
    if find_kind(subject.plan.kind).chooses:
        labels_line = "\nThe prediction is the option with the highest output. Each row has its own options.\n"
    elif subject.plan.options_from == "row":
        labels_line = f"\n{_named(subject.plan)}. Each row has its own options.\n"
    return f"{labels_line}\n```python\n{code.text}\n```\n"


def adapters_card(subject: Subject, code: Code) -> str:
    """Return the text of README.md of an adapter of `adapters`.

    Args:
        subject: the task.
        code: the code that uses it.
    """
    plan = subject.plan
    text = f"""An adapter of [adapters](https://docs.adapterhub.ml) 1.3 for a task of kind {plan.kind}, exported by
continual-petl. On the rows in the task's certificate, its outputs match those of the certified bank within 1e-5 in float32.
"""
    if subject.bank.prefixes():
        text += """
Load the model with `attn_implementation="eager"`, as below: with sdpa, adapters 1.3 hides prefixes from a decoder's tokens.
"""
    text += _sampled(plan) + _labels_and_code(subject, code)
    tags = ("adapter-transformers", "continual-learning")
    return new_card(base_model(subject.backbone.name), "adapter-transformers", tags, plan.name, text)

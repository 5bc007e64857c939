"""Compares two runs task by task: returns plain values, read only from certificates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continual_petl.banks.config.presets import changes_in_words
from continual_petl.learner.task_plan import unlike
from continual_petl.report.task_settings import flat
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.store import Store

_BESIDE_THE_PLAN = {"max_length", "parameters", "preparation", "parent", "start", "reads"}
"""Keys of a certificate that are compared in addition to its plan."""


def differences(one: Store, other: Store) -> dict[str, Any]:
    """Return the differences between two runs.

    Returns:
        ``same``: whether they hold the same tasks, in the same order, with the same backbone, specifications, banks, data
        and scores. ``backbone``: whether it is the same, and ``backbones``: both, by name and digest. ``order``: whether the
        shared tasks were learned in the same order. ``only``: for each run the tasks that the other one lacks. ``tasks``:
        for each shared task the result of `_compared`.
    """
    tasks = one.tasks, other.tasks
    sets = set(tasks[0]), set(tasks[1])
    shared = [task for task in tasks[0] if task in sets[1]]
    pins = [store.pinned() for store in (one, other)]
    digests = [None if pinned is None else pinned.digest for pinned in pins]
    only = [[task for task in tasks[n] if task not in sets[1 - n]] for n in (0, 1)]
    compared = {task: _compared(one.certificate(task), other.certificate(task)) for task in shared}
    result = {
        "backbone": digests[0] == digests[1],
        "backbones": [None if pinned is None else {"name": pinned.name, "digest": pinned.digest} for pinned in pins],
        "order": shared == [task for task in tasks[1] if task in sets[0]],
        "only": only,
        "tasks": compared,
    }
    same = result["backbone"] and result["order"] and not any(only)
    return {"same": bool(same and all(comparison["same"] for comparison in compared.values())), **result}


def _compared(one: Certificate, other: Certificate) -> dict[str, Any]:
    """Return the differences between one task's two banks.

    Returns:
        ``same``: whether nothing differs except ``environment``; ``bank``: whether it is the same, bit for bit; ``tensors``:
        how many differ, and how many there are; ``specification``, ``data``, ``scores``, ``environment``: the differences,
        by name, with both values; ``answers``: by split, whether the predictions are the same; ``score``: both reported
        scores.
    """
    names = one.tensors.keys() | other.tensors.keys()
    other_tensors = sum(one.tensors.get(name) != other.tensors.get(name) for name in names)
    splits = [split for split in one.scores if split in other.scores]
    answers = {split: one.scores[split].predictions == other.scores[split].predictions for split in splits}
    comparison = {
        "bank": one.digest == other.digest,
        "tensors": [other_tensors, len(names)],
        "specification": _unlike(_specification(one), _specification(other)),
        "data": _unlike(one.data, other.data),
        "scores": _unlike(_scores(one), _scores(other)),
        "answers": answers,
    }
    same = comparison["bank"] and not (comparison["specification"] or comparison["data"] or comparison["scores"])
    return {
        "same": bool(same and all(answers.values())),
        **comparison,
        "score": [certificate.score for certificate in (one, other)],
        "metric": [f"{certificate.metric} on {certificate.counted_split}" for certificate in (one, other)],
        "environment": _unlike(_environment(one), _environment(other)),
    }


def _environment(certificate: Certificate) -> dict[str, Any]:
    trained = certificate.training_attention or certificate.environment.attention
    return {**flat(certificate.environment.model_dump(), "."), "training_attention": trained}


def _specification(certificate: Certificate) -> dict[str, Any]:
    """Return the specification of a bank, without its position in the chain or values derived from its tensors."""
    tree = {**certificate.settings, **certificate.model_dump(mode="json", include=_BESIDE_THE_PLAN)}
    modifications = tree["bank"].pop("modifications")
    words = changes_in_words(certificate.bank)
    # If the modifications differ, so do all their details, and only their descriptions are listed (see `_unlike`).
    details = {
        f"bank.modifications.{n}.{key}": v
        for n, modification in enumerate(modifications)
        for key, v in modification.items()
    }
    return {**flat(tree, "."), "bank.modifications": words, **details}


def _scores(certificate: Certificate) -> dict[str, Any]:
    return {f"{split}.{name}": v for split, score in certificate.scores.items() for name, v in score.scores.items()}


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    pairs = unlike(one, other)
    if "bank.modifications" in pairs:
        pairs = {name: both for name, both in pairs.items() if not name.startswith("bank.modifications.")}
    return pairs

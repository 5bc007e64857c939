"""Versions of the defaults of a stream: preset names, open settings, held-out rows.

A run keeps the defaults that it was started with, so that a stopped or later task is learned like the run's first tasks.
Streams of releases that had no key ``defaults`` use version 1:

1. ``mam`` had a prefix without an MLP, now called ``mam_flat``; the learning rate and epochs of a bank with any option but
   its size were those of its first modification's form; validation rows were held out of train regardless of their
   labels.
2. ``mam`` is as published; a preset keeps its recipe whatever its options are; validation rows are stratified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from continual_petl.banks.config.choice import BankChoice

FIRST, NEWEST = 1, 2
_RENAMED = {"mam": "mam_flat"}


def as_first_named(bank: Any) -> Any:
    """Return a bank of the first defaults, given as a choice or in a file, under its current preset name."""
    if isinstance(bank, BankChoice):
        return bank.model_copy(update={"preset": _RENAMED[bank.preset]}) if bank.preset in _RENAMED else bank
    if isinstance(bank, str):
        return _RENAMED.get(bank, bank)
    if isinstance(bank, Mapping) and isinstance(name := bank.get("preset"), str):
        return {**bank, "preset": _RENAMED.get(name, name)}
    return bank


def as_written_first(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a stream file of the first defaults, with current preset names."""
    read = {**tree, "bank": as_first_named(tree["bank"])} if "bank" in tree else dict(tree)
    if isinstance(tasks := tree.get("tasks"), (list, tuple)):
        read["tasks"] = [_task(task) for task in tasks]
    return read


def _task(task: Any) -> Any:
    if isinstance(task, BaseModel):
        return task.model_copy(update={"bank": as_first_named(getattr(task, "bank", None))})
    return {**task, "bank": as_first_named(task["bank"])} if isinstance(task, Mapping) and "bank" in task else task

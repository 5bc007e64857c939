"""Divide and limit a task's rows by a hash of their content, so that their order in a file has no effect."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError, counted
from continual_petl.kind_registry import kind_of
from continual_petl.seeding import derive_seed
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.preparation.stratified import held_out
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

_FEW = 20
"""Number of rows below which a notice is given: a single row then changes the accuracy by more than five points."""
_BY_DATA_ALONE = 3
"""Since this version of the defaults, the choice of rows does not depend on the task's name."""
_SHOWN = 10
"""Maximum number of labels listed with their row counts in a notice."""


def hold_out(spec: StreamSpec, task: TaskSpec, train: Checked) -> tuple[Checked, Checked]:
    """Divide train into train and validation by the hash of the inputs; equal inputs stay together.

    If the kind allows it, validation is stratified (see `stratified`).

    Raises:
        InputError: if there are too few different inputs.
    """
    ranks = _ranks(train.keys, _seed(spec, task, "validation"))
    wanted = max(1, round(task.validation * len(train)))
    inside = np.zeros(len(train), dtype=np.bool_)
    groups = np.unique(ranks, return_inverse=True)[1]
    strata = kind_of(task).strata(train.answers, groups, wanted)
    if strata is not None:
        inside = held_out(strata, groups, wanted)
    if not inside.any():
        # Also if each label has a single input: whichever input is held out, one label is then missing from train.
        inside = ranks <= np.sort(ranks)[wanted - 1]
    if inside.all():
        what = "images" if kind_of(task).reads_images else "texts"
        raise InputError(
            f"task {task.name!r}: there is no validation split, and none can be held out from {len(train)} training rows "
            f"with {len(set(train.keys))} different {what} (validation: {task.validation}); add rows or a validation "
            "split."
        )
    return train.take(np.flatnonzero(~inside)), train.take(np.flatnonzero(inside))


def held_out_notice(task: TaskSpec, labels: tuple[str, ...] | None, validation: Checked) -> str:
    """Return a notice with the number of rows that were held out, in total and per label."""
    rows = counted(len(validation), "training row")
    held = f"{rows} {'was' if len(validation) == 1 else 'were'} held out for validation"
    if labels is not None and not kind_of(task).per_word:
        counts = validation.label_counts(len(labels)).tolist()
        shown = ", ".join(f"{label}: {count}" for label, count in zip(labels[:_SHOWN], counts, strict=False))
        rest = counts[_SHOWN:]
        more = f", and {counted(len(rest), 'more label')} with {_span(rest)}" if rest else ""
        held += f" (label {shown}{more})"
    return f"task {task.name!r}: no validation split is given; {held}."


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{high} each" if low == high else f"{low} to {high} each"


def limited(spec: StreamSpec, task: TaskSpec, name: str, split: Checked) -> Checked:
    """Keep as many rows as the limits of split ``name`` allow, chosen by hash, in their original order."""
    limit: int = getattr(task.limits, name) or len(split)
    per_label = task.limits.per_label if name == "train" else None
    if limit >= len(split) and per_label is None:
        return split
    whole = [f"{key}\t{answer}" for key, answer in zip(split.keys, split.names, strict=True)]
    order = np.argsort(_ranks(whole, _seed(spec, task, "limit", name)), kind="stable")
    if per_label is not None:
        counts: Counter[str] = Counter()
        kept = []
        for row in order:
            counts[split.names[row]] += 1
            if counts[split.names[row]] <= per_label:
                kept.append(row)
        order = np.array(kept)
    return split.take(np.sort(order[:limit]))


def few_notice(task: TaskSpec, splits: Mapping[str, Checked]) -> str | None:
    """Return a notice if the reported scores are based on too few rows to be meaningful."""
    name = "test" if "test" in splits else "validation"
    if (count := len(splits[name])) >= _FEW:
        return None
    rest_on = counted(count, f"{name} row")
    return f"task {task.name!r}: its score is measured on only {rest_on}, which says little about other rows."


def _seed(spec: StreamSpec, task: TaskSpec, *purpose: str) -> int:
    """Return the seed of a choice of rows: the same for all tasks of a stream, so that banks on the same data compare."""
    return (
        derive_seed(spec.seed, *purpose)
        if spec.defaults >= _BY_DATA_ALONE
        else derive_seed(spec.seed, task.name, *purpose)
    )


def _ranks(contents: list[str], seed: int) -> NDArray[np.uint64]:
    key = seed.to_bytes(8, "big")
    digests = b"".join(hashlib.blake2b(content.encode(), digest_size=8, key=key).digest() for content in contents)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)

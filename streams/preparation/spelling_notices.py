"""Notices about labels and numbers that are spelled in several ways; see `continual_petl.spelling`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from continual_petl.errors import counted, did_you_mean
from continual_petl.spelling import differing, is_plain_number, likeness, visibly
from continual_petl.streams.sources.checks import SHOWN, Fault, show

_SHOWN = 5


def labels_notice(task: str, labels: tuple[str, ...], counts: Sequence[int]) -> str | None:
    """Return a notice if labels differ only in white space, case, Unicode form or the spelling of a number.

    Args:
        task: name of the task.
        labels: its labels or options.
        counts: how often each of them is used, in all splits.
    """
    groups = differing(labels)
    if not groups:
        return None
    often = dict(zip(labels, counts, strict=True))
    shown = "; ".join(
        " and ".join(f"{visibly(label)} ({often[label]:,})" for label in group) for group in groups[:_SHOWN]
    )
    more = f"; and {counted(len(groups) - _SHOWN, 'more group')}" if len(groups) > _SHOWN else ""
    return (
        f"task {task!r}: labels differ only in white space, case, Unicode form or the spelling of a number, and are learned "
        f"as different labels: {shown}{more}. The numbers in brackets count their uses in all splits; if they mean the "
        "same, write them alike in the data."
    )


def numbers_notice(task: str, splits: Mapping[str, Sequence[Any]]) -> str | None:
    """Return a notice if targets are spelled in a way that only Python reads as numbers, such as 1_000 or full-width digits.

    Args:
        task: name of the task.
        splits: the targets of every split, as read.
    """
    odd = {
        name: [v for v in values if isinstance(v, str) and not is_plain_number(v)] for name, values in splits.items()
    }
    found = [value for values in odd.values() for value in values]
    if not found:
        return None
    rows = ", ".join(f"{len(values)} of {len(splits[name])} {name}" for name, values in odd.items() if values)
    shown = ", ".join(f"{visibly(text)} as {float(text)!r}" for text in [*dict.fromkeys(found)][:_SHOWN])
    return (
        f"task {task!r}: {rows} targets are numbers in an unusual spelling, which other programs may read differently or not "
        f"at all: {shown}. Check that this is what they mean."
    )


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown label: a known one that differs only in spelling, or else the most similar one."""
    alike = next((other for other in known if likeness(other) == likeness(name)), None)
    if alike is not None:
        return f" (nearly {visibly(alike)}: write both alike)"
    return "" if is_plain_number(name) else did_you_mean(name, known)  # 12 is not a misspelled 1


def unknown_faults(names: Iterable[tuple[int, str]], known: Collection[str], what: str) -> list[Fault]:
    """Return a fault for each unknown label, with a hint for those that a message shows: comparing labels is slow.

    Args:
        names: rows and their labels.
        known: the known labels.
        what: the kind of label, or nothing.
    """
    faults: list[Fault] = []
    for row, name in names:
        if name not in known:
            hint = nearest(name, known) if len(faults) < SHOWN else ""
            text = f"{what} {show(name)} is unknown" if what else show(name)
            faults.append(Fault(row=row, what=f"{text}{hint}"))
    return faults

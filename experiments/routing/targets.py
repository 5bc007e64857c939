"""The targets of the study: what was aimed for, what was reached, and what limits the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.routing.result import Part, Result
from experiments.routing.words import METHODS, STREAMS, percent, share

Row = tuple[str, str, str, str]
"""What was measured, the target, the result, and whether the target is met."""
AUROC, FOUND, ROUTED, CLASSES, BYTES, LOSS = 0.98, 0.6, 0.985, 0.96, 100_000, 0.003


def targets(results: Mapping[Part, Result]) -> str:
    """Return the table of targets."""
    return grid(["", "target", "found", ""], [list(row) for row in _rows(results)])


def limits(results: Mapping[Part, Result]) -> str:
    """Return a list that explains what limits the results."""
    shown = [f"* {STREAMS[part]}: {_limit(results[part].found)}." for part in STREAMS if part in results]
    return "What limits the results:\n\n" + "\n".join(shown)


def of_form(ablation: Sequence[dict[str, Any]], form: str) -> dict[str, Any]:
    """Return the row of an ablation with the statistics that a form has if nothing else is said."""
    return next(row for row in ablation if row["form"] == form)


def _rows(results: Mapping[Part, Result]) -> list[Row]:
    rows = _of_unknown(results)
    if (classic := results.get("classic")) is not None:
        routed = classic.found["end"]["routing"]
        rows.append(("classic five: routed", percent(ROUTED), percent(routed), _met(routed >= ROUTED)))
    if (classes := results.get("classes")) is not None:
        end, probe = classes.found["end"], classes.found["which_class"]["probe"]["test"]
        ceilings = f"joint linear probe: {percent(probe)}"
        if (joint := results.get("joint")) is not None:
            ceilings += f", one bank on all classes: {percent(joint.found['test'])}"
        right = f"{percent(end['accuracy_of_all_rows'])} ({ceilings})"
        text = "CLINC150, split by class: correct, on the official full split"
        rows.append((text, percent(CLASSES), right, "**not comparable**: measured on a part of the rows"))
    for part in STREAMS:
        if part in results:
            rows += _of_stream(STREAMS[part], results[part].found)
    return rows


def _of_unknown(results: Mapping[Part, Result]) -> list[Row]:
    rows: list[Row] = []
    found = list[tuple[str, dict[str, Any], dict[str, Any]]]()
    if (classes := results.get("classes")) is not None:
        found += _groups("CLINC150, {}", classes.found["ablation"], classes.found["stored"])
    if (long := results.get("long")) is not None:
        found += _groups("classic five, {} of other tasks", long.found["classic"], long.found["stored"])
    for text, first, own in found:
        auroc, auroc_before = own["auroc"], first["auroc"]
        many, many_before = own["exact"]["0.01"]["found"], first["exact"]["0.01"]["found"]
        before = f"{share(auroc)} (first format: {share(auroc_before)})"
        rows.append((f"{text}: AUROC", share(AUROC), before, _met(auroc >= AUROC)))
        before = f"{percent(many)} (first format: {percent(many_before)})"
        rows.append((f"{text}: found, if 1 % of own rows are rejected", percent(FOUND), before, _met(many >= FOUND)))
    return rows


def _groups(
    text: str, ablation: Sequence[dict[str, Any]], form: str
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return each group of foreign rows, with what the first format and a form of today make of it."""
    first, own = of_form(ablation, "first")["unknown"]["states"], of_form(ablation, form)["unknown"]["both"]
    for group in own:
        yield text.format(group), first[group], own[group]


def _of_stream(name: str, found: Mapping[str, Any]) -> list[Row]:
    forms = found["forms"]
    first, full, compact, own = forms["first"], forms["full"], forms["compact"], forms[found["stored"]]
    size, lost = compact["bytes"]["most"], max(full[key] - compact[key] for key in ("routing", "nearest"))
    worse = max(first[key] - own[key] for key in ("routing", "nearest"))
    return [
        (f"{name}: compact statistics of a task, at most", _kilobytes(BYTES), _kilobytes(size), _met(size <= BYTES)),
        (f"{name}: lost by them, routed or correct", _points(LOSS), _points(lost), _met(lost <= LOSS)),
        (f"{name}: worse than the first format, routed or correct", _points(0.0), _points(worse), _met(worse <= 0)),
    ]


def _limit(found: Mapping[str, Any]) -> str:
    """Say which tasks are confused most often, and what the best classifier on the same states reaches."""
    confused: Counter[tuple[str, str]] = Counter()
    for task in found["tasks"]:
        for other, count in task["chosen"].items():
            if other != task["task"]:
                confused[min(task["task"], other), max(task["task"], other)] += count
    count = sum(task["rows"]["test"] for task in found["tasks"])
    worst = [f"{first} and {second} ({number})" for (first, second), number in confused.most_common(3)]
    why = f"{confused.total()} of {count} rows are routed to another task"
    why += f", mostly between {', '.join(worst)}" if worst else ""
    others = found.get("which_task") or found["which_class"]
    best = max((name for name in METHODS if name in others), key=lambda name: float(others[name]["validation"]))
    return (
        f"{why}; on the same states, the classifier with the best validation accuracy is {METHODS[best]}, with "
        f"{percent(others[best]['test'])} of test rows {'routed' if 'which_task' in found else 'correct'}"
    )


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _points(lost: float) -> str:
    # A single row of some tasks is a third of a point: one digit would hide which side of the target it is on.
    return f"{100 * lost + 0.0:.2f} points"


def _kilobytes(count: float) -> str:
    return f"{count / 1000:.0f} kB"

"""The targets of the study: what was wanted, what was reached, and what limits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.routing.result import Part, Result
from experiments.routing.words import percent, points

Row = tuple[str, str, str, bool, str]


def targets(results: Mapping[Part, Result]) -> str:
    """Return the table of targets."""
    rows: list[Row] = []
    if (classic := results.get("classic")) is not None:
        rows += _classic(classic.found)
    if (long := results.get("long")) is not None:
        rows += _long(long.found)
    if (classes := results.get("classes")) is not None:
        rows += _classes(classes.found)
    shown = [[text, wanted, found, "met" if met else "**missed**", why] for text, wanted, found, met, why in rows]
    return grid(["", "target", "found", "", "what limits it"], shown)


def _classic(found: dict[str, Any]) -> list[Row]:
    end = found["end"]
    rows = [_routing("routing accuracy, classic five", end["routing"], 0.985, found)]
    for name, text in (("nearest", "most probable task"), ("reject", "unknown rows get no prediction")):
        loss = end["named"] - end[name]
        why = "rows that find another task" if name == "nearest" else "rows that find another task, and unknown rows"
        rows.append((f"accuracy below named, {text}", "1.0 points", points(loss), loss <= 0.01, why))
    return rows


def _long(found: dict[str, Any]) -> list[Row]:
    unknown = found["unknown"]
    hardest = sorted(unknown["by_task"].items(), key=lambda each: float(each[1]))[:2]
    why = "closest to learned tasks: " + ", ".join(f"{name} {value:.3f}" for name, value in hardest)
    return [
        _routing("routing accuracy, long stream", found["end"]["routing"], 0.96, found),
        ("AUROC of unknown rows", "0.970", f"{unknown['auroc']:.3f}", unknown["auroc"] >= 0.97, why),
    ]


def _classes(found: dict[str, Any]) -> list[Row]:
    end, others = found["end"], found["which_class"]
    own = end["accuracy_of_all_rows"]
    why = f"{percent(end['routing'])} find their task, and {percent(end['within_task'])} of those their class"
    wanted = others["ranpac"]["test"] + 0.01
    return [
        ("class-incremental CLINC150, RanPAC and 1 point", percent(wanted), percent(own), own >= wanted, why),
        (
            "class-incremental CLINC150, joint linear probe",
            percent(others["probe"]["test"]),
            percent(own),
            own > others["probe"]["test"],
            why,
        ),
    ]


def _routing(text: str, reached: float, wanted: float, found: dict[str, Any]) -> Row:
    """Return the row of a routing target; it is limited by the pairs of tasks that most rows are confused in."""
    confused: Counter[tuple[str, str]] = Counter()
    for task in found["tasks"]:
        for other, count in task["chosen"].items():
            if other != task["task"]:
                confused[min(task["task"], other), max(task["task"], other)] += count
    total = sum(confused.values())
    worst = [f"{first} and {second} {count}" for (first, second), count in confused.most_common(2) if count]
    why = f"{total} rows find another task: {', '.join(worst)}" if total else "nothing"
    return text, percent(wanted), percent(reached), reached >= wanted, why

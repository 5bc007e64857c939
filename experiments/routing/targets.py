"""The targets of the study: what was aimed for, what was reached, and what limits the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.routing.result import Part, Result
from experiments.routing.words import METHODS, percent, points

Row = tuple[str, str, str, bool, str]
"""What was measured, the target, the result, whether the target is met, and what limits the result."""


LONG_TARGETS = (("routing accuracy, long stream", percent(0.96)), ("AUROC of unknown rows", "0.970"))


def targets(results: Mapping[Part, Result]) -> str:
    """Return the table of targets."""
    shown = [[text, wanted, found, "met" if met else "**missed**"] for text, wanted, found, met, _ in _rows(results)]
    if "long" not in results:
        shown += [[text, wanted, "-", "not measured"] for text, wanted in LONG_TARGETS]
    return grid(["", "target", "found", ""], shown)


def limits(results: Mapping[Part, Result]) -> str:
    """Return a list that explains what limits each result."""
    return "What limits the results:\n\n" + "\n".join(f"* {text}: {why}." for text, _, _, _, why in _rows(results))


def _rows(results: Mapping[Part, Result]) -> list[Row]:
    rows: list[Row] = []
    if (classic := results.get("classic")) is not None:
        rows += _classic(classic.found)
    if (long := results.get("long")) is not None:
        rows += _long(long.found)
    if (classes := results.get("classes")) is not None:
        rows += _classes(classes.found)
    return rows


def _classic(found: dict[str, Any]) -> list[Row]:
    end = found["end"]
    rows = [_routing("routing accuracy, classic five", end["routing"], 0.985, found)]
    for name, text in (("nearest", "the most probable task predicts"), ("reject", "unknown rows get no prediction")):
        loss = end["named"] - end[name]
        astray, count = _astray(found)
        why = f"{astray} of {count} rows are routed to another task"
        if name == "reject":
            why += f", and {sum(task['unknown'] for task in found['tasks'])} count as unknown"
        label = f"accuracy lost compared with naming the task, `{name}` ({text})"
        rows.append((label, "1.0 points", points(loss), loss <= 0.01, why))
    return rows


def _long(found: dict[str, Any]) -> list[Row]:
    unknown = found["unknown"]
    hardest = sorted(unknown["by_task"].items(), key=lambda each: float(each[1]))[:2]
    why = "lowest for " + " and ".join(f"{name} ({value:.3f})" for name, value in hardest)
    return [
        _routing("routing accuracy, long stream", found["end"]["routing"], 0.96, found),
        ("AUROC of unknown rows", "0.970", f"{unknown['auroc']:.3f}", unknown["auroc"] >= 0.97, why),
    ]


def _classes(found: dict[str, Any]) -> list[Row]:
    end, others = found["end"], found["which_class"]
    own = end["accuracy_of_all_rows"]
    routed, right = percent(end["routing"]), percent(end["within_task"])
    why = f"{routed} of the rows are routed to their task, and {right} of these get the correct class"
    wanted = others["ranpac"]["test"] + 0.01
    return [
        (
            "class-incremental CLINC150, compared with RanPAC plus 1 point",
            percent(wanted),
            percent(own),
            own >= wanted,
            why,
        ),
        (
            "class-incremental CLINC150, compared with the joint linear probe",
            percent(others["probe"]["test"]),
            percent(own),
            own > others["probe"]["test"],
            why,
        ),
    ]


def _routing(text: str, reached: float, wanted: float, found: dict[str, Any]) -> Row:
    """Return the row for a routing target; its explanation names the pairs of tasks that are confused most often."""
    confused: Counter[tuple[str, str]] = Counter()
    for task in found["tasks"]:
        for other, count in task["chosen"].items():
            if other != task["task"]:
                confused[min(task["task"], other), max(task["task"], other)] += count
    total, count = _astray(found)
    worst = [f"{first} and {second} ({number})" for (first, second), number in confused.most_common(3)]
    why = f"{total} of {count} rows are routed to another task" + (
        f", mostly between {', '.join(worst)}" if worst else ""
    )
    best = max(
        (name for name in METHODS if name in found["which_task"]), key=lambda name: _share(found, name, "validation")
    )
    why += f"; on the same states, the classifier with the best validation accuracy is {METHODS[best]}, with "
    why += f"{percent(_share(found, best, 'test'))} on test rows"
    return text, percent(wanted), percent(reached), reached >= wanted, why


def _astray(found: dict[str, Any]) -> tuple[int, int]:
    count = sum(task["rows"]["test"] for task in found["tasks"])
    return count - sum(task["chosen"].get(task["task"], 0) for task in found["tasks"]), count


def _share(found: dict[str, Any], name: str, split: str) -> float:
    return float(found["which_task"][name][split])

"""The page of the study, generated from its raw results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.routing.result import Part, Result
from experiments.routing.targets import limits, targets
from experiments.routing.words import INTRODUCTION, METHODS, NOTES, TITLES, percent, points


def page(results: Mapping[Part, Result]) -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    for part, title in TITLES.items():
        if part not in results:
            parts.append(
                f"**Not measured yet: {title}.** `python -m experiments.routing --data FOLDER --only {part}` adds it."
            )
    if results:
        parts += ["## Targets", targets(results), limits(results)]
    if (result := results.get("classic")) is not None:
        parts += _classic(result)
    if (result := results.get("long")) is not None:
        parts += _long(result)
    if (result := results.get("classes")) is not None:
        parts += _classes(result)
    if (result := results.get("models")) is not None:
        parts += _models(result, results.get("classic"))
    if results:
        parts += ["## Where the numbers come from", NOTES, *(_circumstances(result) for result in results.values())]
    return "\n\n".join(parts) + "\n"


def _classic(result: Result) -> list[str]:
    found = result.found
    equal = "identically, bit for bit" if found["equal_bit_for_bit"] else "**differently**"
    rows = [
        [
            str(number),
            ", ".join(order["tasks"]),
            *(percent(_routing_after(order, count)) for count in range(2, len(order["tasks"]))),
            percent(order["routing_accuracy"]),
            percent(order["accuracy"]),
            points(order["routing_loss"]),
            percent(order["average_incremental_accuracy"]),
        ]
        for number, order in enumerate(found["orders"], 1)
    ]
    after = [f"routing after {count}" for count in range(2, len(found["tasks"]) + 1)]
    header = ["order", "tasks", *after, "accuracy", "routing loss", "average incremental accuracy"]
    last = {(order["routing_accuracy"], order["accuracy"]) for order in found["orders"]}
    return [
        f"## {TITLES['classic']}",
        _end(found),
        "### By task",
        _by_task(found),
        "### Which task rows are routed to",
        _confusion(found),
        "### Three orders",
        "Nothing is learned again, since a bank does not depend on the order. After each task, the router is built from the "
        "routing statistics of the tasks so far. Accuracies are those of `nearest`.",
        grid(header, rows),
        f"After all five tasks, the routers of all orders score every test row {equal}; "
        + (
            "accuracy and routing accuracy have a variance of exactly 0 over the orders."
            if len(last) == 1
            else "**the numbers differ.**"
        ),
        "### Predicting the task: other classifiers on the same states",
        _compared(found["which_task"]),
        "### With the confidence of banks",
        _with_banks(found["with_banks"]),
    ]


def _models(result: Result, classic: Result | None) -> list[str]:
    found = result.found
    sequential = found["sequential"]
    rows = [
        ["joint training", percent(found["joint"]), "-"],
        ["sequential fine-tuning", percent(sequential["acc"]), points(sequential["learned"] - sequential["acc"])],
    ]
    if classic is not None:
        end = classic.found["end"]
        rows += [
            ["banks, task named", percent(end["named"]), "0.0 points"],
            ["banks, task found by the router", percent(end["nearest"]), "0.0 points"],
        ]
    return [
        f"## {TITLES['models']}",
        "All weights of the backbone are trained, with one head per task, on the same rows for the same number of epochs; "
        f"the task of each row is given. The learning rate, {found['rate']:g}, is the one of {', '.join(found['rates'])} at "
        "which joint training has the best validation score. *Loss* is the mean of the scores right after each task was "
        "learned, minus the mean at the end.",
        grid(["", "mean test score at the end", "loss"], rows),
    ]


def _long(result: Result) -> list[str]:
    found = result.found
    unknown = found["unknown"]
    named = [
        [name, percent(unknown["rejected"][name]), f"{value:.3f}"] for name, value in sorted(unknown["by_task"].items())
    ]
    return [
        f"## {TITLES['long']}",
        _end(found),
        "### By task",
        _by_task(found),
        "### Which task rows are routed to",
        _confusion(found),
        "### Predicting the task: other classifiers on the same states",
        "Here and above, a row is compared only with tasks that take rows of its type: a text, or a pair of texts.",
        _compared(found["which_task"]),
        "### Rows of tasks that were never learned",
        f"Test rows of the other tasks, sent to a router that knows the classic five. AUROC of the distance relative to the "
        f"threshold: {unknown['auroc']:.3f} for tasks on single texts. Rows of {', '.join(unknown['first_texts'])} are "
        f"pairs, which a run without tasks on pairs refuses; with their first texts as rows, AUROC is "
        f"{unknown['auroc_with_first_texts']:.3f}. Of the test rows of the five tasks, "
        f"{percent(unknown['rejected_of_learned'])} are rejected.",
        grid(["rows of", "rejected", "AUROC"], named),
    ]


def _classes(result: Result) -> list[str]:
    found = result.found
    end = found["end"]
    return [
        f"## {TITLES['classes']}",
        _end(found),
        f"Over all rows, whatever their task, {percent(end['accuracy_of_all_rows'])} are correct. Average incremental "
        f"accuracy (Rebuffi et al. 2017): {percent(end['average_incremental_accuracy'])}.",
        "### By task",
        _by_task(found),
        "### Predicting the class: other classifiers on the same states",
        "Share of all test rows with the correct class. The first line is the run end to end: the router finds the task, and "
        "the task's bank finds the class. All others choose among the 150 classes without any bank.",
        _compared(
            found["which_class"], ("router and banks", end["accuracy_of_all_rows"], found["validation"]["nearest"])
        ),
        "### Predicting the task: other discriminants",
        _compared(found["which_task"]),
        "### With the confidence of banks",
        _with_banks(found["with_banks"]),
    ]


def _end(found: dict[str, Any]) -> str:
    end, validation = found["end"], found["validation"]
    names = {
        "named": "correct if the task is named",
        "nearest": "correct with `nearest` (the most probable task predicts)",
        "reject": "correct with `reject` (unknown rows get no prediction)",
        "routing": "routed to their task",
        "within_task": "correct among those routed to their task",
        "unknown": "counted as unknown",
    }
    rows = [[text, percent(end[name]), percent(validation[name])] for name, text in names.items()]
    same = "are" if found["same_as_measured"] else "**are not**"
    return "\n\n".join(
        [
            grid(["share of rows, mean over tasks", "test", "validation"], rows),
            f"Routing loss: {points(end['routing_loss'])}. The counts {same} the same as those that the run itself measured "
            "after each task.",
        ]
    )


def _by_task(found: dict[str, Any]) -> str:
    rows = []
    for task in found["tasks"]:
        count = task["rows"]["test"]
        own = task["chosen"].get(task["task"], 0)
        graded = task["named"] is not None
        other = next(iter(sorted(task["scores"].items())))
        rows.append(
            [
                task["task"],
                str(task["rows"]["train"]),
                str(task["means"]),
                percent(task["named"] / count) if graded else f"{other[0]} {other[1]:.2f}",
                percent(own / count),
                percent(task["correct_own"] / own) if graded and own else "-",
                percent(task["correct"] / count) if graded else "-",
                percent(task["correct_known"] / count) if graded else "-",
                percent(task["unknown"] / count),
            ]
        )
    header = ["task", "rows", "means", "named", "routing", "within task", "nearest", "reject", "unknown"]
    return grid(header, rows)


def _confusion(found: dict[str, Any]) -> str:
    names = [task["task"] for task in found["tasks"]]
    rows = [[task["task"], *(str(task["chosen"].get(name, 0)) for name in names)] for task in found["tasks"]]
    return grid(["rows of", *names], rows)


def _compared(found: dict[str, Any], first: tuple[str, float, float] | None = None) -> str:
    rows = [] if first is None else [[first[0], percent(first[1]), percent(first[2]), "-"]]
    rows += [
        [
            METHODS[name],
            percent(found[name]["test"]),
            percent(found[name]["validation"]),
            _setting(found[name]["setting"]),
        ]
        for name in METHODS
        if name in found
    ]
    return grid(["", "test", "validation", "setting"], rows)


def _setting(setting: dict[str, float]) -> str:
    words = [f"{name} {value:g}" for name, value in setting.items() if name != "standardised"]
    words += ["standardised"] if setting.get("standardised") else []
    return ", ".join(words) or "-"


def _with_banks(found: dict[str, Any]) -> str:
    rows = [
        [
            name,
            percent(found[key]["without"]),
            percent(found[key]["with"]),
            points(found[key]["with"] - found[key]["without"]),
            ", ".join(f"{weight:g}" for weight in found[key]["weights"]),
        ]
        for name, key in (("routed to their task", "routing"), ("correct", "accuracy"))
    ]
    return "\n\n".join(
        [
            f"Tried once, on the {found['routing']['rows']} validation rows only; not part of the library. The "
            f"{found['candidates']} most probable tasks are scored by log p(task) + w log max p(label | bank of the task), "
            "with w chosen on one half of the rows and evaluated on the other, and vice versa.",
            grid(["share of rows", "router", "router and banks", "gain", "w"], rows),
        ]
    )


def _routing_after(order: dict[str, Any], count: int) -> float:
    shares: Sequence[float] = order["routing"][count - 1][:count]
    return sum(shares) / count


def _circumstances(result: Result) -> str:
    machine = result.machine
    software = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
    changed = " with changes" if result.changed else ""
    return (
        f"* {TITLES[result.part]}: `{result.command}`, {result.began} UTC, commit {result.commit[:12]}{changed}, seed "
        f"{result.seed}. {machine.processor}, {machine.threads} "
        f"{'thread' if machine.threads == 1 else 'threads'}. {software}."
    )

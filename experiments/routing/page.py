"""The page of the study, generated from its raw results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.routing.result import Part, Result
from experiments.routing.targets import limits, of_form, targets
from experiments.routing.words import (
    CLASSIFIERS_OF_CLASSES,
    CLASSIFIERS_OF_TASKS,
    EVIDENCE,
    FORMATS,
    FORMS,
    INTRODUCTION,
    METHODS,
    MODELS,
    NOTES,
    READING,
    STREAMS,
    TITLES,
    UNKNOWN_CLASSES,
    UNKNOWN_CLASSIC,
    percent,
    points,
    share,
)


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
        parts += ["## First format and today's statistics", FORMATS, _formats(results)]
        parts += ["## How to read the tables of each stream", READING]
    for part in STREAMS:
        if part in results:
            parts += _stream(part, results[part], results.get("joint"))
    if (result := results.get("models")) is not None:
        parts += _models(result, results.get("classic"))
    if results:
        parts += ["## Where the numbers come from", NOTES, *(_circumstances(result) for result in results.values())]
    return "\n\n".join(parts) + "\n"


def _formats(results: Mapping[Part, Result]) -> str:
    names = ("named", "routing", "nearest", "reject", "unknown")
    rows = [
        [
            STREAMS[part],
            FORMS[form] + (" (stored)" if form == results[part].found["stored"] else ""),
            _layers(own["layers"]),
            f"{own['bytes']['mean'] / 1000:.0f}",
            *(percent(own[name]) for name in names),
        ]
        for part in STREAMS
        if part in results
        for form, own in results[part].found["forms"].items()
    ]
    return grid(
        ["stream", "statistics", "layers", "kB per task", "named", "routed", "nearest", "reject", "unknown"], rows
    )


def _stream(part: Part, result: Result, joint: Result | None) -> list[str]:
    found = result.found
    parts = [f"## {TITLES[part]}", _end(found)]
    if part == "classes":
        right, steps = found["end"]["accuracy_of_all_rows"], found["end"]["average_incremental_accuracy"]
        parts.append(
            f"Over all rows, whatever their task, {percent(right)} are correct. Average incremental accuracy (Rebuffi et al. "
            f"2017): {percent(steps)}."
        )
    parts += ["### By task", _by_task(found)]
    if part != "classes":
        parts += ["### Which task rows are routed to", _confusion(found)]
    parts += ["### Three orders", *_orders(found)]
    if part == "classes":
        own = [("router and banks", found["end"]["accuracy_of_all_rows"], found["validation"]["nearest"])]
        if joint is not None:
            own.append(("one bank on all classes at once", joint.found["test"], joint.found["validation"]))
        parts += ["### Predicting the class: other classifiers on the same states", CLASSIFIERS_OF_CLASSES]
        parts.append(_compared(found["which_class"], own))
    else:
        own = [("the router", found["end"]["routing"], found["validation"]["routing"])]
        parts += ["### Predicting the task: other classifiers on the same states", CLASSIFIERS_OF_TASKS]
        parts.append(_compared(found["which_task"], own))
    parts += ["### What each part contributes", _ablation(found["ablation"])]
    if part == "classes":
        official = result.out_of_scope
        said = UNKNOWN_CLASSES
        if official is not None:
            said += f" The texts out of scope are {official['rows']} official ones (digest {official['digest']})."
        parts += ["### Rows of no task", said, *_unknown(found["ablation"], found["stored"])]
    if part == "long":
        rows = found["classic"]
        parts += ["### Rows of tasks that were never learned", UNKNOWN_CLASSIC, *_unknown(rows, found["stored"])]
    return parts


def _orders(found: dict[str, Any]) -> list[str]:
    orders, size = found["orders"], len(found["tasks"])
    counts = [count for count in range(2, size + 1) if size <= 5 or count in (2, size // 2, size)]
    rows = [
        [
            str(number),
            ", ".join(order["tasks"]),
            *(percent(_routing_after(order, count)) for count in counts),
            percent(order["accuracy"]),
            points(order["routing_loss"]),
            percent(order["average_incremental_accuracy"]),
        ]
        for number, order in enumerate(orders, 1)
    ]
    header = ["order", "tasks", *(f"routed after {count}" for count in counts)]
    header += ["accuracy", "routing loss", "average incremental accuracy"]
    equal = "identically, bit for bit" if found["equal_bit_for_bit"] else "**differently**"
    same = len({(order["routing_accuracy"], order["accuracy"]) for order in orders}) == 1
    last = (
        "accuracy and routing accuracy have a variance of exactly 0 over the orders."
        if same
        else "**the numbers differ.**"
    )
    return [
        grid(header, rows),
        f"After all tasks, the routers of all orders score every test row {equal}; {last}",
    ]


def _ablation(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            *_variant(row),
            f"{row['bytes']['mean'] / 1000:.0f}",
            percent(row["routing"]),
            *(percent(value) for value in row["correct"].values()),
            *(share(value) for value in row["log_loss"].values()),
            *(percent(value) for value in row["mean_probability"].values()),
        ]
        for row in found
    ]
    header = ["statistics", "layers", "kB per task", "routed"]
    header += [f"correct, weight {weight}" for weight in found[0]["correct"]]
    header += [f"log-loss, {confidence}" for confidence in found[0]["log_loss"]]
    header += [f"probability, {confidence}" for confidence in found[0]["mean_probability"]]
    return grid(header, rows)


def _unknown(found: Sequence[dict[str, Any]], form: str) -> list[str]:
    measured = [row for row in found if "unknown" in row]
    tables = []
    for group in measured[0]["unknown"]["states"]:
        rows = []
        for row in measured:
            for evidence, groups in row["unknown"].items():
                own = groups[group]
                exact, calibrated = own["exact"].values(), own["calibrated"].values()
                rows.append(
                    [
                        *_variant(row),
                        EVIDENCE[evidence],
                        share(own["auroc"]),
                        *(percent(each["found"]) for each in exact),
                        *(f"{percent(each['rejected'])}, {percent(each['found'])}" for each in calibrated),
                    ]
                )
        header = ["statistics", "layers", "distance in", "AUROC", "found at 1 %", "found at 5 %"]
        header += ["rejected, found at limit 0.01", "rejected, found at limit 0.05"]
        tables += [f"{group[0].upper()}{group[1:]}, {measured[0]['unknown']['states'][group]['rows']} rows:"]
        tables += [grid(header, rows)]
    first, own = of_form(found, "first")["unknown"]["states"], of_form(found, form)["unknown"]["both"]
    rows = [
        [
            source,
            *(share(each["auroc"]) for each in (before, own[group]["by_source"][source])),
            *(percent(each["found"]) for each in (before, own[group]["by_source"][source])),
        ]
        for group in own
        for source, before in first[group]["by_source"].items()
    ]
    header = ["rows of", "AUROC, first format", f"AUROC, {form}", "found at limit 0.01, first format"]
    tables += ["By source:", grid([*header, f"found at limit 0.01, {form}"], rows)]
    return tables


def _variant(row: dict[str, Any]) -> list[str]:
    columns = "" if row["columns"] is None else f", {row['columns']} columns"
    return [FORMS[row["form"]] + columns, _layers(row["layers"])]


def _layers(layers: Sequence[int]) -> str:
    return " ".join(map(str, layers))


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
        "learned, minus the mean at the end. " + MODELS,
        grid(["", "mean test score at the end", "loss"], rows),
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


def _compared(found: dict[str, Any], first: Sequence[tuple[str, float, float]]) -> str:
    rows = [[name, percent(test), percent(validation), "-"] for name, test, validation in first]
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

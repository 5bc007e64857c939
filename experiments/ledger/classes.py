"""Lines of LEDGER.md for class-incremental learning of intents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from experiments.ledger.line import NOT_AT_HAND, Group, beside, one_run
from experiments.published.classes import BANKING77, CLINC150
from experiments.routing.result import Part, Result
from experiments.routing.words import METHODS

SAME = {
    "KLDA": "klda",
    "KLDA, ensemble": "klda",
    "class means, Mahalanobis": "frozen",
    "linear probe, all classes at once": "probe",
}
"""Our classifier of frozen states that is nearest to a published one, by its name in the raw results."""


_APART = "rows and, except for MiniLM, backbone"


def groups(routing: Mapping[Part, Result]) -> list[Group]:
    """Return the lines of both data sets."""
    result = routing.get("classes")
    found = {} if result is None else {name: each["test"] for name, each in result.found["which_class"].items()}
    banks = None if result is None else result.found["end"]["accuracy_of_all_rows"]
    lines = [beside(row, one_run(found.get(SAME[row.method])), _APART) for row in CLINC150.rows]
    best = max(CLINC150.rows, key=lambda row: float(row.value))
    lines.append(beside(replace(best, method=f"banks and router, beside {best.method}"), one_run(banks), _APART))
    return [
        Group(
            title="CLINC150 as a stream of classes",
            published=CLINC150.setting + " (in FOLDER/clinc150 for the command)",
            ours="`routing`: frozen states of MiniLM, 4,000 training and 1,000 test rows of all 150 classes; "
            + ", ".join(sorted({METHODS[name] for name in SAME.values()})),
            commands=("python -m experiments.routing --data FOLDER --only classes joint",),
            lines=lines,
        ),
        Group(
            title="Banking77 as a stream of classes",
            published=BANKING77.setting,
            ours="none",
            lines=[beside(row, None, NOT_AT_HAND) for row in BANKING77.rows],
        ),
    ]

"""Lines of LEDGER.md for the classic five tasks and the long stream."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.continual import classic5, long7
from experiments.continual.measures import Measures
from experiments.continual.methods import BANKS, COPIES, JOINT, REPLAY, SEQUENTIAL, SEQUENTIAL_LORA
from experiments.ledger.line import Group, beside, one_run
from experiments.published.streams import FIFTEEN, FIVE
from experiments.published.table import Table
from experiments.routing.result import Part, Result
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale

SAME = {
    "sequential fine-tuning": SEQUENTIAL,
    "sequential LoRA": SEQUENTIAL_LORA,
    "replay": REPLAY,
    "fine-tuning per task": COPIES,
    "LoRA per task": next(bank for bank in BANKS if bank.name == "bank: LoRA"),
    "multi-task": JOINT,
    "Progressive Prompts": BANKS[0],
}
"""Our method that is the same as a published one, or, for one that is told the task, Houlsby banks."""


_APART = "backbone and rows"


def groups(scale: Scale, book: Book, routing: Mapping[Part, Result]) -> list[Group]:
    """Return the lines of all published tables."""
    five, seven = (Measures(stream, scale, book) for stream in (classic5.STREAM, long7.STREAM))
    return [
        *(_group(table, five, routing.get("classic"), "classic5", classic5.STUDY.name) for table in FIVE),
        *(_group(table, seven, routing.get("long"), "long15", long7.STUDY.name) for table in FIFTEEN),
    ]


def _group(table: Table, measures: Measures, routed: Result | None, catalog: str, study: str) -> Group:
    found = one_run(None if routed is None else routed.found["end"]["nearest"])
    rows, tasks = measures.stream.limits["train"], len(measures.stream.orders[0])
    return Group(
        title=table.setting.partition(";")[0],
        published=table.setting,
        ours=f"`{study}`, MiniLM, {rows} rows of each of {tasks} tasks: ACC of the same method where there is one (each task "
        "has its own head, and is known); for a method that is told the task, Houlsby banks; for all others, Houlsby banks "
        f"whose task the router finds (`routing`, {_tasks(routed)})",
        commands=(
            f"continual-petl run {catalog}",
            f"python -m experiments.studies {study} --data FOLDER --scale base --model google-bert/bert-base-uncased",
        ),
        lines=[
            beside(row, measures.means(SAME[row.method])["ACC"] if row.method in SAME else found, _APART)
            for row in table.rows
        ],
    )


def _tasks(routed: Result | None) -> str:
    return "not measured" if routed is None else f"{len(routed.found['tasks'])} tasks"

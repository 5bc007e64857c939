"""Full copies and joint training on the classic five tasks, from the results of `experiments.continual`: the same rows.

Both know the task of a row, and train all weights of MiniLM for three epochs; settings are in that study.
"""

from __future__ import annotations

from experiments.continual.classic5 import STREAM
from experiments.continual.measures import Measures
from experiments.continual.methods import COPIES, JOINT
from experiments.studies.command import EXPERIMENTS
from experiments.studies.ledger import Book
from experiments.studies.scale import SMALL
from experiments.zoo.methods import METHODS, OURS
from experiments.zoo.result import Line

LEDGER = EXPERIMENTS / "continual" / "results" / "classic5.jsonl"
REUSED = {"copies": COPIES, "joint": JOINT}


def reused() -> list[Line]:
    """Return the runs in every order; neither method depends on it."""
    book = Book([LEDGER])
    measures = Measures(STREAM, SMALL, book)
    return [
        line
        for name in REUSED
        for seed in SMALL.seeds
        for order in range(1, len(STREAM.orders) + 1)
        if (line := _line(measures, name, order, seed)) is not None
    ]


def _line(measures: Measures, name: str, order: int, seed: int) -> Line | None:
    method, tasks = REUSED[name], STREAM.orders[order - 1]
    R_TT = measures.R(method, tasks, seed)
    trial = method.trial(STREAM, SMALL, measures.book, STREAM.orders[0], seed)
    if R_TT is None or trial is None:
        return None
    line = measures.book.lines[trial.key]
    made, of_tasks = measures.book.made[line.made], [line.outcome["tasks"][task] for task in tasks]
    heads = sum(task["parameters"]["head"] for task in of_tasks)
    bodies = [sum(task["parameters"].values()) - task["parameters"]["head"] for task in of_tasks]
    trained = heads + (sum(bodies) if method.keeps == "bank" else bodies[0])
    return Line(
        method=name,
        kind=METHODS[name].kind,
        package=OURS,
        stream="classic5",
        protocol="task",
        order=order,
        seed=seed,
        adapted="all",
        settings=trial.training | {"source": LEDGER.relative_to(EXPERIMENTS.parent).as_posix()},
        tuning=False,
        tasks=tasks,
        rows=line.data,
        matrix=[[None if cell != cell else cell for cell in row] for row in R_TT.tolist()],
        seconds=sum(task["seconds"]["train"] for task in of_tasks),
        steps=0,
        trained_parameters=trained,
        kept_rows=0,
        kept_bytes=4 * trained if method.keeps == "bank" else 0,
        keeps_old_rows=METHODS[name].keeps_old_rows,
        ended=made.began,
        commit=made.commit,
        changed=made.changed,
        versions=made.versions,
        machine=made.machine,
    )

"""Results and facts built without a store: a custom matrix, a modified certificate, a run of many tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from continual_petl.report.results import ResultRow, Results
from continual_petl.report.run_facts import RunFacts, TaskFacts
from continual_petl.store.ledger.lines import Status, commit_of


def rows_of(R_TT: Tensor, status: Sequence[Sequence[Status]] | None = None) -> tuple[ResultRow, ...]:
    """Return the rows of R with its known cells, which are "measured" by default, and all cells that are "not measured"."""
    rows = []
    for i, row in enumerate(R_TT.numpy()):
        tried = [status is not None and status[i][j] == "not measured" for j in range(i + 1)]
        columns = np.flatnonzero(~np.isnan(row[: i + 1]) | tried)
        how: list[Status] = ["measured" if status is None else status[i][j] for j in columns.tolist()]
        rows.append(ResultRow(columns=columns, values=row[columns], status=tuple(how)))
    return tuple(rows)


def changed(task: TaskFacts, **more: Any) -> TaskFacts:
    """Return a copy of a task with a different certificate, history or check."""
    content = {"certificate": task.certificate, "history": task.history, "check": task.check, **more}
    certificate = content["certificate"]
    commit = commit_of(certificate, task.link.file or "", task.link.bytes, task.link.replaces)
    return TaskFacts.of(
        commit, certificate, content["history"], files=task.files, check=content["check"], checked_at=task.checked_at
    )


def many(facts: RunFacts, count: int) -> RunFacts:
    """Return a run of many copies of another run's first task: R has every twentieth score and a complete last row."""
    first = facts.tasks[0]
    names = tuple(f"t{number:04}" for number in range(count))
    tasks = tuple(
        changed(
            first,
            certificate=first.certificate.model_copy(update={"task": name}),
            check=dataclasses.replace(first.check, task=name),
        )
        for name in names
    )
    place = torch.arange(count)
    known = (place[None] <= place[:, None]) & ((place[:, None] - place[None]) % 20 == 0)
    known[-1] = True
    R_TT = torch.where(
        known, 0.5 + 0.4 * torch.rand(count, generator=torch.Generator().manual_seed(0)).double(), torch.nan
    )
    certified: Status = "certified"
    results = Results(
        tasks=names,
        metrics=("accuracy",) * count,
        splits=("test",) * count,
        rows=rows_of(R_TT, [[certified] * count] * count),
        seconds=dict.fromkeys(names, facts.results.seconds[first.name]),
    )
    return dataclasses.replace(facts, num_planned=count, results=results, tasks=tasks)

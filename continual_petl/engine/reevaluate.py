"""Fill missing cells of the result matrix R with the scores in the tasks' certificates, which are checked first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from continual_petl.engine.session import Session
from continual_petl.report.results import Results, read_results
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.ledger.lines import RowLine, cell_of
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task

_WITHOUT_ROWS = "it was imported without rows, so its certificate has no score"
_SHARED = "its bank has scope: shared and has changed since it was certified"
_CHANGED = "it differs from its certificate: {}"


@dataclass(frozen=True, kw_only=True)
class Reevaluation:
    """The result of `Run.reevaluate`."""

    store: Store
    """The run folder after the change."""
    certified: tuple[tuple[str, str], ...]
    """The cells of R that were filled in, each as a pair: the task of its row and the task of its column."""
    left: Mapping[str, str] = field(default_factory=dict)
    """For each task whose cells were left unchanged, the reason."""
    checks: tuple[TaskCheck, ...] = ()
    """Checks of the certificates."""

    @property
    def results(self) -> Results:
        """The result matrix R after the change."""
        return self.store.consistently(lambda: read_results(self.store.snapshot()))

    @property
    def ok(self) -> bool:
        """Whether every checked certificate holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "certified": [{"after": after, "task": task} for after, task in self.certified],
            "left": dict(self.left),
            "checks": [check.to_json() for check in self.checks],
            "results": self.results.to_json(),
        }


def certify_cells(session: Session, *, wait: bool = False) -> Reevaluation:
    """Fill in unknown cells of R from certificates; see `continual_petl.reevaluate`."""
    store = session.store
    session.models.check_code()
    with store.lock(wait=wait):
        store.clean()
        store.check_complete()
        session.check_backbone()
        results = read_results(store)
        commits = {commit.task: commit for commit in store.commits()}
        unknown = _unknown(results)
        checks: dict[str, TaskCheck] = {}
        left: dict[str, str] = {}
        for task in {task: None for tasks in unknown.values() for task in tasks}:
            if commits[task].shared:
                left[task] = _SHARED
                continue
            if not store.certificate(task).is_measured:
                left[task] = _WITHOUT_ROWS
                continue
            checks[task] = check_task(store, task, session.models.backbone_of(task))
            if not checks[task].ok:
                left[task] = _CHANGED.format(" ".join(checks[task].problems))
        lines = []
        for after, tasks in unknown.items():
            known = [store.certificate(task) for task in tasks if task not in left]
            cells = tuple(cell_of(certificate, certificate.score, "certified") for certificate in known)
            if cells:
                lines.append(RowLine(after=after, index=commits[after].index, cells=cells))
        if lines:
            store.append(lines)
    filled = tuple((line.after, cell.task) for line in lines for cell in line.cells)
    return Reevaluation(store=store, certified=filled, left=left, checks=tuple(checks.values()))


def _unknown(results: Results) -> dict[str, list[str]]:
    """Return the cells to fill in: for each row of R, by its task, the tasks whose scores are unknown.

    Cells that earlier rows leave out are ignored, since a run of thousands of tasks has millions of them.
    """
    found = {}
    for i, after in enumerate(results.tasks):
        row = results.rows[i]
        columns = [j for j, how in zip(row.columns.tolist(), row.status, strict=True) if how == "not measured"]
        if i == len(results.tasks) - 1:
            columns = [j for j, how in enumerate(results.row_status(i)) if how == "not measured"]
        if columns:
            found[after] = [results.tasks[j] for j in columns]
    return found

"""Predict a learned task's test rows again and compare the predictions with its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from continual_petl.engine.scoring.evaluate import evaluate, predicting
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, why_unavailable
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import Finding
from continual_petl.streams.schema.data_spec import SplitName
from continual_petl.streams.schema.stream_spec import TaskSpec


class _Digested(Protocol):
    @property
    def digest(self) -> str: ...


_Rows = TypeVar("_Rows", bound=_Digested)


@dataclass(frozen=True)
class RowsCheck:
    """The result of predicting rows again."""

    findings: tuple[Finding, ...] = ()
    unreachable: str | None = None
    """Why the rows are not available; None if they were predicted."""
    split: SplitName = "test"
    """The split that was predicted."""


def certified_rows(
    session: Session, task: str, read: Callable[[TaskSpec, SplitName], _Rows], name: SplitName | None = None
) -> _Rows | str:
    """Return the rows of a task's split if they are the certified ones, otherwise the reason why they are not available.

    Args:
        session: the run.
        task: a learned task.
        read: reads the split, such as `Session.split` or `Session.rows`.
        name: the split; None means the reported one.
    """
    manifest = session.store.manifest(task)
    if not manifest.is_measured:
        return f"task {task!r} was imported without rows"
    spec = next((spec for spec in session.spec.tasks if spec.name == task), None)
    if spec is None:
        return f"task {task!r} is no longer in the stream, so its rows are unknown"
    name = name or manifest.counted_split
    if name == "test" and not session.reads_test:
        return f"task {task!r}: this run reads no test split"
    try:
        rows = read(spec, name)
    except InputError as error:
        return f"task {task!r}: its {name} rows are not available: {why_unavailable(error)}"
    if rows.digest != manifest.data[name]:
        return f"task {task!r}: its {name} rows are not those it was certified on"
    return rows


def check_rows(session: Session, task: str) -> RowsCheck:
    """Predict a task's test rows (or validation rows) again with the bank as it was committed.

    The scores and every prediction have to equal the certified ones. In a different environment the scores may differ by up
    to 0.01: rounding may move a row across the decision boundary.

    Raises:
        StoreError: if the bank cannot be loaded.
    """
    split = certified_rows(session, task, session.split)
    manifest = session.store.manifest(task)
    name: SplitName = manifest.counted_split
    if isinstance(split, str):
        return RowsCheck(unreachable=split, split=name)
    models, certified = session.models, manifest.scores[name]
    unscored: tuple[Finding, ...] = ()
    try:
        session.load_metric(task)
    except InputError as error:
        # All predictions and the other scores are compared nevertheless.
        unscored = (Finding(message=f"task {task!r}: {error}", unchecked="score"),)
        others = {key: value for key, value in certified.scores.items() if key != manifest.metric}
        certified = certified.model_copy(update={"scores": others})
    with predicting(models, task, as_committed=True) as (learner, backbone):
        found = evaluate(
            learner, split.rows, models.pad_token_id, session.spec.trainer, session.folder, own_metric=not unscored
        )
        now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    differs = manifest.environment.differences(now)
    if found == certified or (differs and _close(found.scores, certified.scores)):
        return RowsCheck(unscored, split=name)
    metric = manifest.metric
    cause = "how it is measured: the Trainer's arguments, the library or the function that computes the scores"
    message = (
        f"task {task!r}: its {name} rows now score {found.scores}, but {certified.scores} were certified"
        if found.scores != certified.scores
        else f"task {task!r}: some predictions for its {name} rows differ from those certified, although all scores are equal"
    )
    return RowsCheck(
        (
            Finding(
                message=message,
                found=found.scores.get(metric),
                certified=certified.scores.get(metric),
                cause=f"the differences in the environment: {'; '.join(differs)}" if differs else cause,
            ),
        ),
        split=name,
    )


def _close(found: dict[str, float], certified: dict[str, float]) -> bool:
    return found.keys() == certified.keys() and all(abs(found[name] - certified[name]) <= 0.01 for name in found)

"""Answering a learned task's test rows again, and holding the answers against its certificate."""

from __future__ import annotations

from dataclasses import dataclass

from continual_petl.backbones.attending import attending
from continual_petl.course.evaluate import evaluate
from continual_petl.course.session import Session
from continual_petl.errors import InputError
from continual_petl.store.environment import current_environment
from continual_petl.store.finding import Finding
from continual_petl.streams.schema.data_spec import SplitName


@dataclass(frozen=True)
class Recheck:
    """What came of it."""

    findings: tuple[Finding, ...] = ()
    unreachable: str | None = None
    """Why the rows are not available; None if they were answered."""
    split: SplitName = "test"
    """Whose rows were answered."""


def recheck_rows(session: Session, task: str) -> Recheck:
    """Answer a task's test rows (validation where there are none) again with the bank as it was committed.

    Scores and every single prediction have to be the certified ones. In another environment the scores may be one point
    apart: a row that lies on the border may round to the other side.

    Raises:
        StoreError: if the bank cannot be loaded.
    """
    spec = next((spec for spec in session.spec.tasks if spec.name == task), None)
    if spec is None:
        return Recheck(unreachable=f"task {task!r} is not in the stream any more, so its rows are unknown")
    manifest = session.store.manifest(task)
    name: SplitName = manifest.counted_split
    if name == "test" and not session.reads_test:
        return Recheck(unreachable=f"task {task!r}: this course reads no test split")
    try:
        split = session.split(spec)
    except InputError as error:
        return Recheck(unreachable=f"task {task!r}: its {name} rows are not available: {error}")
    if split.digest != manifest.data[name]:
        return Recheck(unreachable=f"task {task!r}: its {name} rows are not those it was certified on")
    residents = session.residents
    learner = residents.resident(task, as_committed=True)
    with attending(learner.backbone, manifest.environment.attention) as backbone:
        found = evaluate(learner, split.rows, residents.pad_token_id, session.spec.trainer, session.folder)
        now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    certified = manifest.scores[name]
    differs = manifest.environment.differences(now)
    if found == certified or (differs and _close(found.scores, certified.scores)):
        return Recheck(split=name)
    metric = manifest.metric
    cause = "how it is measured: the Trainer's arguments, the library of the scores"
    message = (
        f"task {task!r}: its {name} rows score {found.scores} now, certified was {certified.scores}"
        if found.scores != certified.scores
        else f"task {task!r}: single answers to its {name} rows are not the certified ones, though all scores are equal"
    )
    return Recheck(
        (
            Finding(
                message=message,
                found=found.scores.get(metric),
                certified=certified.scores.get(metric),
                cause=f"what differs in the environment: {'; '.join(differs)}" if differs else cause,
            ),
        ),
        split=name,
    )


def _close(found: dict[str, float], certified: dict[str, float]) -> bool:
    return found.keys() == certified.keys() and all(abs(found[name] - certified[name]) <= 0.01 for name in found)

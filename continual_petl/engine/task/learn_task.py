"""Learn one task: a fresh bank, a fresh optimizer, a fresh Trainer; resumable; committed with its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import lightning as L
from torch import Tensor

from continual_petl.callbacks import BankCheckpoint, StreamCallback, TaskEvent
from continual_petl.callbacks.bank_checkpoint import BEST, LAST
from continual_petl.callbacks.learning_curve import LearningCurve
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.engine.checks.shared_bank import shared_bank
from continual_petl.engine.checks.warm_start import parent_bank, parent_of
from continual_petl.engine.scoring.answer_summary import answered
from continual_petl.engine.scoring.evaluate import outputs_of, score
from continual_petl.engine.session import Session
from continual_petl.engine.signals import KeepSignals, StopRequest
from continual_petl.engine.task.history import history_of
from continual_petl.engine.task.resume import keep_or_discard, restoring
from continual_petl.engine.task.state_cache import StateCache, decide_state_cache
from continual_petl.engine.task.state_cache_files import kept_states
from continual_petl.engine.task.trained_bank import FITTED, Clock, Ranks, TrainedBank
from continual_petl.engine.trainers import fitting_trainer, quiet
from continual_petl.errors import DivergedError, InputError
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.store.commit import Evidence, commit_task
from continual_petl.store.folder.position import seconds_so_far
from continual_petl.store.folder.progress import read_bank, write_bank
from continual_petl.store.verify.probe import make_probe, probe_of_rows
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.stream_spec import TaskSpec


def learn_task(
    session: Session,
    task: TaskSpec,
    callbacks: Sequence[L.Callback],
    request: StopRequest,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Learn a task and commit it; if the store already has it, it is replaced.

    Args:
        session: the run.
        task: the task to learn.
        callbacks: the callbacks.
        request: the stop request.
        ranks: the processes that share the fit, if the stream's ``trainer`` asks for several.

    Returns:
        Seconds spent on data, training, evaluation and commit.
    """
    return commit_bank(session, learn_bank(session, task, callbacks, request, ranks))


def commit_bank(session: Session, learned: TrainedBank) -> dict[str, float]:
    """Commit a learned bank; if the store already has it, it is replaced. Returns the seconds by phase."""
    clock, store, plan = Clock(), session.store, learned.plan
    replaces = plan.name in session.replacing and store.has(plan.name)
    commit_task(store, plan, learned.bank, learned.backbone, learned.evidence, replaces=replaces)
    clock.lap("commit")
    return {**learned.seconds, **clock.laps}


def learn_bank(
    session: Session,
    task: TaskSpec,
    callbacks: Sequence[L.Callback],
    request: StopRequest,
    ranks: Ranks | None = None,
) -> TrainedBank:
    """Learn a task and score its bank; only its progress is written. See `learn_task`."""
    clock = Clock()
    store, models = session.store, session.models
    data, plan, learner = begin(session, task)
    backbone = learner.backbone
    store.write_backbone(backbone)
    prefix, told = decide_state_cache(
        session, plan, data, learner, num_processes=1 if ranks is None else ranks.world_size
    )
    dropped = keep_or_discard(session, plan, data, learner, prefix)
    clock.lap("data")
    clock.credit("train", seconds_so_far(store.progress_folder(plan.name)))
    request.stop_here(f"before task {plan.name!r} was learned, after its data was read")

    tell_start(session, plan.name, callbacks, (*data.notices, *data.remarks, *data.cache_notices, *dropped, *told))
    if ranks is None:
        with kept_states(session, plan, data, learner, prefix, request):
            _fit(session, plan, data, learner, prefix, callbacks, request, clock)
        _select(session, plan, learner)
    else:
        ranks.fit(plan.name, request)
        _select(session, plan, learner, fitted=read_bank(store.progress_folder(plan.name) / FITTED))
    clock.lap("train")

    splits = {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})
    pad, trainer = models.pad_token_id, session.spec.trainer
    scores, kept = {}, {}
    keeps_rows = session.spec.resolved_probe(task) == "validation"
    for split, rows in splits.items():
        request.stop_here(f"before task {plan.name!r} answered its {split} split; its progress is saved")
        found = outputs_of(learner, rows, pad, trainer, session.folder)
        scores[split] = score(learner, rows, found)
        kept[split] = answered(learner, rows, found, references=keeps_rows)
    request.stop_here(f"before task {plan.name!r} was committed; its progress is saved")
    evidence = Evidence(
        probe=_probe(session, task, plan, data),
        scores=scores,
        data=data.digests,
        notices=data.notices if ranks is None else (*data.notices, ranks.notice(plan)),
        max_length=backbone.max_length,
        preparation=models.preparation,
        parent=parent_of(session, plan),
        history=history_of(store.progress_folder(plan.name), plan, kept),
    )
    clock.lap("evaluate")
    return TrainedBank(
        plan=plan,
        bank=learner.active_bank,
        backbone=backbone,
        evidence=evidence,
        seconds=clock.laps,
        lost=(*data.remarks, *data.cache_notices, *dropped, *told),
    )


def fit_share(session: Session, task: TaskSpec, callbacks: Sequence[L.Callback], request: StopRequest) -> str:
    """Fit a task as one of several Lightning processes; the first one saves the bank at the end of the fit.

    Returns:
        Digest of the final bank, which has to be the same in all of them.
    """
    data, plan, learner = begin(session, task)
    clock = Clock()
    clock.credit("train", seconds_so_far(session.store.progress_folder(plan.name)))
    _fit(session, plan, data, learner, None, callbacks, request, clock)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in learner.active_bank.tensors().items()}
    if learner.global_rank == 0:
        write_bank(session.store.progress_folder(plan.name) / FITTED, tensors)
    return combined_digest(tensor_digests(tensors))


def begin(session: Session, task: TaskSpec) -> tuple[TaskData, TaskPlan, ContinualLearner]:
    """Prepare a task's data, and activate a fresh bank for it in the learner, the only one in memory."""
    backbone, models = session.backbone(task), session.models
    data = session.prepare(task)
    plan = session.plan(task, data.labels, data.train)
    learner = models.learner(backbone.precision)
    models.evict_all()
    learner.add_task(
        plan,
        start_from=shared_bank(session, plan, learner) or parent_bank(session, plan, backbone),
        tokenizer=models.tokenizer,
    )
    return data, plan, learner


def tell_start(session: Session, task: str, callbacks: Sequence[L.Callback], notices: tuple[str, ...]) -> None:
    """Notify the callbacks that a task begins."""
    event = TaskEvent(
        task=task,
        index=len([name for name in session.store.tasks if name != task]),
        num_tasks=session.num_tasks,
        store=session.store,
        backbones=session.models.backbones,
        notices=notices,
    )
    for callback in callbacks:
        if isinstance(callback, StreamCallback):
            callback.on_task_start(event)


def _probe(session: Session, task: TaskSpec, plan: TaskPlan, data: TaskData) -> dict[str, Tensor]:
    """Return the inputs that the task is certified on."""
    backbone, tokenizer = session.backbone(task), session.models.tokenizer
    if session.spec.resolved_probe(task) == "validation":
        return probe_of_rows(plan, data.validation, tokenizer)
    return make_probe(plan, backbone, tokenizer, backbone.max_length)


def _fit(
    session: Session,
    plan: TaskPlan,
    data: TaskData,
    learner: ContinualLearner,
    prefix: StateCache | None,
    callbacks: Sequence[L.Callback],
    request: StopRequest,
    clock: Clock,
) -> None:
    """Train the active bank, from its last checkpoint if there is one."""
    training, folder = plan.training, session.store.progress_folder(plan.name)
    seconds = partial(clock.so_far, "train")
    checkpoint = BankCheckpoint(folder, training.checkpoint_every, plan.metric, seconds=seconds)
    request.tell(lambda number: setattr(checkpoint, "stop_signal", number))
    module = session.loaders(data, training)
    module.frozen = prefix
    last = folder / LAST
    with quiet(), restoring(last):
        watching = [*callbacks, LearningCurve(folder), checkpoint, KeepSignals(request)]
        trainer = fitting_trainer(training, session.spec.trainer, watching, session.folder)
        try:
            trainer.fit(learner, datamodule=module, ckpt_path=last if last.exists() else None, weights_only=True)
        except SystemExit as error:
            # Raised by Lightning for a second Ctrl-C.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            # Raised by Lightning's handler for a SIGTERM before `KeepSignals` is installed.
            request.stop_here(f"while task {plan.name!r} was being started; its saved progress is kept")
            raise


def _select(
    session: Session, plan: TaskPlan, learner: ContinualLearner, *, fitted: Mapping[str, Tensor] | None = None
) -> None:
    """Activate the bank that the fit selects, in the form that is stored.

    Args:
        session: the run.
        plan: the task.
        learner: with the task's bank active.
        fitted: the bank at the end of the fit, if another process trained it.
    """
    folder = session.store.progress_folder(plan.name)
    if plan.training.select == "best":
        if not (folder / BEST).exists():
            raise InputError(
                f"task {plan.name!r}: training.select is 'best', but no validation ran that could determine the best bank. "
                "Write select: last, or change the validation settings in the stream's `trainer`."
            )
        learner.active_bank.load_state_dict(read_bank(folder / BEST), strict=True)
    elif fitted is not None:
        learner.active_bank.load_state_dict(fitted, strict=True)
    learner.active_bank.fold()
    _check_finite(plan, learner)
    # From here on the bank answers: dropout is off in it and in the backbone.
    learner.eval()


def _check_finite(plan: TaskPlan, learner: ContinualLearner) -> None:
    """Reject a diverged bank: it would answer every row with the first label, and be scored for that."""
    tensors = learner.active_bank.tensors()
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise DivergedError(
            f"task {plan.name!r}: learning diverged: {len(broken)} of the {len(tensors)} tensors of its bank are no longer "
            f"finite, first {broken[0]}. Nothing was committed. Lower training.learning_rate (it was "
            f"{plan.training.learning_rate:g}) or training.gradient_clip (it was {plan.training.gradient_clip}), and run "
            "again."
        )

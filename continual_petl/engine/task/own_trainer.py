"""Commit a bank that was trained with one's own Trainer: folded, scored, certified and measured like one that `learn` trains.

The certificate says that a Trainer of the user's own trained the bank. Its training settings are those that the Trainer was
given where it has its own: epochs, clipping and accumulation; the last bank is the one that is kept.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from continual_petl.backbones.attention_switch import attending
from continual_petl.callbacks.no_forgetting import raise_if_changed
from continual_petl.engine.checks.mistakes import Problems
from continual_petl.engine.checks.other_banks import parents_of
from continual_petl.engine.checks.preflight import check_session, protocol_problems
from continual_petl.engine.session import Session
from continual_petl.engine.task.finish_task import finish_committed, finish_task
from continual_petl.engine.task.learn_task import check_finite, commit_bank, scored
from continual_petl.engine.task_run import Clock, TaskRun
from continual_petl.errors import InputError, counted, known_names
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.fit import Fit
from continual_petl.store.certificate.values import Origin
from continual_petl.store.commit import TrainedBank
from continual_petl.store.open_run import check_local
from continual_petl.store.store import Store
from continual_petl.store.verify.backbone_check import check_backbone
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.stream_file.dump import dump_stream, without_unused_settings


def commit_trained(learner: ContinualLearner, data: TaskDataModule, run_dir: str | Path, *, wait: bool = False) -> None:
    """Commit the bank of a task that a learner began and a Trainer fitted; see `continual_petl.commit`."""
    check_local(run_dir)
    fit = _trained(learner, data)
    task, store = data.data.task, Store(Path(run_dir))
    session = Session(fit.stream.spec, store)
    check_session(session)
    if session.spec.defaults != fit.stream.spec.defaults:
        raise InputError(
            f"defaults: the run {session.folder} was started with {session.spec.defaults} and keeps them, but the rows were "
            f"read with {fit.stream.spec.defaults}: write defaults: {session.spec.defaults} in the stream, and train again."
        )
    before, max_length = learner.model.device, session.spec.backbone.max_length or learner.backbone.max_length
    with store.lock(wait=wait), session.learning(), attending(learner.backbone, learner.backbone.attention):
        try:
            store.clean()
            session.models.adopt(replace(learner.backbone, max_length=max_length))
            finish_committed(session, num_more=1)
            _check_new(session, data, fit)
            # Objects given only in Python (loggers, strategies) belong to this process, not to the stream.
            store.write_stream(dump_stream(without_unused_settings(fit.stream.spec.anchored())))
            store.write_backbone(session.models.backbones[learner.backbone.precision])
            learned = _certified(session, learner, data, fit)
            finish_task(session, task.name, commit_bank(session, learned))
        finally:
            learner.to(before)


def _trained(learner: ContinualLearner, data: TaskDataModule) -> Fit:
    """Return how the bank was trained, or raise `InputError` if it cannot be committed."""
    if not isinstance(learner, ContinualLearner):
        raise InputError(f"learner: got a {type(learner).__name__}; give the ContinualLearner that was trained.")
    if not isinstance(data, TaskDataModule):
        raise InputError(f"data: got a {type(data).__name__}; give what learner.begin(stream, task) returned.")
    name = data.data.task.name
    if name not in learner.fits:
        raise InputError(
            f"task {name!r}: the learner did not begin it (it began {known_names([*learner.fits])}): call "
            f"learner.begin(stream, {name!r}), and train its bank."
        )
    fit = learner.fits[name]
    if learner.global_rank:
        raise InputError(
            f"task {name!r}: this is process {learner.global_rank} of {fit.num_processes} that trained it, and one process "
            "writes a run folder: commit under `if trainer.is_global_zero:`."
        )
    if not (fit.ended and fit.steps):
        raise InputError(
            f"task {name!r}: its bank is not trained: no Trainer has finished a fit of it (one that was stopped does not "
            "count). Call Trainer.fit(learner, datamodule=data) first."
        )
    if fit.data != data.data.digests:
        raise InputError(
            f"task {name!r}: the Trainer was not given the rows that the certificate would name: call Trainer.fit(learner, "
            "datamodule=data) and commit with the same data module, as learner.begin returned it."
        )
    if fit.precision.endswith("-true") and fit.precision != "32-true":
        raise InputError(
            f"task {name!r}: the Trainer's precision {fit.precision} has converted the backbone and the bank, and a run "
            "needs both as they were loaded: use precision 32-true or a mixed one; a backbone in bf16 is load_backbone(NAME, "
            "precision='bf16')."
        )
    if data.data.task not in fit.stream.spec.tasks:
        raise InputError(f"task {name!r}: it is not in the stream {fit.stream.spec.name!r}; add it, and train again.")
    plan = learner.plans[name]
    if plan.bank.scope == "shared":
        raise InputError(
            f"task {name!r}: its bank has scope: shared, which passes one bank from task to task, as only `learn` does; "
            "commit a bank of its own, or use `learn`."
        )
    raise_if_changed(check_backbone(learner.backbone))
    check_finite(plan, learner.bank(name))
    return fit


def _check_new(session: Session, data: TaskDataModule, fit: Fit) -> None:
    """Check that the run does not have the task, and has the banks that its bank depends on."""
    store, name = session.store, data.data.task.name
    store.check_complete()
    if store.has(name):
        raise InputError(
            f"task {name!r}: the run {store.folder} has it already, and `commit` never replaces a learned bank: give "
            "another run folder, or another name."
        )
    if store.progress_folder(name).exists():
        raise InputError(
            f"task {name!r}: the run {store.folder} has saved progress of it, which `commit` would discard: finish it with "
            f"`learn`, or remove {store.progress_folder(name)}."
        )
    problems = Problems()
    problems.found += protocol_problems(session, {name: data.data.labels}, [name])
    problems.raise_all()
    for parent, digest in fit.parents.items():
        if not store.has(parent) or store.certificate(parent).digest != digest:
            has = "has another one" if store.has(parent) else "does not have it"
            raise InputError(
                f"task {name!r}: its bank starts from or reads the bank of {parent!r} as it was in memory, but the run "
                f"{store.folder} {has}: commit {parent!r} before learner.begin(stream, {name!r})."
            )


def _as_trained(plan: TaskPlan, fit: Fit) -> TaskPlan:
    """Return the plan with the training settings that the Trainer had, in place of those of the stream."""
    had = {
        "epochs": max(1, fit.epochs),
        "max_steps": None,
        "accumulate": fit.accumulate,
        "gradient_clip": fit.gradient_clip,
        "select": "last",
        "patience": None,
        "prefix_cache": "off",
    }
    return plan.model_copy(update={"training": plan.training.model_copy(update=had)})


def _certified(session: Session, learner: ContinualLearner, data: TaskDataModule, fit: Fit) -> TrainedBank:
    """Fold and score the bank, and return it with everything that its certificate records."""
    plan = _as_trained(learner.plans[data.data.task.name], fit)
    bank, models = learner.bank(plan.name), session.models
    if fit.num_processes > 1:
        # DDP sends all banks to all processes before the next fit, so this process must not change its own.
        bank = copy.deepcopy(bank)
    bank.fold()
    # A learner of the session's, so that the active task and the metrics of the user's stay as they are.
    own = models.learner(learner.backbone.precision)
    own.add_bank(plan, bank, tokenizer=models.tokenizer)
    own.eval()
    run = TaskRun(own.backbone, plan, bank, session=session, data=data.data, learner=own, clock=Clock())
    did = f"{counted(fit.steps, 'step')}, precision {fit.precision}"
    did += f", {fit.num_processes} processes" if fit.num_processes > 1 else ""
    origin = Origin(format="trainer", method=f"{type(learner).__name__}: {did}", base=None, files={})
    learned = scored(
        run,
        kept=fit.steps,
        notices=(f"task {plan.name!r}: not learned by a run, but by {origin.in_words}",),
        parent=next(iter(parents_of(session, plan)), None),
        origin=origin,
        training_attention=learner.backbone.attention,
    )
    session.request.stop_here(f"before task {plan.name!r} was committed", "commits it")
    return learned

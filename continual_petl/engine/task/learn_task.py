"""Learn one task with a fresh bank, optimizer and Trainer, or resume it, and commit the bank with its certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from typing_extensions import override

from continual_petl.backbones.attention_switch import attend_as
from continual_petl.banks.bank import Bank
from continual_petl.callbacks import WatchedTask
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.engine.checks.other_banks import banks_read, parents_of
from continual_petl.engine.scoring.evaluate import answered, outputs_of, score
from continual_petl.engine.session import Session
from continual_petl.engine.sharded import SHARDED
from continual_petl.engine.signals import fitting
from continual_petl.engine.start_from import decide_start
from continual_petl.engine.task.checkpoint import BEST, LAST, BankCheckpoint
from continual_petl.engine.task.finish_task import watching_fit
from continual_petl.engine.task.learning_curve import LearningCurve
from continual_petl.engine.task.resume import check_share, keep_or_discard, restoring
from continual_petl.engine.task.state_cache import StateCache, decide_state_cache, open_state_cache
from continual_petl.engine.task_run import FITTED, Clock, Ranks, TaskRun
from continual_petl.engine.trainers import (
    KeepSignals,
    check_reaches_validation,
    fitting_trainer,
    partly_validated,
    quiet,
)
from continual_petl.errors import DivergedError, InputError, StoreError
from continual_petl.learner import TaskPlan
from continual_petl.router.near_duplicates import likeness, near_duplicate_notices
from continual_petl.router.row_states import layers_to_read, num_layers_of
from continual_petl.router.sums import LABEL_WEIGHT, first_sums_of, sums_of
from continual_petl.router.task_sums import NUM_LAYERS, vectors_read
from continual_petl.router.totals import has_first_format
from continual_petl.store.certificate.history import Answered, Curve, History, ScorePoint, read_curve
from continual_petl.store.certificate.values import SplitScores
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.folder.progress import read_bank, seconds_so_far, write_bank
from continual_petl.store.verify.probe import make_probe, probe_of_rows
from continual_petl.streams.schema.stream_spec import TaskSpec


def learn_task(session: Session, task: TaskSpec, ranks: Ranks | None = None) -> dict[str, float]:
    """Learn a task and commit its bank, which replaces the old one if the task is being learned again.

    Args:
        session: the run.
        task: the task to learn.
        ranks: the processes that share the fit, if the stream's ``trainer`` asks for several.

    Returns:
        Seconds spent on data, training, evaluation and commit.
    """
    return commit_bank(session, learn_bank(session, task, ranks))


def commit_bank(session: Session, learned: TrainedBank) -> dict[str, float]:
    """Commit a learned bank, which replaces the old one if the task was learned again; return the seconds by phase."""
    clock, store, task = Clock(), session.store, learned.plan.task
    commit_task(store, learned, replaces=task in session.replacing and store.has(task))
    session.forget_split(task)
    clock.lap("commit")
    return {**learned.seconds, **clock.laps}


def learn_bank(session: Session, task: TaskSpec, ranks: Ranks | None = None) -> TrainedBank:
    """Learn a task and score its bank; only its progress is written. See `learn_task`."""
    run = TaskRun.begin(session, task)
    plan, data, clock = run.plan, run.data, run.clock
    run.store.write_backbone(run.backbone)
    check_reaches_validation(plan, session.spec.trainer, session.steps_of_epoch(data, plan.training))
    num_processes = 1 if ranks is None else ranks.world_size
    cache, cache_notices = decide_state_cache(session, data, plan, run.bank, num_processes=num_processes)
    dropped = keep_or_discard(run, "off" if cache is None else cache.in_words)
    clock.lap("data")
    clock.credit("train", seconds_so_far(run.folder))
    run.request.stop_here(f"before task {plan.name!r} was learned, after its data was read")

    if (start := decide_start(run)) is not None:
        clock.lap("start")

    # With a sharded backbone, every process evaluates all batches; see `TaskDataModule.together`.
    num_shares = 1 if session.spec.trainer.get("strategy") == SHARDED else num_processes
    num_batches = -(-len(session.loaders(data, plan.training).val_dataloader()) // num_shares)
    partly = partly_validated(plan, session.spec.trainer, num_batches)
    lost = (*session.remarks(data), *dropped, *cache_notices, *partly)
    notify_start(session, plan.name, (*data.notices, *lost))
    if ranks is None:
        with open_state_cache(run, cache):
            _fit(run, cache)
        _select(run)
    else:
        ranks.fit(plan.name, run.request)
        _select(run, fitted=read_bank(run.folder / FITTED))
    clock.lap("train")
    curve, parents = curve_of(run.folder), parents_of(session, plan) if start is None else start.taken.parents
    return scored(
        run,
        curve,
        _kept(curve, plan),
        notices=(*_not_compared(curve, plan), *(() if ranks is None else (ranks.notice(plan),))),
        lost=lost,
        parent=parents[0] if len(parents) == 1 else None,
        start=start,
        training_attention=run.training_attention,
        stop=f"before task {plan.name!r} was committed; its progress is saved",
    )


NO_CURVE = Curve(losses=(), scores=())


def scored(
    run: TaskRun,
    curve: Curve = NO_CURVE,
    kept: int | None = None,
    *,
    notices: tuple[str, ...] = (),
    lost: tuple[str, ...] = (),
    stop: str = "",
    **facts: Any,
) -> TrainedBank:
    """Score a trained bank, and return it with everything that its certificate will record.

    Args:
        run: the task; its bank is in its stored form, and active.
        curve: the learning curves of its fit.
        kept: the step of the kept bank; see `History`.
        notices: notices for the certificate, besides those of the data.
        lost: see `TrainedBank`.
        stop: what to say if a stop was asked for while the splits were predicted; empty: the caller stops.
        facts: more fields of `Certificate`.
    """
    session, backbone = run.session, run.backbone
    scores, answers = _predict_splits(run)
    plan = run.plan.model_copy(update={"decision": run.head.decision})
    if stop:
        run.request.stop_here(stop)
    router, too_alike = _router_sums(run)
    if facts.get("training_attention") == backbone.attention:
        del facts["training_attention"]  # only recorded if the bank predicts with another one
    learned = TrainedBank(
        plan=plan,
        reads=banks_read(session, plan),
        facts=dict(
            max_length=backbone.max_length,
            preparation=session.models.preparation,
            scores=scores,
            data=run.data.digests,
            notices=(*run.data.notices, *too_alike, *notices),
            **facts,
        ),
        bank=run.bank,
        backbone=backbone,
        probe=certifying_probe(run),
        history=History(task=plan.name, curve=curve, kept=kept, answered=answers),
        router=router,
        seconds=run.clock.laps,
        lost=lost,
    )
    run.clock.lap("evaluate")
    return learned


def fit_share(session: Session, task: TaskSpec) -> str:
    """Fit a task as one of several Lightning processes; the first one saves the bank at the end of the fit.

    Returns:
        Digest of the final bank, which has to be the same in all processes.

    Raises:
        InputError: if this process does not learn what the one that started it does; see `check_share`.
    """
    run = TaskRun.begin(session, task)
    check_share(run)
    decide_start(run)  # already decided by the process that started this one
    run.clock.credit("train", seconds_so_far(run.folder))
    _fit(run, None)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in run.bank.tensors().items()}
    if run.learner.global_rank == 0:
        write_bank(run.folder / FITTED, tensors)
    return combined_digest(tensor_digests(tensors))


def notify_start(session: Session, task: str, notices: tuple[str, ...]) -> None:
    """Notify the callbacks that a task begins."""
    begun = WatchedTask(name=task, index=len([name for name in session.store.tasks if name != task]), notices=notices)
    for callback in session.observers:
        callback.on_task_start(session.watched, begun)


def _predict_splits(run: TaskRun) -> tuple[dict[str, SplitScores], dict[str, Answered]]:
    """Return the bank's scores and the summaries of its predictions, by split."""
    data, session, learner = run.data, run.session, run.learner
    splits = {"validation": data.validation} | ({"test": data.test} if data.test is not None else {})
    scores, answers = {}, {}
    keeps_rows = session.spec.resolved_probe(run.task) == "validation"
    for split, rows in splits.items():
        run.request.stop_here(
            f"before the {split} split of task {run.plan.name!r} was predicted; its progress is saved"
        )
        outputs = outputs_of(session, learner, rows)
        if split == "validation" and run.plan.decision is not None:
            # Before any score: all of them are those of the answers that predictions will give.
            plan, labels = run.plan, torch.tensor(rows.labels)
            run.head.decision = run.kind.decide(
                plan.name, plan.labels, plan.kind_settings, torch.stack(outputs), labels
            )
        scores[split] = score(learner, rows, outputs)
        answers[split] = answered(learner, rows, outputs, references=keeps_rows)
    return scores, answers


def certifying_probe(run: TaskRun) -> dict[str, Tensor]:
    """Return the inputs of the probe in the task's certificate."""
    tokenizer = run.session.models.tokenizer
    if run.session.spec.resolved_probe(run.task) == "validation":
        return probe_of_rows(run.plan, run.data.validation, tokenizer)
    return make_probe(run.plan, run.backbone, tokenizer, run.backbone.max_length)


def _router_sums(run: TaskRun) -> tuple[dict[str, Tensor] | None, list[str]]:
    """Return the statistics by which the router recognises the task's rows, in their stored form, and notices about them.

    In a run of an earlier release, they have its format, so that rows can still be routed to all of its tasks.
    """
    spec, pad = run.session.spec, run.session.models.pad_token_id
    routing, notices = spec.resolved_routing(run.task), list[str]()
    if routing == "off":
        return None, notices
    first = has_first_format(run.store)
    rows = run.rows_read(layers_to_read(num_layers_of(run.backbone), NUM_LAYERS[routing], first_format=first))
    limit = spec.resolved_reject(run.task)
    if first:
        sums = first_sums_of(rows)
        if limit != sums.reject:
            notices = [
                f"task {run.plan.name!r}: the limit of the stream, reject: {limit:g}, is not stored, because an earlier "
                "release began this run, and its routing statistics hold no limit. Its rows are unknown below "
                f"{sums.reject:g}; give the limit when you ask: `--reject {limit:g}`, or `predict(rows, reject={limit:g})`."
            ]
    else:
        alike, own = likeness(rows.train_NF), run.task.routing is not None and run.task.routing.reject is not None
        # Near-duplicate training rows do not show which rows are foreign, so such a task rejects only with an explicit limit.
        notices = [] if own else near_duplicate_notices(run.plan.name, alike)
        with run.learner.evaluating():
            vectors = vectors_read(run, run.data.train, run.data.validation, pad)
        sums = sums_of(
            rows,
            "full" if routing == "full" else "compact",
            vectors,
            reject=0.0 if notices else limit,
            label_weight=LABEL_WEIGHT if spec.protocol == "class" else 0.0,
        )
    return {name: torch.from_numpy(array.copy()) for name, array in sums.to_arrays().items()}, notices


class _Patience(EarlyStopping):
    """A separate class, so that its state in a checkpoint and that of a user's EarlyStopping have different keys."""

    _own = False
    """Whether the decision to stop is its own, not that of another callback."""

    # Lightning checks the score at one of these two, depending on how often the trainer validates.
    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        before = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        self._own |= trainer.should_stop and not before

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        before = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        self._own |= trainer.should_stop and not before

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The fit goes on because of ``trainer.min_epochs`` or ``min_steps``; by the time they are reached, the score may be
        # better, but Lightning would keep the old decision.
        if self._own:
            trainer.should_stop = self._own = False

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"own": self._own}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._own = state_dict["own"]


def _fit(run: TaskRun, cache: StateCache | None) -> None:
    """Train the active bank, from its last checkpoint if there is one."""
    session, plan, request = run.session, run.plan, run.request
    training, last = plan.training, run.folder / LAST
    seconds = partial(run.clock.so_far, "train")
    checkpoint = BankCheckpoint(run.folder, training.checkpoint_every, plan.metric, seconds=seconds)
    request.on_signal(lambda number: setattr(checkpoint, "stop_signal", number))
    module = session.loaders(run.data, training)
    module.frozen = cache
    module.together = session.spec.trainer.get("strategy") == SHARDED
    with quiet(), restoring(last):
        callbacks = [*watching_fit(session.callbacks), LearningCurve(run.folder), checkpoint, KeepSignals(request)]
        callbacks.append(ValidationAttention(run))
        if training.patience is not None:
            # An undefined score (of constant predictions) counts as no improvement; a diverged loss is detected elsewhere.
            stop = _Patience(f"val/{plan.metric}", patience=training.patience, mode="max", check_finite=False)
            callbacks.append(stop)
        trainer = fitting_trainer(training, session.spec.trainer, callbacks, session.folder)
        with fitting(request, f"task {plan.name!r}"), run.training():
            trainer.fit(run.learner, datamodule=module, ckpt_path=last if last.exists() else None, weights_only=True)


def _select(run: TaskRun, *, fitted: Mapping[str, Tensor] | None = None) -> None:
    """Load the selected bank (the best or the last one) in its stored form.

    Args:
        run: the task, after its fit.
        fitted: the bank at the end of the fit, if another process trained it.
    """
    plan, bank, folder = run.plan, run.bank, run.folder
    if plan.training.select == "best":
        if not (folder / BEST).exists():
            raise InputError(
                f"task {plan.name!r}: training.select is 'best', but no validation ran that could determine the best bank. "
                "Write select: last, or change the validation settings in the stream's `trainer`."
            )
        bank.load_state_dict(read_bank(folder / BEST), strict=True)
    elif fitted is not None:
        bank.load_state_dict(fitted, strict=True)
    bank.fold()
    check_finite(plan, bank)
    # From here on the bank is only used to predict: dropout is off in the bank and in the backbone.
    run.learner.eval()


def check_finite(plan: TaskPlan, bank: Bank) -> None:
    """Reject a diverged bank, which would otherwise predict the first label for every row and be scored as usual."""
    tensors = bank.tensors()
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise DivergedError(
            f"task {plan.name!r}: learning diverged: {len(broken)} of the {len(tensors)} tensors of its bank are no longer "
            f"finite (the first is {broken[0]}). Nothing was committed. Lower training.learning_rate (it was "
            f"{plan.training.learning_rate:g}) or training.gradient_clip (it was {plan.training.gradient_clip}), and run "
            "again."
        )


def curve_of(folder: Path) -> Curve:
    """Return the learning curves in a task's progress folder.

    Raises:
        StoreError: if their file is damaged.
    """
    try:
        return read_curve(folder) or NO_CURVE
    except StoreError as error:
        # This would block the commit of a learned task, so the message says how to continue.
        raise StoreError(
            f"{str(error).rstrip('.')}. No bank depends on it: if there is no copy, remove it, and the task is kept "
            "without its curve."
        ) from error


def _kept(curve: Curve, plan: TaskPlan) -> int | None:
    """Return the step of the kept bank: the first of the best ones, as `BankCheckpoint` chooses it."""
    if plan.training.select == "best" and curve.scores:
        return max(curve.scores, key=lambda point: _rank(point, plan.metric)).step
    steps = [*(point.step for point in curve.losses[-1:]), *(point.step for point in curve.scores[-1:])]
    return max(steps, default=None)


def _not_compared(curve: Curve, plan: TaskPlan) -> tuple[str, ...]:
    """Return a notice if the best bank was chosen before the fit ended, without a validation of the last one."""
    if plan.training.select != "best" or not curve.scores or not curve.losses:
        return ()
    last, validated = curve.losses[-1].step, curve.scores[-1].step
    if validated >= last:
        return ()
    return (
        f"task {plan.name!r}: the last {last - validated} of {last} steps were not followed by a validation, so only an "
        "earlier bank could be chosen as the best one: trainer.max_time ended the fit within an epoch, or "
        "check_val_every_n_epoch skipped the last validation.",
    )


def _rank(point: ScorePoint, metric: str) -> tuple[float, float]:
    """Return how good a validation was: its score and, between equal scores, its error; as in `BankCheckpoint`."""
    return point.scores.get(metric, -math.inf), -point.scores.get("rmse", math.inf)


class ValidationAttention(L.Callback):
    """Switch, for validation, to the attention implementation that the bank will predict with.

    This makes the scores of all epochs, which select the best bank and are stored, comparable with the certified ones.
    Switching twice per epoch costs about 0.1 ms. If an error prevents switching back, `TaskRun.training` does it.

    Args:
        run: the task; its fit runs inside `TaskRun.training`.
    """

    def __init__(self, run: TaskRun) -> None:
        self._backbone, self._training = run.backbone, run.training_attention

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        attend_as(self._backbone, self._backbone.attention)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        attend_as(self._backbone, self._training)

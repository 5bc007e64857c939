"""Where a bank starts (``start_from``): a learned bank, an average of several, or whatever the rows choose (``auto``).

``auto`` tries the most similar earlier banks, their average, and a fresh bank.

Each candidate is trained for a few steps and scored on validation rows. The best score wins if it exceeds that of the fresh
bank by more than `MARGIN` standard errors (`HEAD_START` if the fits are shorter than the task's own), so the fresh bank wins
ties, and whenever the difference may be due to chance. What was learned in these fits is discarded: the bank is then trained
exactly as if the stream had named the starting point. The choice is saved before training begins, so a resumed task keeps it.

With ``auto``, a bank depends on earlier tasks, so the order of the stream may change it.

An average is a convex combination of earlier banks. Only the weights (a softmax of one number per bank) and the new head are
trained. The gradient of a weight follows from the gradients of the combined tensors, ``dL/dw_k = sum <dL/dT, T_k>``, so that
a step costs no more than with a single bank. The factors of low-rank banks are averaged, not their products, as in LoraHub
(Huang et al. 2023, https://arxiv.org/abs/2307.13269, section 3.2); here the weights sum to one.

Shape suffix: K banks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Literal

import lightning as L
import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import AUTO
from continual_petl.engine.checks.other_banks import certified_bank, learned_bank
from continual_petl.engine.scoring.evaluate import evaluate
from continual_petl.engine.signals import fitting
from continual_petl.engine.task_run import TaskRun
from continual_petl.engine.trainers import KeepSignals, fitting_trainer, quiet
from continual_petl.errors import DivergedError, InputError
from continual_petl.heads.metric_code import lowest
from continual_petl.kind_registry import kind_of
from continual_petl.learner.begin import check_start, copy_bank
from continual_petl.router.similarity import distances
from continual_petl.router.sums import around
from continual_petl.router.totals import totals_of
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.values import BankReference, Start, StartCandidate
from continual_petl.store.files.sealed import read_record, write_record

FILE = "start.json"
MAX_PARENTS = 3
"""Maximum number of earlier banks that are tried."""
_SHORTLIST = 10
"""Maximum number of nearest tasks whose banks are examined to find the ones to try."""
MARGIN = 0.5
"""Number of standard errors (of the difference of two independent scores) by which a starting point has to beat a fresh
bank, if it is tried with all steps of the task."""
HEAD_START = 6.0
"""The number for fits that are shorter than the task's own, since an early lead may not last: in
`experiments/transfer`, leads of almost five standard errors were lost by the end of training."""


class _Decided(Start):
    """The content of start.json."""

    format_version: Literal[1] = 1
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long it took to decide; earlier versions did not write it."""


def decide_start(run: TaskRun) -> Start | None:
    """Initialise a task's bank from its starting point, and return the record for the certificate.

    Returns:
        None if the task does not ask for ``auto`` or an average.

    Raises:
        InputError: if the weights of a named average diverge.
        StoreError: if a bank that it starts from, or the saved choice, is damaged.
    """
    named = run.plan.bank.start_from
    if named != AUTO and not isinstance(named, tuple):
        return None
    start = _saved(run)
    if start is None:
        parents = [certified_bank(run.session, task) for task in named] if isinstance(named, tuple) else None
        start = _averaged(run, parents) if parents is not None else _chosen(run)
        write_record(run.folder / FILE, _Decided(**dict(start), seconds=run.clock.so_far("start")))
    initialise(run, start.taken)
    return start


def initialise(run: TaskRun, candidate: StartCandidate) -> None:
    """Initialise a task's bank: fresh, as a copy, or as an average."""
    run.bank.initialise(run.backbone.model, derive_seed(run.plan.seed, "init"))
    found = [learned_bank(run.session, run.plan, parent.task, run.backbone) for parent in candidate.parents]
    if len(found) == 1:
        copy_bank(run.plan, run.bank, *found[0])
    elif found:
        run.bank.copy_body(combine([bank.body() for _, bank in found], candidate.weights))


def _averaged(run: TaskRun, parents: Sequence[BankReference]) -> Start:
    """Return the record of an average that the stream names."""
    try:
        candidate = _average(run, parents, num_short_steps(run))
    except DivergedError as error:
        names = ", ".join(parent.task for parent in parents)
        raise InputError(
            f"task {run.plan.name!r}, bank.start_from: the average of {names} diverged while its weights were learned: "
            "name other tasks, or lower training.learning_rate"
        ) from error
    return Start(num_steps=num_short_steps(run), num_rows=0, candidates=(candidate,), chosen=0)


def _chosen(run: TaskRun) -> Start:
    """Try the starting points and return the record, with the best one chosen."""
    parents = _fitting(run)
    if not parents:
        return Start(num_steps=0, num_rows=0, candidates=(StartCandidate(),), chosen=0)
    num_steps, num_rows = num_short_steps(run), len(scored_rows(run))
    tried: list[StartCandidate] = []

    def scored(candidate: StartCandidate) -> float:
        run.request.stop_here(f"before task {run.plan.name!r} was learned, while its starting point was chosen")
        initialise(run, candidate)
        tried.append(candidate.model_copy(update={"score": score_after_fit(run, num_steps)}))
        return _number(tried[-1])

    margin = MARGIN if is_whole(run) else HEAD_START
    floor = lowest(kind_of(run.plan), run.plan.metric)
    bar = _bar(scored(StartCandidate()), floor, num_rows, margin)
    # An average costs two more fits, one of them to learn its weights, and rarely helps if its banks do not.
    num_better = sum(scored(StartCandidate(parents=(parent,))) > bar for parent in parents)
    if num_better > 1 and run.plan.bank.why_not_averaged() is None:
        with suppress(DivergedError):  # then only the other starting points are compared
            scored(_average(run, parents, num_steps))
    chosen = best(tried, floor, num_rows, margin)
    return Start(num_steps=num_steps, num_rows=num_rows, candidates=tuple(tried), chosen=chosen)


def best(tried: Sequence[StartCandidate], floor: float, num_rows: int, margin: float) -> int:
    """Return the position of the best starting point; the first one is the fresh bank.

    Args:
        tried: the starting points, with their scores; None is worse than any score.
        floor: the lowest value of the scores' metric.
        num_rows: number of rows that the starting points were scored on.
        margin: number of standard errors by which the score of the fresh bank has to be exceeded.

    Example:
        >>> pairs = [[StartCandidate(score=0.5), StartCandidate(score=other)] for other in (0.5, 0.52, 0.54)]
        >>> [best(pair, 0.0, 100, 0.5) for pair in pairs]
        [0, 0, 1]
    """
    fresh, *scores = (_number(each) for each in tried)
    scores = [_bar(fresh, floor, num_rows, margin), *scores]
    return scores.index(max(scores))


def _number(candidate: StartCandidate) -> float:
    return float("-inf") if candidate.score is None else candidate.score


def _bar(fresh: float, floor: float, num_rows: int, margin: float) -> float:
    """Return the score that another starting point has to exceed: the fresh bank's score plus ``margin`` standard errors.

    This is the standard error of the difference of two independent scores, both about as large as the fresh bank's.
    Scores that can be negative are treated as Pearson's correlation (large-sample formula; one below -1, as R2 can be, as no
    correlation), all others as shares of the rows. One right and one wrong row are added to the count, so that the margin is
    not zero if the fresh bank gets every row wrong or right.
    """
    if floor < 0:
        return fresh + margin * math.sqrt(2 / num_rows) * (1 - (min(1.0, fresh) if fresh >= -1 else 0.0) ** 2)
    share = (min(1.0, max(0.0, fresh)) * num_rows + 1) / (num_rows + 2)
    return fresh + margin * math.sqrt(2 * share * (1 - share) / num_rows)


def _average(run: TaskRun, parents: Sequence[BankReference], num_steps: int) -> StartCandidate:
    """Learn the weights of an average of earlier banks."""
    initialise(run, StartCandidate())
    bodies = [learned_bank(run.session, run.plan, parent.task, run.backbone)[1].body() for parent in parents]
    weights = LearnWeights(run.bank, bodies)
    fit_briefly(run, num_steps, [weights])
    return StartCandidate(parents=tuple(parents), weights=tuple(weights.weights))


def _fitting(run: TaskRun) -> list[BankReference]:
    """Return the banks of the most similar tasks, leaving out banks whose structure differs too much to be copied."""
    store = run.store
    bank_references: list[BankReference] = []
    try:
        totals = totals_of(store)
    except InputError:
        return (
            bank_references  # earlier tasks stored routing statistics from different layers, which cannot be compared
        )
    if not totals.layers:
        return bank_references
    read = run.rows_read(totals.layers)
    counts_C, _, means_CF = around(read.train_NF, read.which())
    ranked = [task for task in distances(totals, counts_C, means_CF) if task != run.plan.name]
    for task in ranked[:_SHORTLIST]:
        try:
            check_start(run.plan, store.plan(task), run.backbone)
        except InputError:
            continue  # a bank with a different structure
        bank_references.append(certified_bank(run.session, task))
        if len(bank_references) == MAX_PARENTS:
            break
    return bank_references


def _saved(run: TaskRun) -> Start | None:
    """Return the choice that was made before the task was interrupted, and credit the clock with the time that it took.

    Raises:
        StoreError: if it is damaged.
    """
    path = run.folder / FILE
    if not path.exists():
        return None
    decided, _ = read_record(path, _Decided, f"task {run.plan.name!r}")
    run.clock.credit("start", decided.seconds)
    return Start(**{name: getattr(decided, name) for name in Start.model_fields})


Body = Mapping[str, Tensor]
_RATE = 0.1
"""Learning rate of the weights' logits, high enough for a dozen steps to tell the banks apart."""


def combine(bodies: Sequence[Body], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted sum of the tensors of several banks, computed in float64, in the order given."""
    return {
        name: sum((w * body[name].double() for w, body in zip(weights, bodies, strict=True)), torch.zeros(())).to(
            first.dtype
        )
        for name, first in bodies[0].items()
    }


class LearnWeights(L.Callback):
    """Trains, during a fit, the weights of an average instead of the bank's own tensors; the head is trained as usual.

    Args:
        bank: the bank that is fitted; its body is overwritten by the combination after every step.
        bodies: the tensors of the averaged banks, which are only read.
    """

    def __init__(self, bank: Bank, bodies: Sequence[Body]) -> None:
        self._bank, self._bodies = bank, bodies
        self._logits_K = torch.zeros(len(bodies), requires_grad=True)
        self._optimizer = torch.optim.Adam([self._logits_K], lr=_RATE)
        bank.copy_body(combine(bodies, self.weights))

    @property
    def weights(self) -> list[float]:
        """The current weights, which sum to one up to rounding."""
        return [float(weight) for weight in self._logits_K.detach().double().softmax(0)]

    @override
    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        # Not after every backward pass: the weights take the same steps as the head, on the gradients of a whole window.
        body = {name: p for name, p in self._bank.named_parameters() if not name.startswith("head.")}
        gradients = {name: p.grad.cpu() for name, p in body.items() if p.grad is not None}
        slopes_K = torch.stack(
            [
                torch.stack([(slope * own[name].cpu()).sum() for name, slope in gradients.items()]).sum()
                for own in self._bodies
            ]
        )
        weights_K = self._logits_K.softmax(0)
        self._logits_K.grad = weights_K * (slopes_K - (weights_K * slopes_K).sum())
        self._optimizer.step()
        # Without gradients, the task's optimizer leaves these tensors alone.
        for parameter in body.values():
            parameter.grad = None

    @override
    def on_train_batch_end(self, *args: object) -> None:
        self._bank.copy_body(combine(self._bodies, self.weights))


SHARE = 0.025
"""Number of optimizer steps of a short fit, as a share of the task's own steps."""
WHOLE_UP_TO = 3000
"""If training rows times epochs are at most this, the short fits run for all of the task's steps: earlier banks matter most
when there are few rows, and a shorter fit would not show this."""
MIN_STEPS = 20
"""Minimum number of optimizer steps of a short fit: in `experiments/transfer`, scores after 5 steps did not predict the
scores at the end of training."""
MAX_SCORED = 500
"""Maximum number of validation rows that a short fit is scored on."""
MAX_GENERATED = 50
"""The same limit for tasks that generate text, where each row takes much longer."""
_KEPT = ("accelerator", "deterministic")
"""Settings of the stream's trainer that also apply to a short fit, which always runs in one process."""


def is_whole(run: TaskRun) -> bool:
    """Return whether short fits of a task run for all of the task's steps."""
    return num_short_steps(run) == run.session.num_steps(run.data, run.plan.training)


def num_short_steps(run: TaskRun) -> int:
    """Return the number of optimizer steps of a short fit."""
    whole = run.session.num_steps(run.data, run.plan.training)
    if len(run.data.train) * whole <= WHOLE_UP_TO * run.session.steps_of_epoch(run.data, run.plan.training):
        return whole
    return min(whole, max(MIN_STEPS, round(SHARE * whole)))


def fit_briefly(run: TaskRun, num_steps: int, callbacks: Sequence[L.Callback] = ()) -> None:
    """Train the active bank for a few steps, with the task's own settings and a learning rate schedule over these steps.

    Raises:
        DivergedError: if the loss is not finite.
        Interrupted: for a SIGTERM that arrives while the fit is being started.
    """
    training = run.plan.training.model_copy(update={"epochs": None, "max_steps": num_steps})
    arguments = {key: value for key, value in run.session.spec.trainer.items() if key in _KEPT}
    arguments |= {"devices": 1, "limit_val_batches": 0}
    with quiet():
        trainer = fitting_trainer(training, arguments, [*callbacks, KeepSignals(run.request)], run.session.folder)
        with fitting(run.request, f"a short fit of task {run.plan.name!r}"), run.training():
            trainer.fit(run.learner, datamodule=run.session.loaders(run.data, training))


def score_after_fit(run: TaskRun, num_steps: int) -> float | None:
    """Train the active bank briefly and return the task's metric on validation rows; None if the fit diverged.

    The validation rows are the same in every short fit of a task.
    """
    try:
        fit_briefly(run, num_steps)
    except DivergedError:
        return None
    rows = run.data.validation.take(scored_rows(run))
    return evaluate(run.session, run.learner, rows).scores.get(run.plan.metric)


def scored_rows(run: TaskRun) -> list[int]:
    """Return the indices of the validation rows that short fits are scored on, evenly spaced."""
    most = MAX_GENERATED if kind_of(run.plan).generates else MAX_SCORED
    count = len(run.data.validation)
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()})

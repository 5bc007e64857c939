"""Samples settings and prunes trials with Optuna.

A study is rebuilt from the records each time, in memory, and every suggestion has its own seed, derived from the sweep's
seed, the task and the number of the trial. So the result depends only on the trials that have ended, not on how often the
sweep was stopped. Optuna is an extra (``continual-petl[sweep]``) and imported only when needed.

Pruners only compare trials with the same number of epochs: the learning rate decreases to zero over all epochs, so a trial
of 20 epochs is still at its highest learning rate in epoch 3, when a trial of 3 epochs has converged, and would always
lose. For the same reason nothing is pruned during warm-up. Nothing is pruned after the last epoch either, since that would
save nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.sweep.records import Record
from continual_petl.sweep.spec import Range, SweepSpec, plain_values

if TYPE_CHECKING:
    import optuna

_THIRD = 3
"""Halving keeps one trial in three, and each stage is three times as long as the previous one."""
_WORST = -1e300
"""Passed to pruners in place of an undefined score, since they cannot compute a median with NaN."""


def check_optuna(spec: SweepSpec) -> None:
    """Raise `InputError` if a sweep needs Optuna and it is not installed."""
    if find_spec("optuna") is None and (spec.sampler != "grid" or spec.prune != "none"):
        raise InputError(
            f"sweep: sampler {spec.sampler} with prune {spec.prune} needs Optuna, which is not installed here: pip install "
            "'continual-petl[sweep]'. A grid without pruning (sampler: grid, prune: none) does not need it."
        )


def suggested(spec: SweepSpec, task: str, number: int, records: Sequence[Record]) -> dict[str, Any]:
    """Return the settings that a sampler suggests next.

    Args:
        spec: the sweep; its sampler is tpe or random.
        task: the name of the task.
        number: the number of the trial.
        records: the trials of the task so far.
    """
    with _quiet() as optuna:
        seed = derive_seed(spec.seed, task, "sampler", number) % 2**32
        make = optuna.samplers.TPESampler if spec.sampler == "tpe" else optuna.samplers.RandomSampler
        study = _study(optuna, spec.space, records, sampler=make(seed=seed))
        trial = study.ask(_distributions(optuna, spec.space))
        return {key: _value_of(spec.space[key], found) for key, found in trial.params.items()}


def should_prune(
    prune: Literal["median", "halving"],
    scores: Sequence[float | None],
    num_epochs: int,
    warmup: float,
    others: Sequence[Record],
) -> bool:
    """Return whether to end a trial after an epoch.

    Args:
        prune: the rule. median: end the trial if its best score so far is below the median of the other trials in this
            epoch, provided that at least 5 of them are completed (Golovin et al. 2017, as implemented in Optuna). halving:
            end the trial if it is not in the best third of all trials that reached this stage (asynchronous successive
            halving, Li et al. 2020).
        scores: the trial's validation scores, one for each finished epoch.
        num_epochs: the trial's total number of epochs.
        warmup: share of the steps over which the learning rate rises.
        others: trials of the same task with the same number of epochs.
    """
    first = max(1, math.ceil(warmup * num_epochs))
    if not first <= len(scores) < num_epochs:
        return False
    with _quiet() as optuna:
        pruner = (
            optuna.pruners.MedianPruner()
            if prune == "median"
            else optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=_THIRD)
        )
        study = _study(optuna, {}, others, pruner=pruner, first=first)
        trial = study.ask()
        pruned = False
        for epoch, score in enumerate(scores, 1):
            trial.report(_WORST if score is None else score, epoch)
            pruned = trial.should_prune()
        return pruned


def study_of(spec: SweepSpec, records: Sequence[Record]) -> optuna.Study:
    """Return the trials of a task as an Optuna study, in memory, for Optuna's figures and analyses."""
    with _quiet() as library:
        study: optuna.Study = _study(library, spec.space, records)
        return study


def _study(
    optuna: Any, space: Mapping[str, Any], records: Sequence[Record], *, first: int | None = None, **more: Any
) -> Any:
    study = optuna.create_study(direction="maximize", **more)
    states = optuna.trial.TrialState
    distributions = _distributions(optuna, space)
    for record in records:
        state = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}.get(record.state)
        if state is None:
            continue
        undefined = math.nan if first is None else _WORST
        values = {epoch: undefined if s is None else s for epoch, s in enumerate(record.scores, 1)}
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=record.score if record.state == "complete" else None,
                params={key: _label(record.settings[key]) for key in distributions},
                distributions=distributions,
                intermediate_values=values,
                system_attrs={} if first is None else dict(_stages(values, first)),
            )
        )
    return study


def _stages(values: Mapping[int, float], first: int) -> Iterator[tuple[str, float]]:
    """Yield the intermediate values that Optuna's halving stores for each stage a trial reached."""
    stage, epoch = 0, first
    while epoch in values:
        yield f"completed_rung_{stage}", values[epoch]
        stage, epoch = stage + 1, epoch * _THIRD


def _distributions(optuna: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    made = optuna.distributions
    return {
        key: made.CategoricalDistribution([_label(value) for value in plain_values(values)])
        if not isinstance(values, Range)
        else made.IntDistribution(values.low, values.high, log=values.log)
        if values.is_whole
        else made.FloatDistribution(values.low, values.high, log=values.log)
        for key, values in space.items()
    }


def _label(value: Any) -> Any:
    """Return a value as a categorical choice for Optuna; its choices cannot be lists or mappings."""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _value_of(values: Any, found: Any) -> Any:
    if isinstance(values, Range):
        return found
    return next(value for value in plain_values(values) if _label(value) == found)


@contextmanager
def _quiet() -> Iterator[Any]:
    """Yield Optuna with its log output disabled."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)

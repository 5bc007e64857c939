"""The trials of a sweep, as Optuna studies in ``study.jsonl``, a file of Optuna's journal storage.

Each task has a study of its search, named like the task, and a study ``TASK/seeds`` of the chosen settings with other seeds.
Only the process that runs the sweep writes to the file; `optuna.storages.journal.JournalFileBackend` can read it, and with it
Optuna's own tools.

Every suggestion has its own seed, derived from the sweep's seed, the task and the number of the trial, and depends on the
trials that have ended, not on how often the sweep was stopped. That is why settings are drawn in memory, and a new trial is
stored with all of its settings in one line: `optuna.Study.ask` writes a line for each setting, so a process killed between
two lines would leave a trial whose other settings are drawn from another state.

Pruners only compare trials with the same number of epochs: the learning rate decreases to zero over all epochs, so a trial
of 20 epochs is still at its highest learning rate in epoch 3, when a trial of 3 epochs has converged, and would always
lose. For the same reason nothing is pruned during warm-up. Nothing is pruned after the last epoch either, since that would
save nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field
from typing_extensions import override

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError, StoreError
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.environment import Environment
from continual_petl.store.files.atomic import append_lines
from continual_petl.streams.schema.field_types import Name
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.sweep.settings import grid
from continual_petl.sweep.spec import Range, SweepSpec

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.pruners import MedianPruner, SuccessiveHalvingPruner
    from optuna.samplers import BaseSampler, RandomSampler, TPESampler
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ModuleNotFoundError:
    raise InputError(
        "sweep: it needs Optuna, which is not installed here: pip install 'continual-petl[sweep]'"
    ) from None

STUDY = "study.jsonl"
State = Literal["begun", "complete", "pruned", "failed"]
_STATES: Mapping[State, TrialState] = {
    "begun": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_THIRD = 3
"""Halving keeps one trial in three, and each stage is three times as long as the previous one."""
_WORST = -1e300
"""Reported to pruners in place of an undefined score, since they cannot compute a median with NaN."""


class Outcome(StrictModel):
    """The outcome of a trial."""

    state: State = "begun"
    score: float | None = None
    """The validation score of the selected bank; higher is better for every metric."""
    scores: tuple[float | None, ...] = ()
    """The validation score at the end of each epoch; None if undefined."""
    reason: str = ""
    """Why the trial failed."""
    seconds: float = 0.0
    """Total time across all resumptions, from reading the trial's data to storing its bank."""
    parameters: dict[str, int] = Field(default_factory=dict)
    """Number of parameters of the bank by part: modifications, own (LayerNorms and copied weights), head."""
    data: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the rows of each split that was read."""
    environment: Environment | None = None
    """The environment in which the bank was learned, as in certificates."""
    kept: bool = False
    """Whether its run folder, with the bank, is kept."""
    same_as: int | None = None
    """The number of the trial with the same settings whose outcome this is; None if the trial itself was learned."""

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return sum(self.parameters.values())

    @property
    def ended(self) -> bool:
        """Whether the trial has ended."""
        return self.state != "begun"


class Record(Outcome):
    """One trial: its settings and its outcome."""

    task: Name
    role: Literal["search", "seed"]
    """search: settings from the space. seed: the chosen settings with another seed."""
    number: int
    """0-based, in the order in which the trials of its study began."""
    seed: int
    """The stream's seed in this trial."""
    settings: dict[str, Any]
    metric: str

    @property
    def study(self) -> str:
        """The name of its study."""
        return self.task if self.role == "search" else f"{self.task}/seeds"

    @property
    def name(self) -> str:
        """The name of the trial, which is also its folder below ``trials``."""
        return f"{self.study}/{self.number:04d}"

    def with_outcome(self, outcome: Outcome) -> Record:
        """Return the record of the same trial with an outcome."""
        return self.model_copy(update={key: getattr(outcome, key) for key in Outcome.model_fields})


class Studies:
    """The studies of a sweep folder.

    Args:
        folder: the sweep folder.
        sweep: the sweep.
        stream: the stream; all trials of the search use its seed.

    Raises:
        StoreError: if ``study.jsonl`` was not written by a sweep.
    """

    def __init__(self, folder: Path, sweep: SweepSpec, stream: StreamSpec) -> None:
        self._sweep, self._seed = sweep, stream.seed
        self._records: dict[str, Record] = {}
        try:
            self._storage = JournalStorage(_Journal(folder / STUDY))
            for study in optuna.get_all_study_names(self._storage):
                for trial in optuna.load_study(study_name=study, storage=self._storage).trials:
                    self._read(trial)
        except OSError:
            raise
        except Exception as error:  # whatever Optuna raises for lines that it did not write
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise StoreError(
                f"{folder / STUDY}: this file was not written by a sweep ({why}). Restore it, or start in another folder."
            ) from error

    def _read(self, trial: FrozenTrial) -> None:
        settings = trial.user_attrs["trial"]["settings"]
        settings = {key: settings[key] for key in self._sweep.space}  # lines of JSON have sorted keys
        record = Record(**trial.user_attrs["trial"] | {"number": trial.number, "settings": settings})
        outcome = Outcome(**trial.user_attrs["outcome"] if trial.state.is_finished() else {})
        self._records[record.name] = record.with_outcome(outcome)

    def __getitem__(self, name: str) -> Record:
        """Return the trial with this name."""
        return self._records[name]

    def rows(self, task: str) -> dict[str, str]:
        """Return the digests of a task's rows when its sweep began; empty if it did not."""
        found: dict[str, str] = self._study(task).user_attrs.get("rows", {})
        return found

    def set_rows(self, task: str, digests: dict[str, str]) -> None:
        """Store the digests of a task's rows."""
        self._study(task).set_user_attr("rows", digests)

    def begin(self, record: Record) -> None:
        """Store a trial, if it is new."""
        if record.name not in self._records:
            plain = record.model_dump(mode="json", exclude_defaults=True, exclude={"number"})
            self._study(record.study).add_trial(_trial_of(self._sweep, record, trial=plain))
            self._records[record.name] = record

    def end(self, record: Record, outcome: Outcome) -> Record:
        """Store the outcome of a trial; it ends with the last line."""
        study = self._storage.get_study_id_from_name(record.study)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, record.number)
        for epoch, score in _by_epoch(outcome):
            self._storage.set_trial_intermediate_value(trial, epoch, score)
        plain = outcome.model_dump(mode="json", exclude_defaults=True)
        self._storage.set_trial_user_attr(trial, "outcome", plain)
        values = [outcome.score] if outcome.state == "complete" and outcome.score is not None else None
        self._storage.set_trial_state_values(trial, _STATES[outcome.state], values)
        self._records[record.name] = record.with_outcome(outcome)
        return self._records[record.name]

    def twin(self, record: Record) -> Outcome | None:
        """Return the outcome of an ended trial with the settings of a new one, which need not be learned again."""
        same = (each for each in self.searched(record.task) if each.ended and each.seed == record.seed)
        twin = next((each for each in same if each.settings == record.settings), None)
        if twin is None:
            return None
        own = {"seconds": 0.0, "same_as": twin.number if twin.same_as is None else twin.same_as}
        return Outcome(**{key: getattr(twin, key) for key in Outcome.model_fields} | own)

    def ended(self) -> list[Record]:
        """Return the ended trials of all tasks."""
        return [record for record in self._records.values() if record.ended]

    def data_of(self, task: str, seed: int) -> dict[str, str]:
        """Return the digests of the rows that a task was learned from with this seed; empty if it never was."""
        known = (each for each in self._records.values() if (each.task, each.seed) == (task, seed))
        return next((each.data for each in known if each.data), {})

    def searched(self, task: str) -> list[Record]:
        """Return the trials of a task's search, by number; of more than the sweep asks for, only the first."""
        found = (each for each in self._records.values() if (each.task, each.role) == (task, "search"))
        return [each for each in found if each.number < self._sweep.num_trials]

    def best(self, task: str) -> Record | None:
        """Return the chosen trial: the highest validation score, then the fewest parameters, then the first."""
        complete = [record for record in self.searched(task) if record.state == "complete"]
        return max(complete, key=lambda r: (r.score, -r.num_parameters, -r.number), default=None)

    def seeds(self, task: str) -> list[Record]:
        """Return the trials with the chosen settings and seeds other than the stream's; none during the search."""
        searched, best = self.searched(task), self.best(task)
        if best is None or sum(each.ended for each in searched) < self._sweep.num_trials:
            return []
        found = (each for each in self._records.values() if (each.task, each.role) == (task, "seed"))
        return [each for each in found if each.settings == best.settings]

    def num_left(self, task: str) -> int:
        """Return the number of trials of a task that have not ended."""
        left = self._sweep.num_trials - sum(record.ended for record in self.searched(task))
        if left == 0 and self.best(task) is None:
            return 0
        return left + self._sweep.seeds - 1 - sum(record.ended for record in self.seeds(task))

    def next(self, task: TaskSpec, running: Collection[str]) -> Record | None:
        """Return the next trial of a task; None if other trials have to end first, or all are done.

        Args:
            task: the task.
            running: names of the running trials.
        """
        searched, seeds = self.searched(task.name), self.seeds(task.name)
        for record in (*searched, *seeds):
            if not record.ended and record.name not in running:
                return record
        new = {"task": task.name, "metric": task.resolved_metric}
        if len(searched) < self._sweep.num_trials:
            settings = suggested(self._sweep, task.name, len(searched), searched)
            return Record(**new, role="search", number=len(searched), seed=self._seed, settings=settings)
        best = self.best(task.name)
        if best is None or not all(each.ended for each in searched) or len(seeds) == self._sweep.seeds - 1:
            return None
        # If a longer search chooses other settings, their seeds follow those of the earlier choice in the study.
        number = sum((each.task, each.role) == (task.name, "seed") for each in self._records.values())
        seed = (self._seed + len(seeds) + 1) % 2**63
        return Record(**new, role="seed", number=number, seed=seed, settings=best.settings)

    def _study(self, name: str) -> optuna.Study:
        if name in optuna.get_all_study_names(self._storage):
            return optuna.load_study(study_name=name, storage=self._storage)
        with _quiet():
            return optuna.create_study(study_name=name, storage=self._storage, direction="maximize")


class _Journal(BaseJournalBackend):
    """The lines of a journal, written like all files of a run: flushed, and with a clear error if the disk is full.

    The incomplete last line of a killed process is cut off first; Optuna's own backend would write on behind it, and could
    not read the file again. Each call reads only the lines that are new, since Optuna reads before and after each write.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._number, self._position = 0, 0  # lines that were read, and where they end

    @override
    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        if not self._file.exists():
            return
        with self._file.open("rb") as handle:
            if log_number_from < self._number or not self._at_line(handle):
                self._number, self._position = 0, 0
            handle.seek(self._position)
            for line in handle:
                if not line.endswith(b"\n"):
                    return
                try:
                    log = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {self._number + 1}: {error}") from None
                self._number, self._position = self._number + 1, self._position + len(line)
                if self._number > log_number_from:
                    yield log

    def _at_line(self, handle: IO[bytes]) -> bool:
        """Return whether a line of the file begins at the position; not if the file was cut."""
        handle.seek(max(0, self._position - 1))
        return self._position == 0 or handle.read(1) == b"\n"

    @override
    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        append_lines(self._file, logs)


def suggested(spec: SweepSpec, task: str, number: int, records: Sequence[Record]) -> dict[str, Any]:
    """Return the settings of a new trial.

    Args:
        spec: the sweep.
        task: the name of the task.
        number: the number of the trial.
        records: the earlier trials of the task's search.
    """
    if spec.sampler == "grid":  # not by number: on resumption the keys of the space may be in another order
        tried = [record.settings for record in records]
        return next(settings for settings in grid(spec) if settings not in tried)
    seed = derive_seed(spec.seed, task, "sampler", number) % 2**32
    sampler = TPESampler(seed=seed) if spec.sampler == "tpe" else RandomSampler(seed=seed)
    found = study_of(spec, records, sampler).ask(_distributions(spec)).params
    return {key: _value_of(values, found[key]) for key, values in spec.space.items()}


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
        others: ended trials of the same task with the same number of epochs.
    """
    first = max(1, math.ceil(warmup * num_epochs))
    if not first <= len(scores) < num_epochs:
        return False
    halving = SuccessiveHalvingPruner(min_resource=first, reduction_factor=_THIRD)
    with _quiet():
        study = optuna.create_study(direction="maximize", pruner=MedianPruner() if prune == "median" else halving)
        pruned = False
        for other in (*others, None):
            trial = study.ask()
            for epoch, score in enumerate(scores if other is None else other.scores, 1):
                trial.report(_WORST if score is None else score, epoch)
                if other is None or prune == "halving":  # halving notes which stages the others reached
                    pruned = trial.should_prune()
            if other is not None:
                study.tell(trial, other.score if other.state == "complete" else None, _STATES[other.state])
        return pruned


def study_of(spec: SweepSpec, records: Sequence[Record], sampler: BaseSampler | None = None) -> optuna.Study:
    """Return the ended trials of a task as an Optuna study, in memory."""
    with _quiet():
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials([_trial_of(spec, record) for record in records if record.ended])
        return study


def _trial_of(spec: SweepSpec, record: Record, **attributes: Any) -> FrozenTrial:
    distributions = _distributions(spec)
    return create_trial(
        state=_STATES[record.state],
        value=record.score if record.state == "complete" else None,
        params={key: _label(record.settings[key]) for key in distributions},
        distributions=distributions,
        intermediate_values=dict(_by_epoch(record)),
        user_attrs=attributes,
    )


def _by_epoch(outcome: Outcome) -> Iterator[tuple[int, float]]:
    return ((epoch, score) for epoch, score in enumerate(outcome.scores, 1) if score is not None)


def _distributions(spec: SweepSpec) -> dict[str, BaseDistribution]:
    # Optuna draws in this order: sorted, so that results do not depend on the order of the file.
    return {key: _distribution(values) for key, values in sorted(spec.space.items())}


def _distribution(values: tuple[Any, ...] | Range) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution([_label(value) for value in values])
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _label(value: Any) -> Any:
    """Return a value as a categorical choice for Optuna; its choices cannot be lists or mappings."""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _value_of(values: tuple[Any, ...] | Range, found: Any) -> Any:
    if isinstance(values, Range):
        return found
    return next(value for value in values if _label(value) == found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable Optuna's log output."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)

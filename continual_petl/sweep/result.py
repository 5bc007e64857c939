"""The result of a sweep: for each task the chosen settings and their scores over seeds, and the resulting stream."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError, did_you_mean
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.sweep.spec import SweepSpec
from continual_petl.sweep.study import Record, study_of

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, kw_only=True)
class TaskChoice:
    """The result for one task."""

    task: str
    metric: str
    trials: tuple[Record, ...]
    """The trials of the search, by number."""
    seeds: tuple[Record, ...]
    """The completed trials with the chosen settings, the search trial first; empty if no trial is complete."""
    failed_seeds: tuple[Record, ...]
    """The failed trials with the chosen settings; they are not included in the mean."""
    num_left: int
    """Number of trials that have not ended."""
    held_out: bool
    """Whether the data has no validation split, so that each seed holds out different rows of the train split."""
    limited: bool
    """Whether ``limits.validation`` makes each seed draw different validation rows."""

    @property
    def settings(self) -> dict[str, Any] | None:
        """The chosen settings; None if no trial is complete."""
        return self.seeds[0].settings if self.seeds else None

    @property
    def score(self) -> float | None:
        """The validation score of the chosen settings with the stream's seed."""
        return self.seeds[0].score if self.seeds else None

    @property
    def scores(self) -> list[float]:
        """The validation scores of the chosen settings, by seed."""
        return [record.score for record in self.seeds if record.score is not None]

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean: sample standard deviation divided by the square root of n seeds; None for one seed."""
        return statistics.stdev(self.scores) / math.sqrt(len(self.scores)) if len(self.scores) > 1 else None

    @property
    def best_seed(self) -> int | None:
        """The seed with the highest validation score, the first if several tie.

        ``run chosen.yaml --seed SEED`` learns the bank with this seed.
        """
        found = max(
            self.seeds, key=lambda record: (record.score, -record.number * (record.role == "seed")), default=None
        )
        return None if found is None else found.seed

    @property
    def same_rows(self) -> bool:
        """Whether all seeds were scored on the same validation rows; if not, see `held_out` and `limited` for the reason."""
        return len({record.data.get("validation") for record in self.seeds}) <= 1

    def count(self, state: str) -> int:
        """Return the number of trials of the search with this state."""
        return sum(record.state == state for record in self.trials)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        parameters = self.seeds[0].parameters if self.seeds else {}
        return {
            "task": self.task,
            "metric": self.metric,
            "settings": self.settings,
            "score": self.score,
            "seeds": [_seed(record) for record in (*self.seeds, *self.failed_seeds)],
            "failed_seeds": len(self.failed_seeds),
            "mean": self.mean,
            "standard_error": self.standard_error,
            "best_seed": self.best_seed,
            "same_validation_rows": self.same_rows,
            "carved_validation": self.held_out,
            "limited_validation": self.limited,
            "parameters": parameters,
            "num_parameters": sum(parameters.values()) if parameters else None,
            "trials": {state: self.count(state) for state in ("complete", "pruned", "failed")},
            "left": self.num_left,
            "seconds": sum(record.seconds for record in (*self.trials, *self.seeds[1:], *self.failed_seeds)),
        }


def _seed(record: Record) -> dict[str, Any]:
    reason = {"reason": record.reason} if record.reason else {}
    return {"seed": record.seed, "state": record.state, "score": record.score, **reason}


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The result of a sweep. Written into its folder as ``summary.json`` and ``chosen.yaml``."""

    folder: Path
    spec: SweepSpec
    chosen: StreamSpec
    """The stream with the chosen bank and training of each task; its seed is unchanged."""
    tasks: Mapping[str, TaskChoice]
    """Choices by task, in the order of the stream, for the tasks of this call and of earlier calls."""
    asked: tuple[str, ...]
    """Names of the tasks of this call."""

    @property
    def num_left(self) -> int:
        """Number of trials in `tasks` that have not ended; running the same sweep again continues with them."""
        return sum(choice.num_left for choice in self.tasks.values())

    @property
    def never_swept(self) -> tuple[str, ...]:
        """Names of the tasks that were never swept; in `chosen` they have the settings of the stream."""
        return tuple(task.name for task in self.chosen.tasks if task.name not in self.tasks)

    def study(self, task: str) -> optuna.Study:
        """Return the search of a task as an Optuna study, in memory, for Optuna's figures and analyses.

        Raises:
            InputError: if the sweep has no such task.
        """
        if task not in self.tasks:
            raise InputError(
                f"the sweep has no task {task!r}{did_you_mean(task, self.tasks)}; its tasks are {', '.join(self.tasks)}"
            )
        return study_of(self.spec, self.tasks[task].trials)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "format_version": 1,
            "stream": self.chosen.name,
            "seed": self.chosen.seed,
            "sweep": self.spec.model_dump(mode="json"),
            "tasks": [choice.to_json() for choice in self.tasks.values()],
            "left": self.num_left,
            "never_swept": list(self.never_swept),
        }

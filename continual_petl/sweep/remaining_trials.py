"""Determines the next trial of each task: first the search, then the chosen settings with other seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence

from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.sweep.records import Outcome, Record, Records
from continual_petl.sweep.sampler import suggested
from continual_petl.sweep.settings import grid
from continual_petl.sweep.spec import SweepSpec, canonical


class RemainingTrials:
    """The remaining trials of one task.

    Args:
        sweep: the sweep.
        stream: the stream; all trials of the search use its seed.
        task: one of the stream's tasks.
        records: the trials so far.
    """

    def __init__(self, sweep: SweepSpec, stream: StreamSpec, task: TaskSpec, records: Records) -> None:
        self._sweep, self._seed, self._task, self._records = sweep, stream.seed, task, records
        self._grid = grid(sweep) if sweep.sampler == "grid" else []

    def next(self, running: Collection[str]) -> Record | None:
        """Return the next trial; None if other trials have to end first, or all are done.

        Args:
            running: names of the running trials.
        """
        known = self._searched()
        for number in range(self._sweep.num_trials):
            record = known.get(number) or self._new(number)
            if not record.ended and name_of(record) not in running:
                return record
        return next((record for record in self._seeds() if not record.ended and name_of(record) not in running), None)

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended."""
        ended = sum(record.ended for record in self._searched().values())
        left = self._sweep.num_trials - ended
        if left == 0 and best_of(self.searched) is None:
            return 0
        seeds = sum(record.ended for record in self._seeds())
        return left + self._sweep.seeds - 1 - seeds

    @property
    def searched(self) -> list[Record]:
        """The trials of the search, by number."""
        return [*self._searched().values()]

    @property
    def with_seeds(self) -> list[Record]:
        """The completed trials with the chosen settings, the search trial first; empty if there are none."""
        best = best_of(self.searched)
        seeds = [record for record in self._seeds() if record.state == "complete"]
        return [] if best is None else [best, *seeds]

    @property
    def failed_seeds(self) -> list[Record]:
        """The failed trials with the chosen settings and other seeds."""
        return [record for record in self._seeds() if record.state == "failed"]

    def _searched(self) -> dict[int, Record]:
        found = self._records.of(self._task.name, "search")
        return {record.number: record for record in found if record.number < self._sweep.num_trials}

    def _new(self, number: int) -> Record:
        """Return a new trial, or one that has already ended because its settings were tried before."""
        ended = [record for record in self._searched().values() if record.ended]
        settings = self._grid[number] if self._grid else suggested(self._sweep, self._task.name, number, ended)
        record = Record(
            task=self._task.name,
            role="search",
            number=number,
            seed=self._seed,
            settings=settings,
            metric=self._task.resolved_metric,
        )
        twin = next((each for each in ended if canonical(each.settings) == canonical(settings)), None)
        if twin is not None:
            known = {key: getattr(twin, key) for key in Outcome.model_fields} | {"seconds": 0.0}
            record = record.with_outcome(Outcome(**known), same_as=twin.number)
            self._records.add(record)
        return record

    def _seeds(self) -> list[Record]:
        """Return the trials with the chosen settings and seeds other than the stream's; none during the search."""
        searched = self._searched()
        best = best_of([*searched.values()])
        if best is None or len(searched) < self._sweep.num_trials or not all(r.ended for r in searched.values()):
            return []
        wanted = [
            best.model_copy(update={"role": "seed", "number": number, "seed": (self._seed + number) % 2**63})
            for number in range(1, self._sweep.seeds)
        ]
        known = {record.key: record for record in self._records.of(self._task.name, "seed")}
        return [known.get(record.key) or begun(record) for record in wanted]


def begun(record: Record) -> Record:
    """Return the initial record of a trial."""
    identity = {key: getattr(record, key) for key in ("task", "role", "number", "seed", "settings", "metric")}
    return Record(**identity)


def best_of(records: Sequence[Record]) -> Record | None:
    """Return the chosen trial: the highest validation score, then the fewest parameters, then the first."""
    complete = [record for record in records if record.state == "complete"]
    return max(complete, key=lambda r: (r.score, -r.num_parameters, -r.number), default=None)


def name_of(record: Record) -> str:
    """Return the name of a trial, which is its folder below ``trials``."""
    if record.role == "search":
        return f"{record.task}/{record.number:04d}"
    # If a longer search chooses other settings, their seed trials are different trials.
    digest = hashlib.sha256(json.dumps(record.settings, sort_keys=True).encode()).hexdigest()
    return f"{record.task}/seed-{record.seed}-{digest[:8]}"

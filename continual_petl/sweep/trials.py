"""The trials of a sweep: those so far, and the next one of each task; first the search, then its choice with other seeds."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from continual_petl.store.files.atomic import append_lines
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.sweep.records import TRIALS, Record, read_records, versions
from continual_petl.sweep.sampler import suggested
from continual_petl.sweep.settings import grid
from continual_petl.sweep.spec import SweepSpec


class Trials:
    """The trials of a sweep folder.

    Args:
        folder: the sweep folder.
        sweep: the sweep.
        stream: the stream; all trials of the search use its seed.

    Raises:
        StoreError: if a line was not written by a sweep.
    """

    def __init__(self, folder: Path, sweep: SweepSpec, stream: StreamSpec) -> None:
        self._file, self._sweep, self._seed = folder / TRIALS, sweep, stream.seed
        self._grid = grid(sweep) if sweep.sampler == "grid" else []
        self._by_name = {record.name: record for record in read_records(self._file)}

    def __getitem__(self, name: str) -> Record:
        """Return the trial with this name."""
        return self._by_name[name]

    def add(self, record: Record) -> None:
        """Write a record; it replaces the earlier record of the same trial."""
        append_lines(self._file, [record.model_dump(mode="json", exclude_defaults=True)])
        self._by_name[record.name] = record

    def ended(self) -> list[Record]:
        """Return the ended trials of all tasks."""
        return [record for record in self._by_name.values() if record.ended]

    def data_of(self, task: str, seed: int) -> dict[str, str]:
        """Return the digests of the rows that a task was learned from with this seed; empty if it never was."""
        known = (each for each in self._by_name.values() if (each.task, each.seed) == (task, seed))
        return next((each.data for each in known if each.data), {})

    def searched(self, task: str) -> list[Record]:
        """Return the trials of a task's search, by number; of more than the sweep asks for, only the first."""
        found = (each for each in self._by_name.values() if (each.task, each.role) == (task, "search"))
        return sorted((each for each in found if each.number < self._sweep.num_trials), key=lambda each: each.number)

    def best(self, task: str) -> Record | None:
        """Return the chosen trial: the highest validation score, then the fewest parameters, then the first."""
        complete = [record for record in self.searched(task) if record.state == "complete"]
        return max(complete, key=lambda r: (r.score, -r.num_parameters, -r.number), default=None)

    def seeds(self, task: str) -> list[Record]:
        """Return the trials with the chosen settings and seeds other than the stream's; none during the search."""
        searched, best = self.searched(task), self.best(task)
        if best is None or len(searched) < self._sweep.num_trials or not all(each.ended for each in searched):
            return []
        wanted = [
            Record(
                task=task,
                role="seed",
                number=number,
                seed=(self._seed + number) % 2**63,
                settings=best.settings,
                metric=best.metric,
            )
            for number in range(1, self._sweep.seeds)
        ]
        return [self._by_name.get(record.name, record) for record in wanted]

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
        known = {record.number: record for record in self.searched(task.name)}
        for number in range(self._sweep.num_trials):
            record = known.get(number) or self._new(task, number)
            if not record.ended and record.name not in running:
                return record
        return next((each for each in self.seeds(task.name) if not each.ended and each.name not in running), None)

    def _new(self, task: TaskSpec, number: int) -> Record:
        """Return a new trial, or one that has already ended because its settings were tried before."""
        ended = [record for record in self.searched(task.name) if record.ended]
        settings = self._grid[number] if self._grid else suggested(self._sweep, task.name, number, ended)
        twin = next((each for each in ended if each.settings == settings), None)
        if twin is None:
            metric = task.resolved_metric
            return Record(
                task=task.name, role="search", number=number, seed=self._seed, settings=settings, metric=metric
            )
        own = {"number": number, "same_as": twin.number, "seconds": 0.0, "kept": False, "versions": versions()}
        record = twin.model_copy(update=own)
        self.add(record)
        return record

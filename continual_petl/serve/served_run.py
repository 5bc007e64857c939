"""A run that predicts for an endpoint: only with verified banks, and always with the banks of the newest certificates.

Used by one thread at a time, since banks are attached to the backbone while they predict. Changes in the folder are read
between two batches, never during one. Each task is verified once, before its first prediction.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from continual_petl.engine.session import Session
from continual_petl.engine.verify.whole_run import Checker
from continual_petl.errors import InputError, MemoryRanOutError, StoreError
from continual_petl.heads.predictions import Prediction
from continual_petl.learner.streaming import Put
from continual_petl.predictor.generate import generation_of
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.records import Record, Row, candidates_of, record_of, route_of
from continual_petl.predictor.routes import Route
from continual_petl.predictor.task_finder import (
    Encoding,
    TaskFinder,
    chosen_states,
    found_answers,
    kept_states,
    task_finder,
)
from continual_petl.router.row_states import StatesBelow
from continual_petl.router.sums import Array
from continual_petl.serve.accepted_rows import IMAGE, in_words
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem, as_problem, no_routing
from continual_petl.serve.request_rows import Asked
from continual_petl.serve.settings import ServeSettings
from continual_petl.store.bank_cache import RESIDENT_BYTES
from continual_petl.store.open_run import allow_kinds
from continual_petl.streams.stream_file.yaml_file import load_stream

REFUSED_S = 30
"""Number of seconds before a task that failed is verified again, so that requests for it do not keep the endpoint busy."""
_log = logging.getLogger("continual_petl.serve")


_LOADING = threading.Lock()
"""transformers patches its classes while it loads a model: loading two at once would leave the classes patched."""


Outcomes = list[Record | Prediction]
"""A record for each row, or the task of a row, as a prediction without a value, if another queue generates its text."""


class ServedRun:
    """Predicts rows of several requests at once.

    Args:
        folder: the run folder.
        settings: how the run is served.
        generates: whether it also generates the texts of rows whose task it finds; otherwise it returns their tasks.

    Raises:
        InputError: if the folder holds no run.
        StoreError: if its chain is broken, or entries are missing.
    """

    def __init__(self, folder: str | Path, settings: ServeSettings, *, generates: bool) -> None:
        self._settings, self._generates = settings, generates
        if settings.remote_code:
            allow_kinds(folder)
        self._catalog = Catalog(folder)
        bytes_ = RESIDENT_BYTES if settings.resident_bytes is None else settings.resident_bytes
        stream = load_stream(self._catalog.store.stream_file, code=settings.remote_code)
        self._session = Session(stream, self._catalog.store, consent=settings.remote_code, resident_bytes=bytes_)
        self._checked: dict[str, tuple[str, float]] = {}
        """For each verified task, the seal of its certificate, and how long it is refused; 0: it matches."""
        self._checker: Checker | None = None

    @property
    def num_held(self) -> tuple[int, int]:
        """Number of banks in memory, and their size in bytes."""
        held = self._session.models.held_banks
        return len(held), held.num_bytes

    def load(self) -> None:
        """Load the backbone, and check that the run was learned on it.

        Raises:
            InputError: if it cannot be loaded.
            StoreError: if it is not the backbone that the run was learned on.
        """
        with _LOADING:
            for task in self._catalog.store.tasks[:1]:
                self._session.models.backbone_of(task)

    def answer(self, jobs: Sequence[Asked]) -> list[Outcomes | Problem]:
        """Predict the rows of several requests in shared batches.

        Returns:
            For each request: a record per row, or the problem with it. A problem with one request never affects others.
        """
        try:
            self._refresh()
            if jobs[0].put is not None:
                return [self._in_pieces(jobs[0], jobs[0].put)]
            return self._together(jobs)
        except (Problem, InputError, StoreError) as error:
            if len(jobs) > 1:
                return [outcomes for job in jobs for outcomes in self.answer([job])]
            if isinstance(error, StoreError) and jobs[0].put is None and self._catalog.changed():
                return self.answer(jobs)  # a bank was forgotten or replaced meanwhile
            return [self._first_bad_row(jobs[0], error) if isinstance(error, InputError) else as_problem(error)]

    def _in_pieces(self, job: Asked, put: Put) -> Outcomes:
        """Pass on the text of one row in pieces; a queue runs such a job in a batch of its own."""
        (row,), (task,) = job.rows, job.tasks
        assert task is not None
        self._verify([task])
        pieces: list[str] = []

        def passed_on(piece: str) -> None:
            put(piece)
            pieces.append(piece)

        truncated, generated = generation_of(self._session.models, row, task)
        near = generated(passed_on)
        prediction = Prediction(task=task, value="".join(pieces), near_tie=near, truncated=truncated)
        return [record(self._catalog, row, prediction)]

    def _first_bad_row(self, job: Asked, error: InputError) -> Problem:
        """Return the problem of the first row that cannot be predicted, found by halving the rows."""
        if isinstance(error, MemoryRanOutError):
            return Problem(413, "memory", "memory ran out: send fewer or shorter rows")
        if job.num_rows == 1:
            # The row was predicted alone, so the message calls it "row 1".
            message = re.sub(r"\b(row 1|image 1 of 1)\b", f"row {job.numbers[0]}", str(error), count=1)
            return Problem(409, "bad_row", message, row=job.numbers[0])
        middle = job.num_rows // 2
        for half in (range(middle), range(middle, job.num_rows)):
            (outcome,) = self.answer([job.part(half)])
            if isinstance(outcome, Problem):
                return outcome
        return Problem(409, "bad_row", str(error))

    def _refresh(self) -> None:
        before = self._catalog.seals
        try:
            if not self._catalog.refresh():
                return
        except StoreError as error:
            raise Problem(503, "broken_chain", "the run folder is damaged: see the endpoint's log") from error
        self._session.store = self._session.models.store = self._catalog.store
        self._checker = None
        self._checked = {task: found for task, found in self._checked.items() if self._catalog.store.has(task)}
        gone = {task for task, seal in before.items() if self._catalog.seals.get(task) != seal}
        if gone:
            self._session.models.evict_all()  # with all copies: a forgotten bank must not stay in memory

    def _verify(self, tasks: Sequence[str]) -> None:
        """Verify the current certificates of tasks that have not been verified yet.

        Raises:
            Problem: if a task has not been learned, or its bank or probe does not match its certificate.
        """
        if any(self._catalog.certificate(task).bank.scope == "shared" for task in tasks):
            # The newest shared bank predicts for all tasks that share it.
            tasks = [*tasks, *filter(None, [self._session.models.newest_shared()])]
        self._load(tasks)
        for task in dict.fromkeys(tasks):
            seal = self._session.store.certificate(task).seal
            checked, refused_until = self._checked.get(task, ("", 0.0))
            if checked != seal or 0 < refused_until <= time.monotonic():
                self._checker = self._checker or Checker(self._session, data=False)
                check = self._checker.check(task)
                refused_until = 0.0 if check.ok else time.monotonic() + REFUSED_S
                self._checked[task] = seal, refused_until
                if not check.ok:
                    _log.error("task %s is not served: %s", task, " ".join(check.problems))
            if refused_until:
                message = f"task {task!r} does not match its certificate, so it gives no predictions"
                raise Problem(503, "not_verified", message, retry_after=REFUSED_S)

    def _load(self, tasks: Iterable[str]) -> None:
        """Load the backbone in the precisions of these tasks.

        Raises:
            Problem: if it cannot be loaded; the reason contains file names, so it is only written to the log.
        """
        for task in tasks:
            self._catalog.certificate(task)
            try:
                with _LOADING:
                    self._session.models.backbone_of(task)
            except InputError as error:
                _log.error("the backbone cannot be loaded: %s", error)
                message = "the backbone cannot be loaded: see the endpoint's log"
                raise Problem(503, "no_backbone", message, retry_after=60) from error

    def _together(self, jobs: Sequence[Asked]) -> list[Outcomes | Problem]:
        rows = [row for job in jobs for row in job.rows]
        tasks = [task for job in jobs for task in job.tasks]
        limits = [job.reject for job in jobs for _ in job.rows]
        numbers = [job.candidates for job in jobs for _ in job.rows]
        named = {index: task for index, task in enumerate(tasks) if task is not None}
        unnamed = [index for index in range(len(rows)) if index not in named]
        predictor, size = Predictor(self._session.models), self._settings.batch_rows
        predictions, later = dict[int, Prediction](), dict[int, Prediction]()
        if not unnamed:
            self._verify([*named.values()])
        else:
            listed = [rows[index] for index in unnamed]
            finder, kept, routes = self._routes(listed)
            candidates = {place: number for place, index in enumerate(unnamed) if (number := numbers[index])}
            own = {place: limits[index] for place, index in enumerate(unnamed)}
            here = dict(enumerate(routes))
            # The other queue would not know the candidates of a row whose task was learned after the row had got its queue.
            texts = {
                place: route
                for place, route in enumerate(routes)
                if not self._generates
                and place not in candidates
                and self._catalog.certificate(route.task).generation is not None
            }
            for place, found in finder.known(texts, {}, own).items():
                if not found.rejected:
                    route = here.pop(place)
                    later[unnamed[place]] = route.with_tasks(Prediction(task=route.task), found)
            more = [task for place, number in candidates.items() for task in routes[place].candidates(number)]
            self._verify([*named.values(), *(route.task for route in here.values()), *more])

            def by_tasks(tasks: Mapping[int, str], vectors: dict[int, Array]) -> dict[int, Prediction]:
                # Rows whose task was found resume from the pass that found it, if the banks allow it.
                below = chosen_states(finder, kept, tasks)
                return predictor.resume(listed, tasks, below, batch_size=size, vectors=vectors)

            answers = found_answers(finder, here, own, candidates, by_tasks)
            predictions = {unnamed[place]: answer for place, answer in answers.items()}
        predictions |= predictor.resume(rows, named, None, batch_size=size)
        outcomes = iter(
            later[index] if index in later else record(self._catalog, row, predictions[index])
            for index, row in enumerate(rows)
        )
        return [[next(outcomes) for _ in job.rows] for job in jobs]

    def _routes(self, rows: Sequence[Row]) -> tuple[TaskFinder, dict[Encoding, StatesBelow] | None, list[Route]]:
        """Find the tasks of rows; also return their states below all banks, if banks can start from them.

        Raises:
            Problem: if the run has no router.
            InputError: if no task takes a row of this type.
        """
        models = self._session.models
        try:
            finder = task_finder(models)
        except InputError as error:
            _log.error("tasks cannot be found: %s", error)
            raise no_routing() from error
        self._load(finder.certificates)
        if finder.reads_images and not all(isinstance(row, dict) for row in rows):
            # A text would be read as a path on the server.
            raise InputError(f"row 1: each row must be {in_words(IMAGE, named=False)}")
        kept = kept_states(models, finder, len(rows))
        return finder, kept, finder.routes(rows, finder.states(models, rows, self._settings.batch_rows, below=kept))


def record(catalog: Catalog, row: Row, prediction: Prediction) -> Record:
    """Return one row's record, in the format of ``predict --json``; images are left out."""
    inputs: Record | None = {} if isinstance(row, dict) else None
    certificate = catalog.certificate(prediction.task or next(iter(prediction.runners_up)))
    named: Record = {"task": prediction.task}
    route = named if prediction.task_probability is None else route_of(prediction)
    if prediction.candidates:
        route["candidates"] = candidates_of(row, prediction, catalog.certificate)
    return route | record_of(row, prediction, certificate, inputs)

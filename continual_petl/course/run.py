"""A run folder, opened: its results, its verification, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from continual_petl import _notebook
from continual_petl.course.session import Session
from continual_petl.errors import StoreError
from continual_petl.heads.words import Answer
from continual_petl.predictor.one_or_many import OneOrSeveral, OneRow
from continual_petl.predictor.predictor import Predictor, Row
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.inventory import entry_of
from continual_petl.report.results import Results, read_results
from continual_petl.store.finding import TaskCheck
from continual_petl.store.open_run import check_learned, open_store
from continual_petl.store.store import Store
from continual_petl.store.stream_seal import load_begun

if TYPE_CHECKING:
    from continual_petl.course.ablation import Spans, Tell
    from continual_petl.course.check_together import Progress
    from continual_petl.report.ablation import Ablation
    from continual_petl.report.figures.every import Figures

_SHOWN = ("task", "kind", "bank", "metric", "score", "parameters", "bytes")


class Run:
    """What was learned into a run folder. Reading only; nothing here changes the folder.

    Args:
        folder: the run folder.
        session: what the process that learned it still holds in memory; left out, everything is read from the folder.
        remote_code: whether Python code beside the backbone may be executed where the folder's stream asks for it. A folder
            may come from anyone; unless you say so, all that needs the backbone is refused then.
        resident_bytes: how much the banks in memory may take together; the one that was asked for longest ago goes first,
            and one is always held. Left out, 1 GiB, or what the session has. Batches of several tasks bring copies of their
            banks together, of which up to 256 MiB are kept beside.

    Raises:
        InputError: if the folder holds no run.
        ValueError: if ``resident_bytes`` is negative.

    Example::

        run = Run("runs/quickstart")
        run.results.R, run.verify(), run.predict("some text", task="agnews").value
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        session: Session | None = None,
        remote_code: bool = False,
        resident_bytes: int | None = None,
    ) -> None:
        # The one that learned knows much of the folder already.
        self.store = open_store(folder) if session is None else session.store
        self._session = session or Session(load_begun(self.store.stream_file), self.store, consent=remote_code)
        if resident_bytes is not None:
            self._session.residents.held_banks.limit(resident_bytes)

    def __repr__(self) -> str:
        return f"Run({str(self.store.folder)!r}, tasks: {_notebook.names(lambda: self.store.tasks)})"

    def _repr_html_(self) -> str:
        try:
            tasks = self.store.tasks
            # Read one by one while the table asks for more: of many tasks, the first ones.
            rows = ([entry[key] for key in _SHOWN] for entry in map(partial(entry_of, self.store), tasks))
            return _notebook.table(f"Run {self.store.folder}", _SHOWN, rows, len(tasks))
        except (StoreError, OSError):
            return _notebook.table(repr(self), (), (), 0)

    @property
    def session(self) -> Session:
        """The stream, with what is in memory."""
        return self._session

    @property
    def results(self) -> Results:
        """The result matrix R and what follows from it."""
        return self.store.steadily(lambda: read_results(self.store.snapshot()))

    @property
    def growth(self) -> list[GrowthRow]:
        """What each task cost."""
        return self.store.steadily(lambda: growth(self.store.snapshot()))

    def figures(self, task: str | None = None) -> Figures:
        """Return the report's figures, of the run or of one task, as plotly figures by name; a notebook shows them inline.

        Args:
            task: a learned task; None means the run.

        Raises:
            InputError: if the task is not learned.

        Example::

            run.figures()  # all of them
            run.figures()["matrix"]  # one
            run.figures("agnews")["curve"]
        """
        from continual_petl.report.facts import read_facts  # with what draws, which takes a moment to import
        from continual_petl.report.figures.every import figures_of_run, figures_of_task

        if task is not None:
            self.check_learned(task)
        facts = read_facts(self.store.folder)
        own = next((each for each in facts.tasks if each.name == task), None)
        return figures_of_run(facts) if own is None else figures_of_task(own)

    def to_json(self) -> dict[str, Any]:
        """Return all there is to say about the run as JSON values, with what it was learned on and with."""
        return self.store.steadily(lambda: self._as_json(self.store.snapshot()))

    def _as_json(self, store: Store) -> dict[str, Any]:
        head = store.head()
        pin, manifests = store.pin(), {task: store.manifest(task) for task in store.tasks}
        backbone = None if pin is None else pin.model_dump(mode="json", exclude={"tensors", "config"})
        return {
            "stream": self._session.spec.name,
            "backbone": backbone,
            "environments": {task: m.environment.model_dump(mode="json") for task, m in manifests.items()},
            "scores": {
                task: {split: scores.model_dump(mode="json") for split, scores in m.scores.items()}
                for task, m in manifests.items()
            },
            "results": read_results(store).to_json(),
            "growth": [row.to_json() for row in growth(store)],
            "chain": None if head is None else {"entries": head.index + 1, "seal": head.seal},
        }

    def check_learned(self, task: str) -> None:
        """Raise `InputError`, naming the learned tasks, if this is not one of them."""
        check_learned(self.store, task)

    def verify(
        self,
        task: str | None = None,
        *,
        data: bool = False,
        most: int | None = None,
        jobs: int | None = 1,
        tell: Progress | None = None,
    ) -> list[TaskCheck]:
        """Check certificates, of one task or of all; nothing is raised for what was forgotten, only told.

        Args:
            task: a learned task; None means all.
            data: also answer the test rows again, and compare scores and every prediction.
            most: check no more certificates than this, as commands that learn do in a run of many tasks: those of the newest
                tasks and of some others. The chain is checked as a whole in any case.
            jobs: check in as many processes at most, where that saves time; None: one for each core. Write it under
                ``if __name__ == "__main__":`` in a script, which the processes import. A backbone that is in memory already
                is what is checked, in this process alone.
            tell: called with how many certificates are checked, and of how many.

        Returns:
            One check per task that was checked. What is wrong with files that belong to no task comes behind, under their
            names in brackets.
        """
        from continual_petl.course.verification import verify_run  # with Lightning, which takes seconds to import

        if task is not None:
            self.check_learned(task)
        return list(verify_run(self._session, task, data=data, most=most, jobs=jobs, tell=tell))

    def ablate(
        self,
        task: str,
        spans: Spans | None = None,
        split: Literal["validation", "test"] = "validation",
        *,
        tell: Tell | None = None,
    ) -> Ablation:
        """Score a task's bank without its modifications in spans of layers, and without training (Houlsby et al. 2019, 3.6).

        Args:
            task: a learned task; its rows have to be available.
            spans: ``all`` (None means that too), ``single``, or a list of spans: (first, last), both of them removed.
            split: what is answered.
            tell: called with how many measurements are done, and of how many.

        Raises:
            InputError: if the bank has nothing in layers, a span is not one of its backbone, or the rows are gone.

        Example::

            found = run.ablate("agnews")
            found.full, found[0, 3].relative  # the whole bank's score; what is lost without the layers 0 to 3
            found.figure()
        """
        from continual_petl.course.ablation import ablate_task  # with Lightning, which takes seconds to import

        self.check_learned(task)
        return ablate_task(self._session, task, spans, split=split, tell=tell)

    @overload
    def predict(self, rows: OneRow, task: str, *, batch_size: int = 32) -> Answer: ...
    @overload
    def predict(self, rows: OneOrSeveral, task: str, *, batch_size: int = 32) -> Answer | list[Answer]: ...
    @overload
    def predict(self, rows: Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32) -> list[Answer]: ...
    def predict(
        self, rows: Row | Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32
    ) -> Answer | list[Answer]:
        """Return the answer to one row, or the list of answers to several, from the bank of one task or of one for each row.

        Args:
            rows: a list of texts, pairs of texts, lists of words or images, or one row by itself; see `Predictor.predict`.
            task: the learned task that answers, or one for each row in a list.
            batch_size: rows at a time.

        Example::

            run.predict("How far is the moon?", task="topics").value
            [answer.value for answer in run.predict(["one text", "and another"], task="topics")]
        """
        return Predictor(self._session.residents).predict(rows, task, batch_size=batch_size)

    @overload
    def predict_all(self, rows: OneRow, tasks: Sequence[str]) -> dict[str, Answer]: ...
    @overload
    def predict_all(self, rows: OneOrSeveral, tasks: Sequence[str]) -> dict[str, Answer] | dict[str, list[Answer]]: ...
    @overload
    def predict_all(self, rows: Sequence[Row], tasks: Sequence[str]) -> dict[str, list[Answer]]: ...
    def predict_all(
        self, rows: Row | Sequence[Row], tasks: Sequence[str]
    ) -> dict[str, Answer] | dict[str, list[Answer]]:
        """Return the answers of several tasks to the same row or rows, what is frozen below their banks computed once."""
        return Predictor(self._session.residents).predict_all(rows, tasks)

"""A run folder, opened: its results, its verification, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continual_petl.course.session import Session
from continual_petl.errors import InputError
from continual_petl.heads.words import Answer
from continual_petl.predictor.predictor import Predictor, Row
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.results import Results, read_results
from continual_petl.store.store import Store
from continual_petl.store.verify import TaskCheck
from continual_petl.streams.stream_file.yaml_file import load_stream


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
        run.results.R, run.verify(), run.predict(["some text"], task="agnews")
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        session: Session | None = None,
        remote_code: bool = False,
        resident_bytes: int | None = None,
    ) -> None:
        self.store = Store(Path(folder))
        if not self.store.stream_file.is_file():
            raise InputError(
                f"{folder}: no run here (no stream.yaml in it); give a folder that `continual-petl run` made"
            )
        self._session = session or Session(load_stream(self.store.stream_file), self.store, consent=remote_code)
        if resident_bytes is not None:
            self._session.residents.held_banks.limit(resident_bytes)

    def __repr__(self) -> str:
        return f"Run({str(self.store.folder)!r}, tasks: {', '.join(self.store.tasks) or 'none'})"

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
        if not self.store.has(task):
            known = ", ".join(self.store.tasks) or "none"
            raise InputError(f"task {task!r} is not learned in {self.store.folder}; learned are: {known}")

    def verify(self, task: str | None = None, *, data: bool = False) -> list[TaskCheck]:
        """Check certificates, of one task or of all; nothing is raised for what was forgotten, only told.

        Args:
            task: a learned task; None means all.
            data: also answer the test rows again, and compare scores and every prediction.

        Returns:
            One check per task. What is wrong with files that belong to no task comes behind, under their names in brackets.
        """
        from continual_petl.course.verification import verify_run  # with Lightning, which takes seconds to import

        if task is not None:
            self.check_learned(task)
        return list(verify_run(self._session, task, data=data))

    def predict(self, rows: Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32) -> list[Answer]:
        """Return one answer per text (or pair of texts), from the bank of one task, or of one task for each row.

        Args:
            rows: see `Predictor.predict`.
            task: the learned task that answers, or one for each row.
            batch_size: rows at a time.
        """
        return Predictor(self._session.residents).predict(rows, task, batch_size=batch_size)

    def predict_all(self, rows: Sequence[Row], tasks: Sequence[str]) -> dict[str, list[Answer]]:
        """Return the answers of several tasks to the same texts, what is frozen below their banks computed once."""
        return Predictor(self._session.residents).predict_all(rows, tasks)

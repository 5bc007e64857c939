"""A run folder, opened: its results, its verification, its answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continual_petl.course.evaluate import evaluate
from continual_petl.course.session import Session
from continual_petl.errors import InputError
from continual_petl.heads.words import Answer
from continual_petl.predictor.predictor import Predictor, Row
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.results import Results, read_results
from continual_petl.store.environment import current_environment
from continual_petl.store.store import Store
from continual_petl.store.verify import TaskCheck, check_backbone, check_task
from continual_petl.streams.stream_file.yaml_file import load_stream


class Run:
    """What was learned into a run folder. Reading only; nothing here changes the folder.

    Args:
        folder: the run folder.
        session: what the process that learned it still holds in memory; left out, everything is read from the folder.
        remote_code: whether Python code beside the backbone may be executed where the folder's stream asks for it. A folder
            may come from anyone; unless you say so, all that needs the backbone is refused then.

    Raises:
        InputError: if the folder holds no run.

    Example::

        run = Run("runs/quickstart")
        run.results.R, run.verify(), run.predict(["some text"], task="agnews")
    """

    def __init__(self, folder: str | Path, *, session: Session | None = None, remote_code: bool = False) -> None:
        self.store = Store(Path(folder))
        if not self.store.stream_file.is_file():
            raise InputError(
                f"{folder}: no run here (no stream.yaml in it); give a folder that `continual-petl run` made"
            )
        self._session = session or Session(load_stream(self.store.stream_file), self.store, consent=remote_code)

    def __repr__(self) -> str:
        return f"Run({str(self.store.folder)!r}, tasks: {', '.join(self.store.tasks) or 'none'})"

    @property
    def session(self) -> Session:
        """The stream, with what is in memory."""
        return self._session

    @property
    def results(self) -> Results:
        """The result matrix R and what follows from it."""
        return read_results(self.store)

    @property
    def growth(self) -> list[GrowthRow]:
        """What each task cost."""
        return growth(self.store)

    def to_json(self) -> dict[str, Any]:
        """Return all there is to say about the run as JSON values, with what it was learned on and with."""
        manifests = {task: self.store.manifest(task) for task in self.store.tasks}
        return {
            "stream": self._session.spec.name,
            "backbone": self.store.backbone_facts(),
            "environments": {task: m.environment.model_dump(mode="json") for task, m in manifests.items()},
            "scores": {
                task: {split: scores.model_dump(mode="json") for split, scores in m.scores.items()}
                for task, m in manifests.items()
            },
            "results": self.results.to_json(),
            "growth": [row.to_json() for row in self.growth],
        }

    def check_learned(self, task: str) -> None:
        """Raise `InputError`, naming the learned tasks, if this is not one of them."""
        if task not in self.store.tasks:
            known = ", ".join(self.store.tasks) or "none"
            raise InputError(f"task {task!r} is not learned in {self.store.folder}; learned are: {known}")

    def verify(self, task: str | None = None, *, data: bool = False) -> list[TaskCheck]:
        """Check certificates, of one task or of all; nothing is raised for what was forgotten, only told.

        Args:
            task: a learned task; None means all.
            data: also answer the test rows again, and compare scores and every prediction.
        """
        if task is not None:
            self.check_learned(task)
        checks = []
        store = Store(self.store.folder)  # one that remembers nothing: what lies on the disk is what is checked
        for name in store.tasks if task is None else [task]:
            backbone = self._session.residents.backbone_of(name)
            check = check_task(store, name, backbone)
            problems = [*check_backbone(backbone), *self._session.residents.check_preparation(name), *check.problems]
            if data and not problems:
                problems += self._check_data(name)
            how = f"{check.how}, test rows" if data and not problems else check.how
            newest = self._session.residents.newest_shared()
            if store.manifest(name).bank.scope == "shared" and newest != name:
                # The certificate is of the bank at commit. That holds; what answers today is another matter.
                how += f"; as committed, but it answers with the shared bank of {newest!r} now"
            checks.append(
                TaskCheck(
                    task=name,
                    problems=tuple(problems),
                    how=how,
                    largest_difference=check.largest_difference,
                    seconds=check.seconds,
                )
            )
        # The chain of certificates names every task but the newest; the results name them all.
        written = dict.fromkeys(row["task"] for row in store.results() if row["type"] == "task")
        for name in written if task is None else ():
            if name not in store.tasks:
                problem = f"task {name!r} was learned, but its bank is gone: {store.bank_folder(name)} is missing"
                checks.append(
                    TaskCheck(task=name, problems=(problem,), how="results", largest_difference=math.nan, seconds=0.0)
                )
        return checks

    def predict(self, rows: Sequence[Row], task: str) -> list[Answer]:
        """Return one answer per text (or pair of texts), from one task's bank."""
        return Predictor(self._session.residents).predict(rows, task)

    def _check_data(self, task: str) -> list[str]:
        """Answer a task's test rows again with the bank as it was committed."""
        spec = next((spec for spec in self._session.spec.tasks if spec.name == task), None)
        if spec is None:
            return [f"task {task!r} is not in the stream any more, so its test rows are unknown"]
        manifest = self.store.manifest(task)
        split_name = "test" if "test" in manifest.scores else "validation"
        try:
            split = self._session.split(spec)
        except InputError as error:
            return [f"task {task!r}: its test rows are not at hand: {error}"]
        if split.digest != manifest.data[split_name]:
            return [f"task {task!r}: its test rows are not those it was certified on"]
        residents = self._session.residents
        learner = residents.resident(task, as_committed=True)
        found = evaluate(learner, split.rows, residents.pad_token_id, self._session.spec.trainer, self._session.folder)
        certified = manifest.scores[split_name]
        backbone = learner.backbone
        now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
        differs = manifest.environment.differences(now)
        if found == certified or (differs and _close(found.scores, certified.scores)):
            return []
        return [f"task {task!r}: its test rows score {found.scores} now, certified was {certified.scores}"]


def _close(found: dict[str, float], certified: dict[str, float]) -> bool:
    """Another environment may round a row that lies on the border to the other side: one point of slack."""
    return found.keys() == certified.keys() and all(abs(found[name] - certified[name]) <= 0.01 for name in found)

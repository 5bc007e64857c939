"""The step axis of each logger of a run: one axis over all tasks, stored in the run folder.

The axis counts optimizer steps. It never goes back: a fit that resumes from a checkpoint logs nothing twice, and a fit that
starts over begins after the points already logged for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Index
from continual_petl.store.files.reading import parse_json, read_file

_MAX_BYTES = 2**22


class Axis(StrictModel):
    """The position of one logger."""

    id: str | None = None
    """Id of the W&B run."""
    logged: Index = 0
    """The last logged step."""
    task: str = ""
    """The task whose fit is being logged, or was logged last."""
    begins: Index = 0
    """Position on the axis of step 0 of `task`."""
    loss: Index = 0
    """The step of `task` up to which losses are logged."""
    score: Index = 0
    """The step of `task` up to which validation scores are logged."""
    done: int = Field(default=-1, ge=-1)
    """Position in the chain of the last task that is completely logged."""

    def at(self, task: str, *, anew: bool = False) -> Axis:
        """Return the axis for a task: unchanged if its fit continues, otherwise starting after everything logged so far.

        Args:
            task: the task.
            anew: whether the task's fit starts from its first step.
        """
        if task == self.task and not (anew and (self.loss or self.score)):
            return self
        return self.model_copy(update={"task": task, "begins": self.logged, "loss": 0, "score": 0})


class _File(StrictModel):
    format_version: Literal[1] = 1
    loggers: dict[str, Axis] = Field(default_factory=dict)


class Axes:
    """The axes of all loggers of a run folder, in one file.

    Args:
        path: the file; it is created when something is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Axis] = {}
        # Left half-written by a killed run; no other process is writing, since loggers are only created under the run's lock.
        for stale in path.parent.glob(f".{path.name}.*.new"):
            stale.unlink(missing_ok=True)
        try:
            raw: Any = parse_json(read_file(path, _MAX_BYTES), str(path))
            self._known = _File.model_validate(raw).loggers
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise StoreError(
                f"{path}: it does not contain valid logger positions ({error.error_count()} errors, the first at "
                f"{'.'.join(map(str, error.errors()[0]['loc']))}). No bank depends on this file: remove it, and logging "
                "starts over."
            ) from error

    def of(self, logger: str) -> Axis:
        """Return the position of a logger."""
        return self._known.get(logger, Axis())

    def put(self, logger: str, axis: Axis) -> None:
        """Record the position of a logger before a point is logged, so that no point is logged twice if the process is
        killed.

        The file is not flushed to disk: that would cost more than the logged step. A power failure that loses the
        position also loses part of the loggers' files.
        """
        self._known[logger] = axis
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        text = json.dumps(_File(loggers=self._known).model_dump(mode="json"), indent=2, sort_keys=True)
        try:
            beside.write_text(text + "\n", encoding="utf-8")
            os.replace(beside, self._path)
        finally:
            beside.unlink(missing_ok=True)

"""How far each logger of a course has come: one step axis over all tasks, kept with the run folder.

The axis counts optimizer steps that were done. It never turns back: a fit that goes on from a checkpoint logs nothing twice,
and one that begins again begins behind what was logged of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.errors import StoreError
from continual_petl.store.files import parse_json, read_file
from continual_petl.store.manifest import Index

_MOST_BYTES = 2**22


class Axis(FrozenModel):
    """Where one logger stands."""

    id: str | None = None
    """Of the W&B run."""
    logged: Index = 0
    """The last step."""
    task: str = ""
    """The task whose fit is logged, or was last."""
    begins: Index = 0
    """Steps before that task."""
    loss: Index = 0
    """Steps of that task up to which losses are logged."""
    score: Index = 0
    """The same for validation scores."""
    done: int = Field(default=-1, ge=-1)
    """Position in the chain of the last task that is logged whole."""

    def at(self, task: str, *, anew: bool = False) -> Axis:
        """Return the axis at a task: where it was left, or behind all that is logged.

        Args:
            task: the task.
            anew: whether its fit begins with its first step.
        """
        if task == self.task and not (anew and (self.loss or self.score)):
            return self
        return self.model_copy(update={"task": task, "begins": self.logged, "loss": 0, "score": 0})


class _File(FrozenModel):
    format_version: Literal[1] = 1
    loggers: dict[str, Axis] = Field(default_factory=dict)


class Axes:
    """The axes of all loggers of a run folder, in one file.

    Args:
        path: the file; it appears when something is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Axis] = {}
        # What a course that was killed left half-written; whoever makes loggers holds the run's lock.
        for stale in path.parent.glob(f".{path.name}.*.new"):
            stale.unlink(missing_ok=True)
        try:
            raw: Any = parse_json(read_file(path, _MOST_BYTES), str(path))
            self._known = _File.model_validate(raw).loggers
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise StoreError(
                f"{path}: it does not say how far the loggers came ({error.error_count()} mistakes, first at "
                f"{'.'.join(map(str, error.errors()[0]['loc']))}). No bank depends on it: remove it, and logging starts over."
            ) from error

    def of(self, logger: str) -> Axis:
        """Return where a logger stands."""
        return self._known.get(logger, Axis())

    def put(self, logger: str, axis: Axis) -> None:
        """Note where a logger stands; called before a point is logged, so that a kill never makes it log one twice.

        It is not flushed to disk: that would cost more than the step that is logged. What a power cut takes away, it takes
        away of the loggers' own files too.
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

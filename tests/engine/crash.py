"""A process that learns a small run and is killed, without warning, at a named point.

`deaths` forks one child for each name in INSTANTS, so that torch is not imported again; the child's run folder is
FOLDER/INSTANT, in which the first of two tasks may already be learned. ``main(BACKBONE, FOLDER)`` prints a line at every
step, waits at the fifth for a line on standard input, and exits with 100 plus the number of the signal that stopped it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import lightning as L

from continual_petl import StreamCallback, learn
from continual_petl.engine import learn as learn_module
from continual_petl.engine.task import learn_task
from continual_petl.errors import Interrupted
from continual_petl.store import commit
from continual_petl.store.files import atomic
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream, task

# 24 rows in batches of 5: ten batches in two epochs.
TRAINING = {"batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 3, "head_dropout": 0.3}


def tasks_of(backbone: Path) -> TaskStream:
    """Return a stream of two tasks; the process is killed while it learns the second."""
    return stream(backbone, [task("one", num_rows=24), task("two", num_rows=24)], training=TRAINING)


class At(StreamCallback):
    """Kill the process at the ``count``-th call of a hook (of Lightning or of the run) in the second task."""

    def __init__(self, hook: str, count: int = 1) -> None:
        self._second, self._left = False, count
        setattr(self, hook, self._hook)

    def on_task_start(self, run: Any, task: Any) -> None:
        self._second = task.name == "two"

    def _hook(self, *args: Any, **kwargs: Any) -> None:
        self._left -= self._second
        if self._left == 0:
            die()


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_place_of(module: Any, name: str, *mentions: str, half: bool = False) -> At:
    """Kill the process at the call whose arguments mention the second task; with ``half``, write half the content first."""
    real = getattr(module, name)

    def act(*args: Any, **kwargs: Any) -> Any:
        said = " ".join(map(str, args))
        if all(word in said for word in ("two", *mentions)):
            if half:
                path, content = args
                path.write_bytes(content[: len(content) // 2])
            die()
        return real(*args, **kwargs)

    setattr(module, name, act)
    return At("never")


def half_a_checkpoint() -> At:
    """Kill the process when half of the second task's second checkpoint is written."""
    real, count = L.Trainer.save_checkpoint, [0]

    def save(trainer: L.Trainer, path: Any, *args: Any, **kwargs: Any) -> None:
        real(trainer, path, *args, **kwargs)
        count[0] += "two" in str(path)
        if count[0] == 2:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    L.Trainer.save_checkpoint = save  # type: ignore[method-assign, assignment]
    return At("never")


INSTANTS: dict[str, Callable[[], At]] = {
    "first-batch": lambda: At("on_train_batch_start"),
    "after-a-checkpoint": lambda: At("on_train_batch_end", 4),
    "half-a-checkpoint": half_a_checkpoint,
    "validation": lambda: At("on_validation_batch_start"),
    "before-the-epochs-checkpoint": lambda: At("on_train_epoch_end"),
    "second-epoch": lambda: At("on_train_batch_start", 8),
    "last-batch": lambda: At("on_train_batch_end", 10),
    "fit-end": lambda: At("on_fit_end"),
    "before-the-commit": lambda: in_place_of(learn_task, "outputs_of"),
    "half-a-certificate": lambda: in_place_of(atomic, "write_file", "bank.json", half=True),
    "bank-written": lambda: in_place_of(commit, "write_certificate"),
    "after-the-commit": lambda: in_place_of(learn_module, "finish_task"),
    "row-measured": lambda: At("on_task_end"),
}


def deaths(backbone: Path, folder: Path, instants: Sequence[str]) -> dict[str, int]:
    """Return, for each instant, the number of the signal that killed its process, or 0 if none did."""
    found = {}
    for instant in instants:
        child = os.fork()
        if child == 0:
            try:
                learn(tasks_of(backbone), folder / instant, callbacks=[INSTANTS[instant]()])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        found[instant] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return found


def in_a_process(arguments: Sequence[str], reads: int, says: int, others: Sequence[int]) -> NoReturn:
    """Run `main` in a forked process with two pipes as standard input and output, close ``others``, and exit."""
    code: Any = 1
    try:
        for end in others:
            os.close(end)
        sys.stdin, sys.stdout = os.fdopen(reads), os.fdopen(says, "w")
        main(*arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(backbone: str, folder: str) -> None:
    """Learn the run as described at the top of this module."""
    try:
        learn(tasks_of(Path(backbone)), Path(folder), callbacks=[Waits()])
    except Interrupted as stop:
        sys.exit(100 + stop.signal_number)


class Waits(L.Callback):
    """Print a line at every step, and wait at the fifth for a line on standard input."""

    _num_steps = 0

    def on_train_batch_start(self, *args: Any) -> None:
        self._num_steps += 1
        print("step", flush=True)
        if self._num_steps == 5:
            sys.stdin.readline()

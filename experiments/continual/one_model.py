"""One model for all tasks, as baselines for banks: fine-tuning with replay, and joint training.

Neither is in the library, which learns one task at a time; the loop is in `experiments.continual.shared_model`.

* replay: sequential fine-tuning; a `Memory` keeps a share of the training rows of each earlier task, and after every few
  batches of the new task, there is one optimizer step on rows from the memory (`Trial.options`: ``memory``, the share, and
  ``every``). Earlier heads are trained further on their rows. As in a run, the epoch with the best validation score on the
  new task is kept.
* joint: the batches of all tasks in one shuffled sequence, for the same number of epochs, with one optimizer for body and
  heads. The epoch with the best mean of all validation scores is kept. The result does not depend on the order of the
  tasks, bit for bit.

Shape suffixes: T tasks; ``R_TT`` as in `continual_petl.metrics`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_petl import metrics
from continual_petl.errors import DivergedError
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.loaders import TrainLoader
from experiments.continual.memory import Memory
from experiments.continual.shared_model import OneModel, Part, Step
from experiments.studies.learning import forgetting_by_task, num_bytes, plain
from experiments.studies.trial import Trial

BYTES = 4
"""Bytes per parameter, in training and in storage."""


def run_trial(trial: Trial, data: Path, backbone: str | None = None) -> dict[str, Any]:
    """Learn a trial's tasks and return the results, as JSON values.

    Args:
        trial: a trial with the method ``replay`` or ``joint``.
        data: the folder with the rows.
        backbone: path of the backbone, if it differs from the name in the trial.

    Returns:
        The same as `experiments.studies.learning.run_trial`. There are no certificates, so ``unchanged`` is null. A joint
        trial only has the last row of ``R``. ``memory``: the number of rows that replay kept for each task, and their bytes.
    """
    try:
        # Sorted for joint training, in which the order must not make a difference.
        names = sorted(trial.tasks) if trial.method == "joint" else trial.tasks
        model = OneModel(trial.stream(data, backbone), names)
        if trial.method == "joint":
            R_TT, memory = joint(model, trial.tasks), None
        else:
            memory = Memory(float(trial.options["memory"]))
            R_TT = replay(model, memory, int(trial.options["every"]))
    except DivergedError as error:
        return {"failed": " ".join(str(error).split())}
    outcome: dict[str, Any] = plain(_summary(model, trial, R_TT) | _memory(model, memory))
    return outcome


def replay(model: OneModel, memory: Memory, every: int) -> Tensor:
    """Learn one task after another with rows of earlier tasks, and return the result matrix.

    Args:
        model: the model, with the tasks in order.
        memory: rows that it already holds are replayed too.
        every: number of batches of new rows between two steps on rows of the memory.
    """
    parts = list(model.parts.values())
    R_TT = torch.full((len(parts), len(parts)), torch.nan, dtype=torch.float64)
    for number, part in enumerate(parts):
        loader = part.data.train_dataloader()
        own = part.plan.training.num_steps(len(loader))
        num_steps = own + (own // every if memory.rows else 0)
        steps = _Replaying(model, part, loader, memory, every)
        model.fit(parts[: number + 1], steps, num_steps, judges=[part])
        memory.keep(part.plan.name, len(loader.rows), part.plan.seed)
        _measure(model, parts[: number + 1], R_TT, number)
    return R_TT


class _Replaying:
    """The steps of one task: its batches, and regularly a batch of rows from the memory."""

    def __init__(self, model: OneModel, part: Part, loader: TrainLoader, memory: Memory, every: int) -> None:
        self._model, self._part, self._loader, self._memory, self._every = model, part, loader, memory, every

    def __call__(self, epoch: int) -> Iterator[Step]:
        seed, done = self._part.plan.seed, epoch * len(self._loader)
        for number, batch in enumerate(self._loader):
            # The same seed as for this step in a run, so the dropout is the same.
            yield Step([(self._part, batch)], derive_seed(seed, "step", epoch, number, 0))
            if self._memory.rows and (done + number + 1) % self._every == 0:
                yield self._remembered(derive_seed(seed, "replay", epoch, number))

    def _remembered(self, seed: int) -> Step:
        drawn = self._memory.draw(self._part.plan.training.batch_size, seed)
        parts = {name: self._model.parts[name] for name in drawn}
        batches = [
            (part, collate(part.data.data.train, drawn[name], self._model.pad, kind=part.plan.kind))
            for name, part in parts.items()
        ]
        return Step(batches, seed)


def joint(model: OneModel, order: tuple[str, ...]) -> Tensor:
    """Learn all tasks at once, and return the result matrix, which only has its last row."""
    parts = list(model.parts.values())
    loaders = [part.data.train_dataloader() for part in parts]
    lengths = [len(loader) for loader in loaders]
    owners = torch.tensor([place for place, length in enumerate(lengths) for _ in range(length)])

    def steps(epoch: int) -> Iterator[Step]:
        draw = torch.Generator().manual_seed(derive_seed(model.spec.seed, "joint", epoch))
        batches, numbers = [iter(loader) for loader in loaders], [0] * len(parts)
        for place in owners[torch.randperm(len(owners), generator=draw)].tolist():
            seed = derive_seed(parts[place].plan.seed, "step", epoch, numbers[place], 0)
            numbers[place] += 1
            yield Step([(parts[place], next(batches[place]))], seed)

    model.fit(parts, steps, parts[0].plan.training.num_steps(sum(lengths)), judges=parts)
    R_TT = torch.full((len(parts), len(parts)), torch.nan, dtype=torch.float64)
    _measure(model, [model.parts[name] for name in order], R_TT, len(parts) - 1)
    return R_TT


def _measure(model: OneModel, parts: list[Part], R_TT: Tensor, row: int) -> None:
    """Fill a row of the result matrix, and record the scores of tasks that have none yet."""
    begin = time.perf_counter()
    for column, part in enumerate(parts):
        found = model.score(part, part.measured)
        R_TT[row, column] = found["score"]
        if not part.scores:
            split = "validation" if part.data.data.test is None else "test"
            part.scores = {"validation": model.score(part, part.data.val_dataloader()), split: found}
    parts[-1].seconds["evaluate"] += time.perf_counter() - begin


def _summary(model: OneModel, trial: Trial, R_TT: Tensor) -> dict[str, Any]:
    rows = R_TT.tolist()
    whole = len(rows) > 1 and trial.method == "replay"
    return {
        "scores": {name: model.parts[name].scores for name in trial.tasks},
        "R": rows if len(rows) > 1 else None,
        "acc": metrics.acc(R_TT).item(),
        "bwt": metrics.bwt_gem(R_TT).item(),
        "forgetting": metrics.forgetting_max(R_TT).item(),
        "forgetting_by_task": forgetting_by_task(rows) if whole else None,
        "tasks": {name: _of_task(model, model.parts[name]) for name in trial.tasks},
        "backbone_parameters": model.backbone.num_parameters,
        "backbone_bytes": num_bytes(model.backbone.model),
        "unchanged": None,
        "arithmetic": model.backbone.precision,
    }


def _of_task(model: OneModel, part: Part) -> dict[str, Any]:
    model.body.head = part.head
    parameters = model.body.count()
    return {
        "digest": None,
        "parameters": parameters,
        "bytes": BYTES * sum(parameters.values()),
        "seconds": part.seconds,
        "curve": part.curve,
    }


def _memory(model: OneModel, memory: Memory | None) -> dict[str, Any]:
    if memory is None:
        return {}
    lengths = {name: model.parts[name].data.data.train.lengths for name in memory.rows}
    ids = sum(int(lengths[name][rows].sum()) for name, rows in memory.rows.items())
    return {"memory": {"rows": {name: len(rows) for name, rows in memory.rows.items()}, "bytes": BYTES * ids}}

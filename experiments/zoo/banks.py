"""Banks on the streams of this study, named (protocol ``task``) or found by the router (``class`` and ``domain``).

Banks do not depend on the order of the tasks, bit for bit, so they are learned in one order for each seed. If the task is
named, its score never changes. If it is routed, R in the order that was learned is what the run reports; in other orders, R
is computed from the same banks and routing statistics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np

from continual_petl.engine.commands import learn
from continual_petl.engine.run import Run
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from experiments.continual.methods import HOULSBY, LORA
from experiments.routing.read import Array, read_tasks
from experiments.routing.routes import in_order
from experiments.studies.learning import QUIET

BANKS: dict[str, dict[str, Any]] = {"houlsby_banks": HOULSBY.bank, "lora_banks": LORA.bank}


def run(stream: TaskStream, order: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return R in an order of the stream's tasks, costs and what is kept, as `avalanche_strategies.run` does.

    Args:
        stream: the stream, in the order in which its banks are learned.
        order: the tasks in the order of the matrix; with fewer tasks, only these are learned.
        settings: ``method``, ``protocol``, ``judge`` (the split that is measured), ``epochs``, ``batch_size``,
            ``learning_rate``, and, to learn fewer rows, ``rows`` for each task.
    """
    banks = _learned(json.dumps(_tree(stream, order, settings), sort_keys=True))
    named = settings["protocol"] == "task"
    R_TT = (_named if named else _routed)(banks, order, settings)
    return {
        "matrix": [[None if np.isnan(cell) else cell for cell in row] for row in R_TT.tolist()],
        "seconds": sum(banks.results.seconds[task]["train"] for task in order),
        "steps": sum(banks.store.history(task).curve.losses[-1].step for task in order),
        "trained_parameters": sum(row.trainable for row in banks.growth),
        "kept_rows": 0,
        "kept_bytes": sum(row.num_bytes - named * row.routing_bytes for row in banks.growth),
    }


def _tree(stream: TaskStream, order: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    tree = stream.spec.model_dump(mode="json", exclude_unset=True)
    tasks = [task for task in tree["tasks"] if task["name"] in order]
    if "rows" in settings:
        for task in tasks:
            task["limits"] = (task.get("limits") or {}) | {"train": settings["rows"]}
    training = {name: settings[name] for name in ("epochs", "batch_size", "learning_rate")}
    return tree | {
        "tasks": tasks,
        "bank": BANKS[settings["method"]],
        "training": tree.get("training", {}) | training,
        "routing": {},
    }


@cache
def _folders() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _learned(tree: str) -> Run:
    """Return a run with the stream's banks, which are learned once in a process."""
    folder = Path(_folders().name) / hashlib.sha256(tree.encode()).hexdigest()[:16]
    spec = StreamSpec.model_validate_json(tree)
    L.seed_everything(spec.seed, verbose=False)
    return learn(TaskStream(spec), folder, trainer=QUIET, progress=False)


def _named(banks: Run, order: Sequence[str], settings: dict[str, Any]) -> Array:
    score_T = np.array([banks.store.certificate(task).scores[settings["judge"]].scores["accuracy"] for task in order])
    return np.where(np.tri(len(order), dtype=bool), score_T, np.nan)


def _routed(banks: Run, order: Sequence[str], settings: dict[str, Any]) -> Array:
    tasks = {task.name: task for task in read_tasks(banks, order)}
    stored = {name: task.stored for name, task in tasks.items()}
    # Unless the stream says that labels belong to one task each, labels of two tasks may have the same name.
    own = banks.spec.protocol == "class"
    by_label = own or settings["protocol"] == "domain"
    found = in_order([tasks[name] for name in order], stored, by_label, split=settings["judge"])
    measured = banks.results.routed
    if measured is not None and by_label == own and settings["judge"] == "test" and list(order) == banks.store.tasks:
        assert np.array_equal(found.R, measured.R, equal_nan=True), "the run reports the same matrix"
    return np.where(np.tri(len(order), dtype=bool), found.R, np.nan)

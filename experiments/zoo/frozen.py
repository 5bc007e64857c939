"""Runs a classifier in closed form on the rows that `experiments.zoo.rows` wrote, as `avalanche_strategies` runs others.

The states are those that the router reads: the mean states in three layers of the frozen backbone.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load_file

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.backbone import Backbone, load_backbone, load_tokenizer
from continual_petl.router.row_states import layers_to_read, num_layers_of, row_states
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.encoding.tokenise import padding_id
from experiments.routing.read import Array, Numbers
from experiments.routing.statistics import LAYERS_READ
from experiments.zoo.closed import BYTES, CLOSED, predicted
from experiments.zoo.rows import StreamFolder, read_rows


class States(NamedTuple):
    """The states of a split of a task."""

    states_NF: Array
    label_N: Numbers
    seconds: float
    """Time for computing the states."""


def run(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Learn the tasks of a folder one after another; return the matrix of accuracies, costs and what is kept.

    Args:
        folder: what `experiments.zoo.rows.write_rows` wrote.
        settings: ``method``, ``seed``, ``protocol``, ``judge`` (the split that is measured), ``num_tasks``, and, if given,
            ``strength``; ``num_tasks``, and ``rows``, to learn fewer rows of each task.
    """
    stream = read_rows(folder)
    tasks = stream.tasks[: settings["num_tasks"]]
    train, measured = ([_states(folder, task.name, split) for task in tasks] for split in ("train", settings["judge"]))
    width = train[0].states_NF.shape[1]
    classifier = CLOSED[settings["method"]](width, float(settings.get("strength", 0.0)), settings["seed"])
    matrix, seconds = [], sum(own.seconds for own in train)
    for place, own in enumerate(train):
        began = time.perf_counter()
        classifier.add(own.states_NF[: settings.get("rows")], own.label_N[: settings.get("rows")])
        scores = classifier.solve()
        seconds += time.perf_counter() - began
        row: list[float | None] = [None] * len(tasks)
        for other in range(place + 1):
            allowed = tasks[other].classes if settings["protocol"] == "task" else None
            found_N = predicted(classifier.labels, scores(measured[other].states_NF), allowed)
            row[other] = float((found_N == measured[other].label_N).mean())
        matrix.append(row)
    return {
        "matrix": matrix,
        "seconds": seconds,
        "steps": 0,
        "trained_parameters": classifier.trained,
        "kept_rows": 0,
        "kept_bytes": BYTES * classifier.kept,
    }


@cache
def _states(folder: Path, task: str, split: str) -> States:
    """Return the states of a split, which are computed once in a process."""
    stream, (backbone, pad) = read_rows(folder), _backbone(folder)
    tensors = load_file(folder / f"{task}-{split}.safetensors")
    mask_NL = tensors["mask"].bool()
    types_T = tensors["types"][mask_NL].numpy().astype(np.int8) if "types" in tensors else None
    rows = TokenisedRows(
        ids=tensors["ids"][mask_NL].numpy().astype(np.int32),
        offsets=np.concatenate([[0], mask_NL.sum(1).cumsum(0).numpy()]).astype(np.int64),
        token_types=types_T,
        labels=None,
    )
    began = time.perf_counter()
    with attending(backbone, stream.attention):
        states_NF = row_states(backbone, rows, layers_to_read(num_layers_of(backbone), LAYERS_READ), pad)
    return States(states_NF, tensors["labels"].numpy(), time.perf_counter() - began)


@cache
def _backbone(folder: Path) -> tuple[Backbone, int]:
    stream: StreamFolder = read_rows(folder)
    backbone = load_backbone(stream.backbone, precision=stream.precision, max_length=stream.max_length)
    backbone.model.train(False)
    return backbone, padding_id(load_tokenizer(stream.backbone))

"""How much a row's outputs in bf16 depend on its batch: alone, and in batches of other sizes.

``python -m experiments.benchmarks.batch_rounding --data FOLDER [--out FILE.json]`` learns four tasks with Houlsby banks on
MiniLM in bf16, from a folder with a subfolder of rows for each, and predicts test rows alone and in batches.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continual_petl import Run, TaskStream, learn
from continual_petl.heads.words import Answer
from continual_petl.predictor.task_finder import States, task_finder
from continual_petl.streams.schema.stream_spec import StreamSpec
from experiments.benchmarks.machine import commit, describe
from experiments.studies.learning import QUIET

TASKS = ("trec", "amazon", "rte", "clinc150")
SIZES = (2, 5, 16, 64)
LIMITS = {"train": 1500, "validation": 200, "test": 200}


def stream_of(data: Path, backbone: str = "minilm", bank: Any = "houlsby") -> TaskStream:
    """Return the stream of the four tasks."""
    tasks: list[dict[str, Any]] = [
        {"name": name, "kind": "classification", "data": name, "limits": LIMITS}
        for name in TASKS
        if (data / name).is_dir()
    ]
    for task in tasks:
        if task["name"] == "rte":
            task["columns"] = {"text_pair": "text_pair"}
    tree: dict[str, Any] = {
        "name": "rounding",
        "data_dir": str(data.resolve()),
        "backbone": {"name": backbone, "max_length": 64},
    }
    tree["bank"] = bank
    training = {"epochs": 2, "precision": "bf16"}
    return TaskStream(StreamSpec.model_validate(tree | {"training": training, "evaluate": "certified", "tasks": tasks}))


def changes_of(run: Run, task: str, rows: Sequence[Any]) -> dict[str, float]:
    """Return how much the difference of a row's two best outputs changes between batches, and what that does to labels."""
    alone = [run.predict([row], task)[0] for row in rows]
    changed, labels, flagged, near = [], 0, 0, []
    for size in SIZES:
        for one, other in zip(alone, run.predict(list(rows), task, batch_size=size), strict=True):
            gap, again = _gaps(one, other)
            changed.append(abs(gap - again))
            near += [abs(gap - again)] if gap < 1 else []
            if one.value != other.value:
                labels += 1
                flagged += one.near_tie and other.near_tie
    return {
        "predictions": len(changed),
        "largest change of the gap": max(changed),
        "largest change of a gap below 1": max(near, default=0.0),
        "other label": labels,
        "other label, both near a tie": flagged,
        "share of rows near a tie": float(np.mean([each.near_tie for each in alone])),
    }


def _gaps(one: Answer, other: Answer) -> tuple[float, float]:
    """Return the difference of the two best log-probabilities of one answer, and that of the same labels in the other."""
    assert one.probabilities is not None
    assert other.probabilities is not None
    best, second = sorted(one.probabilities, key=one.probabilities.__getitem__)[:-3:-1]
    gaps = [float(np.log(each[best]) - np.log(each[second])) for each in (one.probabilities, other.probabilities)]
    return gaps[0], gaps[1]


def _only(states: States) -> Mapping[int, Any]:
    """Return the states in the one encoding that rows of a task have."""
    (own,) = (found for found in states.values() if found)
    return own


def routing_changes_of(run: Run, task: str, rows: Sequence[Any]) -> dict[str, float]:
    """Return how much the router's results for rows alone differ from those in one batch."""
    models, finder = run.session.models, task_finder(run.session.models)
    alone = [_only(finder.states(models, [row]))[0] for row in rows]
    own = _only(finder.states(models, list(rows), 64))
    found = []
    for states_NF in (np.stack(alone), np.stack([own[index] for index in range(len(rows))])):
        scores_NT = finder.router.scores(states_NF)
        excess_N, threshold = finder.router.excess(states_NF, task)
        found.append((np.ptp(np.sort(scores_NT, 1)[:, -2:], axis=1), scores_NT.argmax(1), excess_N / threshold))
    (gap, best, far), (other_gap, other_best, other_far) = found
    return {
        "largest change of the log-probabilities": float(np.abs(gap - other_gap).max()),
        "largest change of the distance, as a share of the threshold": float(np.abs(far - other_far).max()),
        "other task": int((best != other_best).sum()),
        "unknown in one only": int(((far > 0) != (other_far > 0)).sum()),
    }


def measure(folder: Path, stream: TaskStream) -> dict[str, Any]:
    """Learn the tasks and return what was measured for each."""
    run = learn(stream, folder, trainer=QUIET, progress=False)
    found = {}
    for task in run.store.tasks:
        (spec,) = (each for each in run.spec.tasks if each.name == task)
        checked = run.session.rows(spec)
        rows = checked.inputs if checked.pairs is None else list(zip(checked.inputs, checked.pairs, strict=True))
        found[task] = changes_of(run, task, rows) | {"routing": routing_changes_of(run, task, rows)}
    return found


def main(arguments: list[str]) -> None:
    """Learn, measure, and print or write the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.batch_rounding", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    machine = describe(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch) / "run", stream_of(given.data))
    revision, changed = commit()
    result = {
        "command": "python -m experiments.benchmarks.batch_rounding --data FOLDER",
        "commit": revision,
        "changed": changed,
        "machine": machine.model_dump(mode="json"),
        "tasks": found,
    }
    text = json.dumps(result, indent=2) + "\n"
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""How much a row's outputs in bf16 depend on its batch: alone, and in batches of other sizes.

``python -m experiments.benchmarks.batch_rounding --data FOLDER [--writer FOLDER] [--out FILE.json]`` learns four tasks with
labels and one with numbers, with Houlsby banks on MiniLM in bf16, from a folder with a subfolder of rows for each, and
predicts test rows alone and in batches. With a backbone that writes, such as the one that ``python -m
experiments.he2022.pretraining`` makes, it does so instead for tasks that generate texts by greedy search, by sampling and
with beams, and for one that chooses among options.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continual_petl import Run, TaskStream, learn
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.task_finder import States, task_finder
from continual_petl.streams.schema.stream_spec import StreamSpec
from experiments.benchmarks.machine import describe, write_measured
from experiments.studies.learning import QUIET

TASKS = ("trec", "amazon", "rte", "clinc150")
NUMBERS = "stsb"
PAIRS = ("rte", NUMBERS)
TEXTS, OPTIONS = "xsum", "trec"
GENERATION: dict[str, dict[str, Any]] = {
    TEXTS: {},
    "xsum-sampled": {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
    "xsum-beams": {"num_beams": 4},
}
SIZES = (2, 5, 16, 64)
LIMITS = {"train": 1500, "validation": 200, "test": 200}


def stream_of(data: Path, backbone: str = "minilm", bank: Any = "houlsby") -> TaskStream:
    """Return the stream of the tasks with labels and numbers."""
    tasks: list[dict[str, Any]] = [
        {"name": name, "kind": "regression" if name == NUMBERS else "classification", "data": name, "limits": LIMITS}
        for name in (*TASKS, NUMBERS)
        if (data / name).is_dir()
    ]
    for task in tasks:
        if task["name"] in PAIRS:
            task["columns"] = {"text_pair": "text_pair"}
    return _stream(data, backbone, bank, tasks)


def writing_stream_of(data: Path, backbone: str, bank: Any = "houlsby") -> TaskStream:
    """Return the stream of the tasks that generate texts and one that chooses among options."""
    texts: list[dict[str, Any]] = [
        {"name": name, "kind": "seq2seq", "data": TEXTS, "generation": {"max_new_tokens": 32} | more}
        for name, more in GENERATION.items()
    ]
    options = json.loads((data / OPTIONS / "labels.json").read_text("utf-8"))["names"]
    rows = {}
    for split in LIMITS:
        with gzip.open(data / OPTIONS / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            read = map(json.loads, lines)
            rows[split] = [{"source": row["text"], "target": options[row["label"]]} for row in read]
    chosen = {"name": OPTIONS, "kind": "seq2seq", "data": rows, "options": options}
    tasks = [task | {"limits": LIMITS, "max_target_length": 32} for task in (*texts, chosen)]
    return _stream(data, backbone, bank, tasks)


def _stream(data: Path, backbone: str, bank: Any, tasks: Sequence[dict[str, Any]]) -> TaskStream:
    tree: dict[str, Any] = {
        "name": "rounding",
        "data_dir": str(data.resolve()),
        "backbone": {"name": backbone, "max_length": 64},
        "bank": bank,
        "training": {"epochs": 2, "precision": "bf16"},
        "evaluate": "certified",
        "tasks": tasks,
    }
    return TaskStream(StreamSpec.model_validate(tree))


def changes_of(run: Run, task: str, rows: Sequence[Any]) -> dict[str, float]:
    """Return how much predictions of rows alone differ from those in batches: of numbers, of texts, or of the two best
    outputs.
    """
    alone = [run.predict([row], task)[0] for row in rows]
    again = [each for size in SIZES for each in run.predict(list(rows), task, batch_size=size)]
    pairs = list(zip(alone * len(SIZES), again, strict=True))
    certificate = run.store.certificate(task)
    if certificate.targets is not None:
        largest = max(abs(float(str(one.value)) - float(str(other.value))) for one, other in pairs)
        deviations = largest / certificate.targets.deviation
        return {"predictions": len(pairs), "largest change": largest, "largest change in deviations": deviations}
    changed = [(one, other) for one, other in pairs if one.value != other.value]
    share, both = float(np.mean([each.near_tie for each in alone])), sum(a.near_tie and b.near_tie for a, b in changed)
    what = "text" if certificate.generation is not None else "label"
    counts = {f"other {what}": len(changed), f"other {what}, both near a tie": both, "share of rows near a tie": share}
    if certificate.generation is not None:
        return {"predictions": len(pairs), **counts}
    gaps = [_gaps(one, other) for one, other in pairs]
    return {
        "predictions": len(pairs),
        "largest change of the gap": max(abs(gap - again) for gap, again in gaps),
        "largest change of a gap below 1": max((abs(gap - again) for gap, again in gaps if gap < 1), default=0.0),
        **counts,
    }


def _gaps(one: Prediction, other: Prediction) -> tuple[float, float]:
    """Return the difference of the two best log-probabilities of one answer, and that of the same labels in the other."""
    assert one.probabilities is not None
    assert other.probabilities is not None
    best, second = sorted(one.probabilities, key=one.probabilities.__getitem__)[:-3:-1]
    gaps = [float(np.log(each[best]) - np.log(each[second])) for each in (one.probabilities, other.probabilities)]
    return gaps[0], gaps[1]


def _only(states: States) -> Mapping[int, Any]:
    """Return the states in the one encoding that rows of a task have."""
    (own,) = (found for found in states.values() if found)
    return {index: row.features_F for index, row in own.items()}


def routing_changes_of(run: Run, task: str, rows: Sequence[Any]) -> dict[str, float]:
    """Return how much the router's results for rows alone differ from those in one batch."""
    models, finder = run.session.models, task_finder(run.session.models)
    alone = [_only(finder.states(models, [row]))[0] for row in rows]
    own = _only(finder.states(models, list(rows), 64))
    found = []
    for states_NF in (np.stack(alone), np.stack([own[index] for index in range(len(rows))])):
        scores_NT = finder.router.scores(states_NF)
        found.append((np.ptp(np.sort(scores_NT, 1)[:, -2:], axis=1), scores_NT.argmax(1)))
    (gap, best), (other_gap, other_best) = found
    singly = [run.predict([row])[0] for row in rows]
    together = run.predict(list(rows), batch_size=64)
    known = np.array([[each.known for each in answers] for answers in (singly, together)], dtype=np.float64)
    apart = [one for one, other in zip(singly, together, strict=True) if (one.task is None) != (other.task is None)]
    return {
        "largest change of the log-probabilities": float(np.abs(gap - other_gap).max()),
        "largest change of the share that is known": float(np.abs(known[0] - known[1]).max()),
        "other task": int((best != other_best).sum()),
        "unknown in one only": len(apart),
        "of these not marked as near ties": sum(not one.task_near_tie for one in apart),
    }


def measure(folder: Path, stream: TaskStream) -> dict[str, Any]:
    """Learn the tasks and return what was measured for each, with routing if it is a stream of labels."""
    run = learn(stream, folder, trainer=QUIET, progress=False)
    found: dict[str, Any] = {}
    for task in run.store.tasks:
        (spec,) = (each for each in run.spec.tasks if each.name == task)
        checked = run.session.rows(spec)
        rows = checked.inputs if checked.pairs is None else list(zip(checked.inputs, checked.pairs, strict=True))
        found[task] = changes_of(run, task, rows)
        if run.store.certificate(task).kind == "classification":
            found[task]["routing"] = routing_changes_of(run, task, rows)
    return found


def main(arguments: list[str]) -> None:
    """Learn, measure, and print or write the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.batch_rounding", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--writer", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    machine = describe(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        if given.writer is None:
            found = measure(Path(scratch) / "run", stream_of(given.data))
            numbers = {NUMBERS: found.pop(NUMBERS)} if NUMBERS in found else {}
            result = {"tasks": found} | ({"numbers": numbers} if numbers else {})
        else:
            found = measure(Path(scratch) / "written", writing_stream_of(given.data, str(given.writer.resolve())))
            result = {"options": {OPTIONS: found.pop(OPTIONS)}, "texts": found}
    command = "python -m experiments.benchmarks.batch_rounding --data FOLDER"
    command += "" if given.writer is None else " --writer FOLDER"
    write_measured(result, command, machine, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])

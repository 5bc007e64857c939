"""A task of a stream file becomes data to learn from: read, checked, divided, limited, tokenised.

Every choice of rows is made by a hash of the rows' own content, seeded from (stream seed, task name): the order of
a file, its format or the machine change nothing. Rows with the same text never end up on both sides of the
division into train and validation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.streams.checks import check_rows, check_texts, overlap_notice, regression_targets
from continual_petl.streams.labels import absent_notice, class_labels, encode_labels, label_names, read_label_names
from continual_petl.streams.schema import SplitName, StreamSpec, TaskSpec
from continual_petl.streams.sources import SplitRows, read_splits
from continual_petl.streams.tokenise import TokenisedRows, tokenise


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskData:
    """A task, ready to be learned."""

    task: TaskSpec
    """The task as the stream says."""
    labels: tuple[str, ...] | None
    """Names of the classes in order; ``None`` for a regression."""
    train: TokenisedRows
    """Rows to learn from."""
    validation: TokenisedRows
    """Rows that decide which bank is kept; carved from train where the data has none."""
    test: TokenisedRows | None
    """Rows that are only measured on, if there are any."""
    notices: tuple[str, ...]
    """What the user should know and need not act on; one sentence or two each."""
    digests: Mapping[str, str]
    """SHA-256 of the content of each split: texts and label names of its rows, in order."""
    num_truncated: Mapping[str, int]
    """Rows of each split that were cut to ``max_length``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitData:
    """One split of a task, ready to be evaluated on."""

    rows: TokenisedRows
    """The rows."""
    digest: str
    """SHA-256 of their content; the same as in :attr:`TaskData.digests` as long as nothing has changed."""


def prepare_task(spec: StreamSpec, task: TaskSpec, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TaskData:
    """Read, check and tokenise all splits of a task.

    Args:
        spec: the stream; its seed and folders count.
        task: one of its tasks, or one that joins later.
        tokenizer: the fast tokenizer of the backbone.
        max_length: most tokens of a row.

    Raises:
        InputError: if the data cannot be used; the message says where and why.
    """
    labels, splits, notices = _read(spec, task)
    tokenised = {name: split.tokenise(tokenizer, max_length) for name, split in splits.items()}
    num_truncated = {name: rows.num_truncated for name, rows in tokenised.items()}
    if any(num_truncated.values()):
        cut = ", ".join(f"{count} of {len(tokenised[name])} {name}" for name, count in num_truncated.items() if count)
        notices.append(
            f"task {task.name!r}: {cut} rows are longer than {max_length} tokens and were cut; the rest of their text "
            "is not seen."
        )
    return TaskData(
        task=task,
        labels=labels,
        train=tokenised["train"],
        validation=tokenised["validation"],
        test=tokenised.get("test"),
        notices=tuple(notices),
        digests={name: split.digest for name, split in splits.items()},
        num_truncated=num_truncated,
    )


def check_data(spec: StreamSpec, task: TaskSpec) -> tuple[str, ...] | None:
    """Read and check all splits of a task as `prepare_task` does, without tokenising; return its labels.

    Args:
        spec: the stream.
        task: one of its tasks.

    Raises:
        InputError: if the data cannot be used; the message says where and why.
    """
    return _read(spec, task)[0]


def _read(spec: StreamSpec, task: TaskSpec) -> tuple[tuple[str, ...] | None, dict[str, _Split], list[str]]:
    """Return the labels, the checked, divided and limited splits, and what the user should know of them."""
    raw = read_splits(task.name, spec.resolved_data(task), task.columns)
    labels, positions = _labels(spec, task, raw["train"])
    splits: dict[str, _Split] = {name: _checked(task, rows, labels, positions) for name, rows in raw.items()}
    notices: list[str | None] = []
    if "validation" not in splits:
        splits["train"], splits["validation"] = _carve(spec, task, splits["train"])
        notices.append(
            f"task {task.name!r}: the data has no validation split; {len(splits['validation'])} of its training rows "
            "became one."
        )
    if "test" not in splits:
        notices.append(f"task {task.name!r}: the data has no test split, so R holds the validation metric.")
    splits = {name: _limited(spec, task, name, split) for name, split in splits.items()}
    if labels is not None:
        counts = np.bincount(splits["train"].labels, minlength=len(labels))
        notices.append(absent_notice(task.name, labels, counts))
    for name in ("validation", "test"):
        if name in splits:
            notices.append(overlap_notice(task.name, splits["train"].keys, splits[name].keys, name))
    return labels, splits, [notice for notice in notices if notice is not None]


def prepare_split(
    spec: StreamSpec,
    task: TaskSpec,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    split: SplitName = "test",
    labels: tuple[str, ...] | None,
) -> SplitData:
    """Read, check and tokenise one split of a task that was learned before, as :func:`prepare_task` did then.

    Args:
        spec: the stream.
        task: one of its tasks.
        tokenizer: the fast tokenizer of the backbone.
        max_length: most tokens of a row.
        split: which split; a validation split that has to be carved from train is carved again, the same way.
        labels: the classes as the task's bank knows them; ``None`` for a regression.

    Raises:
        InputError: if the split does not exist or cannot be used.
    """
    if (labels is None) != (task.kind == "regression"):
        raise ValueError(f"task {task.name!r} is a {task.kind}, labels is {labels!r}")
    data = spec.resolved_data(task)
    raw = read_splits(task.name, data, task.columns, ("train", "validation") if split == "train" else (split,))
    carve = split != "test" and "validation" not in raw
    if carve and split == "validation":
        raw = read_splits(task.name, data, task.columns, ("train",))
    if split not in raw and not carve:
        raise InputError(
            f"task {task.name!r}: the data has no {split} split any more; restore it, or evaluate on another."
        )
    rows = raw["train" if carve else split]
    positions = task.labels is not None and rows.class_names is None
    checked = _checked(task, rows, labels, positions)
    if carve:
        checked = _carve(spec, task, checked)[split == "validation"]
    checked = _limited(spec, task, split, checked)
    return SplitData(rows=checked.tokenise(tokenizer, max_length), digest=checked.digest)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Split:
    """Checked rows. ``keys`` spell what is in a row without its label, ``names`` the label."""

    texts: list[str]
    pairs: list[str] | None
    labels: NDArray[Any]
    names: list[str]
    keys: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, chosen: NDArray[np.int64]) -> _Split:
        rows = chosen.tolist()
        return _Split(
            texts=[self.texts[row] for row in rows],
            pairs=None if self.pairs is None else [self.pairs[row] for row in rows],
            labels=self.labels[chosen],
            names=[self.names[row] for row in rows],
            keys=[self.keys[row] for row in rows],
        )

    def tokenise(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TokenisedRows:
        return tokenise(self.texts, self.pairs, self.labels, tokenizer, max_length)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for key, name in zip(self.keys, self.names, strict=True):
            digest.update(f"{key}\t{json.dumps(name)}\n".encode())
        return digest.hexdigest()


def _labels(spec: StreamSpec, task: TaskSpec, train: SplitRows) -> tuple[tuple[str, ...] | None, bool]:
    if task.kind == "regression":
        return None, False
    given = spec.resolved_labels(task)
    if isinstance(given, str):
        try:
            given = read_label_names(given)
        except InputError as error:
            raise InputError(f"task {task.name!r}, {error}") from error
    check_rows(train.where, len(train))
    column = task.columns.label
    names = label_names(train.where, column, train.labels)
    positions = given is not None and train.class_names is None
    return class_labels(train.where, column, names, given or train.class_names), positions


def _checked(task: TaskSpec, rows: SplitRows, labels: tuple[str, ...] | None, positions: bool) -> _Split:
    check_rows(rows.where, len(rows))
    check_texts(rows.where, task.columns.text, rows.texts)
    if rows.pairs is not None:
        assert task.columns.text_pair is not None
        check_texts(rows.where, task.columns.text_pair, rows.pairs)
    column = task.columns.label
    encoded: NDArray[Any]
    if labels is None:
        encoded = regression_targets(rows.where, column, rows.labels)
        names = [repr(value) for value in encoded.tolist()]
    else:
        encoded = encode_labels(
            rows.where, column, label_names(rows.where, column, rows.labels), labels, positions=positions
        )
        names = [labels[index] for index in encoded.tolist()]
    keys = [json.dumps(row) for row in zip(rows.texts, rows.pairs or [None] * len(rows), strict=True)]
    return _Split(texts=rows.texts, pairs=rows.pairs, labels=encoded, names=names, keys=keys)


def _carve(spec: StreamSpec, task: TaskSpec, train: _Split) -> tuple[_Split, _Split]:
    """Divide train into train and validation by the hash of the texts; equal texts stay together."""
    ranks = _ranks(train.keys, derive_seed(spec.seed, task.name, "validation"))
    wanted = max(1, round(task.validation * len(train)))
    inside = ranks <= np.sort(ranks)[wanted - 1]
    if inside.all():
        raise InputError(
            f"task {task.name!r}: there is no validation split, and none can be carved from {len(train)} training rows "
            "with "
            f"{len(set(train.keys))} different texts (validation: {task.validation}); add rows or a validation split."
        )
    return train.take(np.flatnonzero(~inside)), train.take(np.flatnonzero(inside))


def _limited(spec: StreamSpec, task: TaskSpec, name: str, split: _Split) -> _Split:
    """Keep as many rows as the limit allows, chosen by hash, in their own order."""
    limit: int | None = getattr(task.limits, name)
    if limit is None or limit >= len(split):
        return split
    whole = [f"{key}\t{label}" for key, label in zip(split.keys, split.names, strict=True)]
    ranks = _ranks(whole, derive_seed(spec.seed, task.name, "limit", name))
    return split.take(np.sort(np.argsort(ranks, kind="stable")[:limit]))


def _ranks(contents: list[str], seed: int) -> NDArray[np.uint64]:
    key = seed.to_bytes(8, "big")
    digests = b"".join(hashlib.blake2b(content.encode(), digest_size=8, key=key).digest() for content in contents)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)

"""Prepare a task of a stream file for learning: read, check, divide, limit and encode its rows.

Rows are always selected by a hash of their content, seeded from the stream's seed, so their order in a file, the file's
format, the task's name and the machine make no difference. When rows are divided into train and validation, rows with the
same input stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from continual_petl.errors import InputError, about
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.kind_registry import kind_of
from continual_petl.streams.preparation import lost_text
from continual_petl.streams.preparation.checked_rows import Checked, check_split, labels_of
from continual_petl.streams.preparation.column_remarks import remarks_on, rendered
from continual_petl.streams.preparation.dividing import few_notice, held_out_notice, hold_out, limited
from continual_petl.streams.preparation.labels import absent_notice
from continual_petl.streams.preparation.own_labels import own_rows
from continual_petl.streams.preparation.spelling_notices import labels_notice
from continual_petl.streams.schema.stream_spec import SPLITS, DataSpec, Rows, SplitName, StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import contradiction_notice, overlap_notice, row_in
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.sources.split_rows import SplitRows

# Checking data needs no tokenizer, whose import takes seconds.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.image_processing import ImageProcessing
    from continual_petl.streams.encoding.rows import TokenisedRows


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskData:
    """A task, ready to be learned."""

    task: TaskSpec
    """The task as given in the stream."""
    labels: tuple[str, ...] | None
    """Names of the labels in order; ``None`` for a kind without labels."""
    train: TokenisedRows
    """Training rows."""
    validation: TokenisedRows
    """Rows that decide which epoch's bank is kept; taken from train if the data has no validation split."""
    test: TokenisedRows | None
    """Rows used only for evaluation, if there are any."""
    notices: tuple[str, ...]
    """Notices for the user; no action is needed. One or two sentences each."""
    digests: Mapping[str, str]
    """SHA-256 of the content of each split: inputs and labels or targets of its rows, in order."""
    num_truncated: Mapping[str, int]
    """Number of rows of each split that were truncated to ``max_length``."""
    remarks: tuple[str, ...] = ()
    """Notices about the columns; not in the certificate, because they may contain text from a row."""
    tags: TagReading | None = None
    """How tags mark entities; ``None`` for other kinds than token-classification."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitData:
    """One split of a task, ready for evaluation."""

    rows: TokenisedRows
    """The rows."""
    digest: str
    """SHA-256 of their content; equal to the entry in :attr:`TaskData.digests` as long as the data is unchanged."""


def prepare_task(
    spec: StreamSpec,
    task: TaskSpec,
    tokenizer: PreTrainedTokenizerBase | None,
    max_length: int,
    *,
    images: ImageProcessing | None = None,
    test: bool = True,
) -> TaskData:
    """Read, check and tokenise all splits of a task.

    Args:
        spec: the stream; its seed and folders are used.
        task: one of its tasks, or a task added later.
        tokenizer: the fast tokenizer of the backbone; not needed for images.
        max_length: maximum tokens per row.
        images: the preprocessing of the backbone, for images.
        test: whether the test split is read, if there is one.

    Raises:
        InputError: if the data cannot be used; the message says where and why.
    """
    labels, splits, notices, remarks, tags = _read(spec, task, test)
    tokenised = {
        name: split.encode(tokenizer, max_length, images, scored=name != "train") for name, split in splits.items()
    }
    notices += lost_text.truncated(task, tokenised, max_length)
    if tokenizer is not None:
        notices += lost_text.unknown(task, tokenised, tokenizer)
    for name, rows in tokenised.items():
        notices += kind_of(task).notices_on_encoded(task, name, rows, splits[name].answers)
    remarks += _first_conversation(task, splits["train"], tokenizer)
    if tokenizer is not None and kind_of(task).generates and task.options_from is None:
        end = _end_of_texts(task, splits["train"], tokenizer)
        notices += lost_text.not_generated(task, tokenised, end)
        remarks += lost_text.written_otherwise(task, tokenised, splits, tokenizer, end, max_length)
    return TaskData(
        task=task,
        labels=labels,
        train=tokenised["train"],
        validation=tokenised["validation"],
        test=tokenised.get("test"),
        notices=tuple(notices),
        digests={name: split.digest for name, split in splits.items()},
        num_truncated={name: rows.num_truncated for name, rows in tokenised.items()},
        remarks=tuple(remarks),
        tags=tags,
    )


def _copy_notice(task: TaskSpec, data: str | DataSpec | Rows) -> str | None:
    """Return a notice for the certificate if the rows were read from a local copy."""
    if not isinstance(data, DataSpec) or data.local is None or not isinstance(task.data, DataSpec):
        return None
    return f"task {task.name!r}: read from the local copy {task.data.local!r}, and not from {data.path} on the Hub."


def _first_conversation(task: TaskSpec, train: Checked, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Return a notice with the first row of a conversation task as its chat template renders it, or an empty list."""
    if train.chat is None or tokenizer is None:
        return []
    from continual_petl.streams.encoding.chat_template import UnusableChat, chat_of, render

    chat = chat_of(task.name, train.chat, tokenizer)
    assert chat is not None
    first = [*train.inputs[0], {"role": "assistant", "content": train.answers[0]}]
    try:
        return [rendered(task, render(tokenizer, chat, first))]
    except UnusableChat as error:
        raise InputError(f"{row_in(train.where, 0)}: {error}.") from error


def _end_of_texts(task: TaskSpec, train: Checked, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token that ends a generated text; a chat template has its own."""
    from continual_petl.streams.encoding.chat_template import chat_of

    chat = chat_of(task.name, train.chat, tokenizer)
    end: int | None = tokenizer.eos_token_id if chat is None else chat.end
    return end


def check_data(spec: StreamSpec, task: TaskSpec, *, test: bool = True) -> tuple[str, ...] | None:
    """Read and check all splits of a task as `prepare_task` does, without tokenising; return its labels.

    Args:
        spec: the stream.
        task: one of its tasks.
        test: whether the test split is read, if there is one.

    Raises:
        InputError: if the data cannot be used; the message says where and why.
    """
    return _read(spec, task, test)[0]


def column_remarks(spec: StreamSpec, task: TaskSpec, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
    """Read and check all splits of a task; return the notices about its columns.

    Args:
        spec: the stream.
        task: one of its tasks.
        tokenizer: renders the first row of a task of conversations; if it is None, the row is not shown.

    Raises:
        InputError: if the data cannot be used; the message says where and why.
    """
    labels, splits, _, remarks, _ = _read(spec, task, test=True)
    spelled = _spelled(task, labels, splits)
    return remarks + _first_conversation(task, splits["train"], tokenizer) + ([] if spelled is None else [spelled])


def _read(
    spec: StreamSpec, task: TaskSpec, test: bool
) -> tuple[tuple[str, ...] | None, dict[str, Checked], list[str], list[str], TagReading | None]:
    """Return the labels, the splits (checked, divided and limited), notices, remarks on columns, and how tags are read."""
    data, training = spec.resolved_data(task), spec.merged_training(task)
    wanted = SPLITS if test else tuple(split for split in SPLITS if split != "test")
    splits: dict[str, Checked]
    with about("data"):
        raw = _read_raw(task, data, wanted)
        raw, left_out = own_rows(spec, task, raw)
        labels, positions = labels_of(spec, task, raw["train"])
        splits = {name: check_split(spec, task, rows, labels, positions) for name, rows in raw.items()}
    kind = kind_of(task)
    kind.check_splits(task, raw, labels, positions=positions)
    remarks = remarks_on(task, raw["train"])
    notices: list[str | None] = [_copy_notice(task, data), left_out]
    tags = None
    if labels is not None and (found := kind.tag_reading(task, labels, splits["train"])) is not None:
        tags, notice, remark = found
        notices.append(notice)
        remarks.append(remark)
    notices.append(_spelled(task, labels, splits))
    notices.append(kind.notice_on_answers(task, raw))
    if kind.has_one_label:
        train = splits["train"]
        several = contradiction_notice(train.where, train.keys, train.names, kind.input_name)
        remarks += [] if several is None else [several]
    if "validation" not in splits:
        splits["train"], splits["validation"] = hold_out(spec, task, splits["train"])
        notices.append(held_out_notice(task, labels, splits["validation"]))
    if "test" not in splits and test:
        same = ", measured on the rows that also choose the epoch" if training.select == "best" else ""
        notices.append(
            f"task {task.name!r}: no test split is given; the result matrix R holds its validation score{same}."
        )
    splits = {name: limited(spec, task, name, split) for name, split in splits.items()}
    notices.append(few_notice(task, splits))
    notices.append(kind.notice_on_training(task, splits["train"].answers))
    if labels is not None:
        notices.append(absent_notice(task.name, labels, splits["train"].label_counts(len(labels))))
    for name in ("validation", "test"):
        if name in splits:
            notices.append(kind.notice_on_scored(task, name, splits[name].answers))
            notices.append(overlap_notice(task.name, splits["train"].keys, splits[name].keys, name, kind.input_name))
    return labels, splits, [notice for notice in notices if notice is not None], remarks, tags


def _read_raw(task: TaskSpec, data: str | DataSpec | Rows, wanted: Sequence[SplitName]) -> dict[SplitName, SplitRows]:
    return read_splits(task.name, data, task.columns, wanted, kind=task.kind, limits=task.limits)


def _spelled(task: TaskSpec, labels: tuple[str, ...] | None, splits: Mapping[str, Checked]) -> str | None:
    """Return a notice if labels differ only in spelling, with their counts in all splits."""
    if labels is None:
        return None
    counts = np.sum([split.label_counts(len(labels)) for split in splits.values()], axis=0)
    return labels_notice(task.name, labels, counts.tolist())


def check_again(
    spec: StreamSpec,
    task: TaskSpec,
    *,
    split: SplitName = "test",
    labels: tuple[str, ...] | None,
    single_precision: bool = False,
) -> Checked:
    """Read and check one split of a task that was learned before, in the same way as :func:`prepare_task`.

    Args:
        spec: the stream.
        task: one of its tasks.
        split: which split; if validation rows were taken from train, the same rows are taken again.
        labels: the labels or options of the task's bank; ``None`` for a task without any.
        single_precision: whether targets are rounded to float32, as when the task was learned; see
            `TaskPlan.single_precision`.

    Raises:
        InputError: if the split does not exist or cannot be used.
    """
    if (labels is None) == (kind_of(task).has_labels or task.options is not None):
        needs = "needs the labels or options of its bank" if labels is None else "has no labels or options"
        raise ValueError(f"labels: got {labels!r}, but task {task.name!r} ({task.kind}) {needs}")
    data = spec.resolved_data(task)
    wanted: tuple[SplitName, ...] = ("train", "validation") if split == "train" else (split,)
    raw = _read_raw(task, data, wanted)
    held_out = split != "test" and "validation" not in raw
    if held_out and split == "validation":
        raw = _read_raw(task, data, ("train",))
    if split not in raw and not held_out:
        raise InputError(
            f"task {task.name!r}: the data no longer has a {split} split; restore it, or evaluate on another one."
        )
    raw, _ = own_rows(spec, task, raw, labels)
    rows = raw["train" if held_out else split]
    positions = (task.labels is not None or rows.labels_file is not None) and rows.class_names is None
    checked = check_split(spec, task, rows, labels, positions, single_precision=single_precision)
    if held_out:
        checked = hold_out(spec, task, checked)[split == "validation"]
    return limited(spec, task, split, checked)

"""Rows of a task after all content checks: inputs that can be encoded, and labels or targets as numbers or text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError, about
from continual_petl.kind import HowRead, ReadRows
from continual_petl.kind_registry import kind_of
from continual_petl.streams.preparation.labels import check_class_weights, class_labels
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import Where, check_rows
from continual_petl.streams.sources.label_file import names_of_labels
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.image_processing import ImageProcessing
    from continual_petl.streams.encoding.rows import TokenisedRows


@dataclass(frozen=True, kw_only=True, eq=False)
class Checked(ReadRows):
    """Checked rows of a split, all with keys: equal keys mean equal inputs."""

    task: TaskSpec
    where: Where
    chat: ChatSpec | None = None
    """How conversations become text; ``inputs`` are then lists of messages, and ``answers`` the messages after them."""

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, chosen: NDArray[np.int64]) -> Checked:
        """Return the chosen rows, in the given order."""
        rows = chosen.tolist()
        columns = {each.name: getattr(self, each.name) for each in fields(ReadRows)}
        taken: dict[str, Any] = {
            name: values[chosen] if isinstance(values, np.ndarray) else [values[row] for row in rows]
            for name, values in columns.items()
            if values is not None
        }
        return replace(self, where=self.where.take(rows), **taken)

    def encode(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        max_length: int,
        images: ImageProcessing | None,
        *,
        scored: bool = True,
    ) -> TokenisedRows:
        """Encode the rows.

        Args:
            tokenizer: the fast tokenizer of the backbone; not needed for images.
            max_length: maximum tokens per row.
            images: the preprocessing of the backbone, for images.
            scored: whether predictions for the rows will be scored; if so, the options or the texts of the sources are kept.
                Rows to train on need only their targets.

        Raises:
            InputError: if a row or a setting cannot be used.
        """
        from continual_petl.streams.encoding.chat_template import chat_of  # imports transformers

        kind = kind_of(self.task)
        how = kind.how_encoded(
            self.task,
            tokenizer=tokenizer,
            images=images,
            max_length=max_length,
            chat=chat_of(self.task.name, self.chat, tokenizer),
            where=self.where,
            **({} if scored else {"options": None}),
        )
        try:
            rows: TokenisedRows = kind.encode(
                self.inputs,
                how,
                pairs=self.pairs,
                answers=self.answers,
                row_options=self.options if scored or kind.chooses else None,
            )
        except InputError as error:
            # Messages about a row begin with its task and split; messages about a setting or an image do not.
            text = str(error)
            raise InputError(text if text.startswith("task ") else f"{self.where}, {text}") from error
        if self.options is not None:
            places = [options.index(answer) for options, answer in zip(self.options, self.answers, strict=True)]
            return replace(rows, labels=np.array(places, dtype=np.int64))
        if self.task.options is not None:
            return replace(rows, labels=self._chosen(self.task.options))
        kind.check_encoded(self.task, rows, max_length)
        if rows.texts is not None and rows.texts.sources is not None:
            return rows if scored else replace(rows, texts=None)
        if rows.texts is not None and scored:
            sources = self.inputs if how.chat is None else (messages[-1]["content"] for messages in self.inputs)
            return replace(rows, texts=rows.texts._replace(sources=tuple(sources)))
        return rows

    def _chosen(self, options: tuple[str, ...]) -> NDArray[np.int64]:
        places = {option: place for place, option in enumerate(options)}
        return np.array([places[answer] for answer in self.answers], dtype=np.int64)

    def label_counts(self, num_labels: int) -> NDArray[np.int64]:
        """Return how often each label occurs."""
        answers = self.answers if self.task.options is None else self._chosen(self.task.options)
        return kind_of(self.task).label_counts(answers, num_labels)

    @property
    def digest(self) -> str:
        """SHA-256 of the rows' inputs and of their labels or targets."""
        digest = hashlib.sha256()
        for key, name in zip(self.keys, self.names, strict=True):
            digest.update(f"{key}\t{json.dumps(name)}\n".encode())
        return digest.hexdigest()


def labels_of(spec: StreamSpec, task: TaskSpec, train: SplitRows) -> tuple[tuple[str, ...] | None, bool]:
    """Return the label names of a task in order, and whether integers may be positions in this list.

    Raises:
        InputError: if the training rows have fewer than two labels, or ``labels`` or the class weights do not match.
    """
    if not kind_of(task).has_labels:
        return task.options, False
    given = train.labels_file or spec.resolved_labels(task)
    given = None if given is None else names_of_labels(task.name, "labels", given)
    if train.labels_file is not None and isinstance(task.labels, tuple) and len(task.labels) != len(given or ()):
        raise InputError(
            f"task {task.name!r}: {train.labels_file} names {len(given or ())} classes, but the task has "
            f"{len(task.labels)} (labels: {', '.join(task.labels)}): this is a copy of another data set, so name the right "
            f"one (--tasks.{task.name}.data.local), or remove the file."
        )
    check_rows(train.where, len(train))
    names = kind_of(task).labels_in(task, train, given)
    with about("labels"):
        labels = class_labels(train.answers, names, given or train.class_names, kind=task.kind)
    check_class_weights(task.name, spec.merged_training(task).class_weights, labels)
    return labels, given is not None and train.class_names is None


def check_split(
    spec: StreamSpec,
    task: TaskSpec,
    rows: SplitRows,
    labels: tuple[str, ...] | None,
    positions: bool,
    *,
    single_precision: bool = False,
) -> Checked:
    """Check the rows of one split.

    Args:
        spec: the stream.
        task: one of its tasks.
        rows: the rows as they were read.
        labels: from `labels_of`.
        positions: whether integers may be positions in ``labels``.
        single_precision: see `HowRead`.

    Raises:
        InputError: naming the rows that cannot be used and the reasons.
    """
    check_rows(rows.where, len(rows))
    chat = spec.resolved_chat(task)
    how = HowRead(
        labels=labels, positions=positions, single_precision=single_precision, chat=chat, folder=spec.data_dir
    )
    read = kind_of(task).read_rows(task, rows, how)
    pairs = rows.columns.get("text_pair") if read.pairs is None else read.pairs
    beside = pairs or read.options or [None] * len(rows)
    keys = read.keys or [json.dumps(row) for row in zip(read.inputs, beside, strict=True)]
    return Checked(**{**vars(read), "pairs": pairs, "keys": keys}, task=task, where=rows.where, chat=chat)

"""Rows of a task after all content checks: inputs that can be encoded, and labels or targets as numbers or text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError, about, known_names
from continual_petl.heads.kinds import GENERATIVE, LABELLED
from continual_petl.streams.encoding.images import check_images
from continual_petl.streams.preparation.label_lists import (
    encode_multilabel,
    encode_tags,
    label_names_of,
    tag_lists,
    word_lists,
)
from continual_petl.streams.preparation.labels import (
    check_class_weights,
    class_labels,
    encode_labels,
    label_names,
    read_label_names,
)
from continual_petl.streams.preparation.multi_hot import check_named
from continual_petl.streams.preparation.spellings import nearest, unknown_faults
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import (
    Fault,
    Where,
    check_rows,
    check_texts,
    raise_faults,
    regression_targets,
    show,
)
from continual_petl.streams.sources.conversations import RULE, check_conversations, from_cell, is_message
from continual_petl.streams.sources.row_options import option_lists
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.cache_files import CacheFiles
    from continual_petl.streams.encoding.image_processing import ImageProcessing
    from continual_petl.streams.encoding.rows import TokenisedRows


@dataclass(frozen=True, kw_only=True, eq=False)
class Checked:
    """Checked rows of a split."""

    task: TaskSpec
    where: Where
    inputs: list[Any]
    pairs: list[str] | None
    answers: Any
    """Labels or targets; like ``inputs`` and ``pairs``, an argument of `encode_rows`."""
    names: list[Any]
    """The label or target of every row in readable form: a name, a list of names, a text, the spelling of a number."""
    keys: list[str]
    """A key for every row's inputs, without the label or target; equal keys mean equal inputs."""
    chat: ChatSpec | None = None
    """How conversations become text; ``inputs`` are then lists of messages, and ``answers`` the messages after them."""
    options: list[tuple[str, ...]] | None = None
    """The options of every row, if each row has its own."""

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, chosen: NDArray[np.int64]) -> Checked:
        """Return the chosen rows, in the given order."""
        rows = chosen.tolist()
        return Checked(
            task=self.task,
            where=self.where,
            inputs=[self.inputs[row] for row in rows],
            pairs=None if self.pairs is None else [self.pairs[row] for row in rows],
            answers=self.answers[chosen]
            if isinstance(self.answers, np.ndarray)
            else [self.answers[row] for row in rows],
            names=[self.names[row] for row in rows],
            keys=[self.keys[row] for row in rows],
            chat=self.chat,
            options=None if self.options is None else [self.options[row] for row in rows],
        )

    def encode(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        max_length: int,
        images: ImageProcessing | None,
        cache: CacheFiles | None = None,
        *,
        scored: bool = True,
    ) -> TokenisedRows:
        """Encode the rows.

        Args:
            tokenizer: the fast tokenizer of the backbone; not needed for images.
            max_length: maximum tokens per row.
            images: the preprocessing of the backbone, for images.
            cache: where token ids of large splits are cached.
            scored: whether predictions for the rows will be scored; if so, the options or the texts of the sources are kept.
                Rows to train on need only their targets.

        Raises:
            InputError: if a row or a setting cannot be used.
        """
        from continual_petl.streams.encoding.chat_template import chat_of
        from continual_petl.streams.encoding.encode import encode_rows  # imports transformers

        chat = chat_of(self.task.name, self.chat, tokenizer)
        try:
            rows = encode_rows(
                self.task.kind,
                self.inputs,
                pairs=self.pairs,
                answers=self.answers,
                tokenizer=tokenizer,
                max_length=max_length,
                max_target_length=self.task.max_target_length,
                images=images,
                chat=chat,
                options=self.task.options if scored else None,
                row_options=self.options if scored else None,
                where=str(self.where),
                cache=cache,
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
        if self.task.kind == "causal-lm" and len(rows):
            _check_answers_fit(self.task, rows, max_length)
        if rows.texts is not None and scored:
            sources = self.inputs if chat is None else (messages[-1]["content"] for messages in self.inputs)
            return replace(rows, texts=rows.texts._replace(sources=tuple(sources)))
        return rows

    def _chosen(self, options: tuple[str, ...]) -> NDArray[np.int64]:
        places = {option: place for place, option in enumerate(options)}
        return np.array([places[answer] for answer in self.answers], dtype=np.int64)

    def label_counts(self, num_labels: int) -> NDArray[np.int64]:
        """Return how often each label occurs."""
        if self.task.kind == "multilabel":
            return np.asarray(self.answers.sum(0), dtype=np.int64)
        if self.task.options is not None:
            return np.bincount(self._chosen(self.task.options), minlength=num_labels)
        flat = np.concatenate(self.answers) if self.task.kind == "token-classification" else self.answers
        return np.bincount(flat, minlength=num_labels)

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
    if task.kind not in LABELLED:
        return task.options, False
    given = train.labels_file or spec.resolved_labels(task)
    if isinstance(given, str):
        try:
            given = read_label_names(given)
        except InputError as error:
            raise InputError(f"task {task.name!r}, {error}", key=("labels",)) from error
    if train.labels_file is not None and isinstance(task.labels, tuple) and len(task.labels) != len(given or ()):
        raise InputError(
            f"task {task.name!r}: {train.labels_file} names {len(given or ())} classes, but the task has "
            f"{len(task.labels)} (labels: {', '.join(task.labels)}): this is a copy of another data set, so name the right "
            f"one (--tasks.{task.name}.data.local), or remove the file."
        )
    check_rows(train.where, len(train))
    column = _answer_column(task)
    names: Iterable[str]
    match task.kind:
        case "multilabel":
            if train.class_names is None:
                check_named(train.where, column, train.answers, given)
            named = given if train.class_names is None else None
            lists = label_names_of(train.where, column, train.answers, named)
            names = chain.from_iterable(lists)
        case "token-classification":
            words = word_lists(train.where, task.columns.tokens, train.inputs)
            names = chain.from_iterable(tag_lists(train.where, column, train.answers, words))
        case _:
            names = label_names(train.where, column, train.answers)
    with about("labels"):
        labels = class_labels(train.where, column, names, given or train.class_names, kind=task.kind)
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
        single_precision: see `regression_targets`.

    Raises:
        InputError: naming the rows that cannot be used and the reasons.
    """
    check_rows(rows.where, len(rows))
    column, where = _answer_column(task), rows.where
    inputs = rows.inputs
    answers: Any
    names: list[Any]
    chat = spec.resolved_chat(task)
    options: list[tuple[str, ...]] | None = None
    match task.kind:
        case "causal-lm" if chat is not None:
            inputs, answers = _conversations(task, chat, rows)
        case "token-classification":
            inputs = word_lists(where, task.columns.tokens, inputs)
        case "image-classification":
            inputs, keys = check_images(where, task.columns.image, inputs, spec.data_dir)
        case kind:
            if kind == "causal-lm" and any(isinstance(v, list) and any(map(is_message, v)) for v in inputs[:1]):
                raise InputError(
                    f"{where}, column {task.columns.source!r}: the rows are lists of messages; to learn conversations, add "
                    "chat: {} to this task, or name a column of whole conversations: columns: {messages: ...}.",
                    key=("columns", "source"),
                )
            check_texts(where, task.columns.source if kind in GENERATIVE else task.columns.text, inputs)
    if rows.pairs is not None:
        check_texts(where, str(task.columns.text_pair), rows.pairs)
    if task.kind in GENERATIVE:
        if chat is None:
            check_texts(where, column, answers := rows.answers)
        names = answers
        if rows.options is not None:
            options = option_lists(where, str(task.columns.options), rows.options)
        _check_among(task.options, options, where, column, names)
    else:
        answers, names = _encoded(task, rows, inputs, labels, positions, single_precision)
    if task.kind != "image-classification":
        keys = [json.dumps(row) for row in zip(inputs, rows.pairs or options or [None] * len(rows), strict=True)]
    return Checked(
        task=task,
        where=where,
        inputs=inputs,
        pairs=rows.pairs,
        answers=answers,
        names=names,
        keys=keys,
        chat=chat,
        options=options,
    )


def _encoded(
    task: TaskSpec,
    rows: SplitRows,
    inputs: list[Any],
    labels: tuple[str, ...] | None,
    positions: bool,
    single_precision: bool,
) -> tuple[Any, list[Any]]:
    """Return the answers as numbers and as names; see `check_split`."""
    column, where = _answer_column(task), rows.where
    if labels is None:
        answers = regression_targets(where, column, rows.answers, single_precision=single_precision)
        return answers, [repr(value) for value in answers.tolist()]
    if task.kind == "multilabel":
        found = label_names_of(where, column, rows.answers, labels if positions else None)
        with about("labels"):
            sets = encode_multilabel(where, column, found, labels, positions=positions)
        return sets, [[labels[number] for number in np.flatnonzero(row)] for row in sets]
    if task.kind == "token-classification":
        found = tag_lists(where, column, rows.answers, inputs)
        with about("labels"):
            tags = encode_tags(where, column, found, labels, positions=positions)
        return tags, [[labels[number] for number in row.tolist()] for row in tags]
    named = label_names(where, column, rows.answers)
    with about("labels"):
        numbers = encode_labels(where, column, named, labels, positions=positions)
    return numbers, [labels[number] for number in numbers.tolist()]


def _conversations(task: TaskSpec, chat: ChatSpec, rows: SplitRows) -> tuple[list[list[dict[str, str]]], list[str]]:
    """Return each conversation up to its last message, and the text of that message."""
    columns = task.columns
    if columns.messages is None:
        parts: list[tuple[Any, ...]] = list(zip(rows.inputs, rows.answers, strict=True))
        column = f"{columns.source} and {columns.target}"
    else:
        parts = [(from_cell(value),) for value in rows.inputs]
        column = columns.messages
        texts = [Fault(row=row, what=f"{show(v)} is a text") for row, (v,) in enumerate(parts) if isinstance(v, str)]
        raise_faults(rows.where, column, texts, RULE)
    return check_conversations(rows.where, column, parts, chat.system)


def _check_among(
    options: tuple[str, ...] | None,
    row_options: list[tuple[str, ...]] | None,
    where: Where,
    column: str,
    targets: list[str],
) -> None:
    """Check that every target is one of the options of the task or of its row, if there are any."""
    if row_options is not None:
        wrong = [
            Fault(row=row, what=f"{show(text)} is not among {known_names([*map(show, own)])}{nearest(text, own)}")
            for row, (text, own) in enumerate(zip(targets, row_options, strict=True))
            if text not in own
        ]
        rule = "Every target must be one of its row's options, character for character: repair or remove these rows."
        raise_faults(where, column, wrong, rule)
    if options is None:
        return
    known = dict.fromkeys(options)  # ordered, so that the hints are always the same
    faults = unknown_faults(enumerate(targets), known, "")
    rule = (
        f"Every target must be one of the options of the task, {known_names([*map(show, options)])}, character for "
        "character: repair or remove these rows, or complete options."
    )
    with about("options"):
        raise_faults(where, column, faults, rule)


def _answer_column(task: TaskSpec) -> str:
    return str([*task.columns.read_by(task.kind).values()][-1])


def _check_answers_fit(task: TaskSpec, rows: TokenisedRows, max_length: int) -> None:
    """Check that the longest source and the text generated after it fit into one row."""
    longest, new = int(rows.lengths.max()), task.generation.max_new_tokens
    if longest + new > max_length:
        raise InputError(
            f"task {task.name!r}, generation.max_new_tokens: {new} new tokens after a source of {longest} exceed the "
            f"{max_length} tokens of a row (backbone.max_length); use at most {max_length - longest}, or a larger "
            "max_target_length, which truncates sources to fewer tokens."
        )

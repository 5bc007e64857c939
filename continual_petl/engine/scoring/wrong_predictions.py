"""Predict a learned task's test rows again to find the rows that its bank gets wrong.

Shape suffixes: N rows, C outputs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from continual_petl.engine.scoring.evaluate import certified_rows, clipped, labels_of_words, outputs_of, predicting
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.heads.predictions import Prediction, number_in_words
from continual_petl.kind import Kind
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import head_of
from continual_petl.predictor.row_checks import in_words
from continual_petl.report.wrong_predictions import WrongPredictions, WrongRow
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.sources.conversations import is_message


def wrong_predictions(session: Session, task: str, limit: int) -> WrongPredictions:
    """Return the first rows that a task's bank gets wrong, or the reason why none can be returned.

    Args:
        session: the run.
        task: a learned task.
        limit: maximum number of rows to return.
    """
    try:
        return session.store.consistently(partial(_wrong_predictions, session, task, limit), task)
    except (InputError, StoreError) as error:
        return WrongPredictions(task=task, split="test", why_none=_why(task, str(error)))


def _wrong_predictions(session: Session, task: str, limit: int) -> WrongPredictions:
    certificate = session.store.certificate(task)
    known = WrongPredictions(task=task, split=certificate.counted_split)
    if certificate.generation is not None:
        return _without(known, "it generates text, which gets a score instead of being right or wrong")
    checked = certified_rows(session, task, session.rows)
    if isinstance(checked, str):
        return _without(known, checked)
    models = session.models
    rows = checked.encode(models.tokenizer, certificate.max_length, models.images)
    with predicting(models, task, as_committed=True) as (learner, _):
        outputs = outputs_of(session, learner, rows)
    if kind_of(certificate).per_word:
        assert certificate.labels is not None
        wrong_rows, all_wrong = _wrong_tags(checked, rows, outputs, certificate.labels, limit)
    else:
        outputs_NC, kind = torch.stack(outputs).cpu(), kind_of(certificate)
        if kind.extracts:
            errors_N = _wrong_texts(kind, outputs_NC, rows)
        else:
            errors_N = _errors(head_of(learner.active_bank).predictions(outputs_NC), torch.tensor(rows.labels))
        order = errors_N.argsort(descending=True, stable=True)[: int((errors_N > 0).sum())].tolist()
        shown = order[:limit]
        predicted = in_words(outputs_NC[shown], certificate, models, rows, shown)
        wrong_rows = {n: _row(checked, n, words, certificate) for n, words in zip(shown, predicted, strict=True)}
        all_wrong = len(order)
    keys = kind_of(certificate).row_columns(pair=certificate.pair, options=certificate.options_from == "row")
    columns = checked.task.columns.read_by(certificate.kind)
    return WrongPredictions(
        task=task,
        split=certificate.counted_split,
        columns=tuple(str(columns.get(key, columns.get("messages"))) for key in keys),
        rows=_named(checked, wrong_rows),
        num_wrong=all_wrong,
        num_rows=len(checked),
        by_error=kind_of(certificate).has_numbers,
    )


def _errors(predicted: Tensor, labels: Tensor) -> Tensor:
    """Return each row's error, ``(N,)``: 0 or 1; for regression, the absolute error, or inf if it is not finite."""
    if predicted.is_floating_point():
        return (predicted - labels).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    wrong = predicted != labels.to(predicted.dtype)
    return (wrong.any(-1) if wrong.ndim > 1 else wrong).float()


def _wrong_texts(kind: Kind, outputs_NC: Tensor, rows: TokenisedRows) -> Tensor:
    """Return whether each row's extracted text is wrong, ``(N,)``: 0 or 1."""
    assert rows.texts is not None
    pairs = zip(kind.extracted(outputs_NC, rows.texts), rows.texts.references, strict=True)
    return torch.tensor([float(not kind.is_right(answer, references)) for answer, references in pairs])


def _row(checked: Checked, number: int, prediction: Prediction, certificate: Certificate) -> WrongRow:
    probability, value = prediction.details.get("probability"), prediction.value
    assert value is not None
    if isinstance(value, str) and prediction.probabilities is not None:
        probability = prediction.probabilities[value]
    correct = float(checked.answers[number]) if isinstance(value, float) else checked.names[number]
    return WrongRow(
        row=number,
        given=_given(checked, number),
        correct=clipped(_in_words(correct, certificate)),
        predicted=clipped(_in_words(value, certificate)),
        probability=probability,
    )


def _wrong_tags(
    checked: Checked, rows: TokenisedRows, outputs: list[Tensor], labels: tuple[str, ...], limit: int
) -> tuple[dict[int, WrongRow], int]:
    """Return the first rows with a wrong tag, and the total number of rows with one; truncated words have no tag."""
    wrong_rows: dict[int, WrongRow] = {}
    count = 0
    for number, (true, given_tags) in enumerate(zip(labels_of_words(rows), outputs, strict=True)):
        wrong = (true != given_tags.cpu()).nonzero().flatten().tolist()
        count += bool(wrong)
        if wrong and len(wrong_rows) < limit:
            words = checked.inputs[number]
            correct, predicted = (
                clipped(", ".join(f"{words[at]}: {labels[int(tags[at])]}" for at in wrong))
                for tags in (true, given_tags)
            )
            inputs = _given(checked, number)
            wrong_rows[number] = WrongRow(
                row=number, given=inputs, correct=correct, predicted=predicted, probability=None
            )
    return wrong_rows, count


def _named(checked: Checked, rows: Mapping[int, WrongRow]) -> tuple[WrongRow, ...]:
    """Name rows, known by their indices, as the data does."""
    names = zip(checked.where.named([*rows]), rows.values(), strict=True)
    return tuple(
        replace(row, row=name.number, id=None if name.id is None else str(name.id.value)) for name, row in names
    )


def _given(checked: Checked, number: int) -> tuple[str, ...]:
    more = () if checked.pairs is None else (checked.pairs[number],)
    if checked.options is not None:
        more = (" | ".join(checked.options[number]),)
    return tuple(clipped(_shown(value)) for value in (checked.inputs[number], *more))


def _shown(value: Any) -> str:
    """Return an input for display: a text, words, the last message of a conversation, or the path of an image."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    if isinstance(value, list) and is_message(value[-1]):
        return str(value[-1]["content"])
    path = value.get("path") if isinstance(value, Mapping) else value
    return os.fspath(path) if isinstance(path, str | os.PathLike) else "an image without a path"


def _in_words(value: str | float | list[str], certificate: Certificate) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    return number_in_words(value, certificate.targets) if isinstance(value, float) else value or "(none)"


def _without(known: WrongPredictions, why: str) -> WrongPredictions:
    return WrongPredictions(task=known.task, split=known.split, why_none=_why(known.task, why))


def _why(task: str, why: str) -> str:
    return f"Task {task!r}: no rows are shown: {why.removeprefix(f'task {task!r}: ').rstrip('.')}."

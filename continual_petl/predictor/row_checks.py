"""Check and encode the rows given for one task, and convert its bank's outputs to predictions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from continual_petl.errors import InputError, UnusableRowError, show
from continual_petl.heads.predictions import ROUNDING, Prediction, choices, tags
from continual_petl.kind import OF_ANSWERS
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import decode
from continual_petl.learner.respond import Outputs
from continual_petl.predictor.records import Row, RowForm, with_reason
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.sources.cells import BadText

_SHOWN = 5


@dataclass(frozen=True)
class Request:
    """Checked rows for one task."""

    certificate: Certificate
    numbers: Sequence[int]
    """Indices of these rows among all given rows."""
    inputs: list[Any]
    pairs: list[str] | None
    options: list[Sequence[str]] | None = None
    """The options of each row, if each row has its own."""

    def encoded(self, models: ModelCache, *, finding: bool = False) -> TokenisedRows:
        """Encode the rows, including padding, exactly as when the task was learned and measured.

        Args:
            models: the run's tokenizer and image processing.
            finding: whether the rows are only encoded to find their task, which needs no options, and of a row that is too
                long what the backbone sees.

        Raises:
            UnusableRowError: if a row cannot be used.
            InputError: if a package is missing that reads the rows.
        """
        certificate, among = self.certificate, "" if list(self.numbers) == list(range(len(self.inputs))) else "its own "
        where = f"task {certificate.task!r}, {among}rows to predict"
        kind, options_N = kind_of(certificate), None if finding else self.options
        how = kind.how_encoded(
            certificate,
            tokenizer=models.tokenizer,
            max_length=certificate.max_length,
            images=models.images,
            chat=certificate.chat,
            where=where,
            **({"options": None} if finding else {}),
        )
        try:
            encoded: TokenisedRows = kind.encode(self.inputs, how, pairs=self.pairs, row_options=options_N)
        except InputError as error:
            if isinstance(error.__cause__, ImportError):
                raise  # no row is at fault if a package is missing
            reason = str(error).replace(f"{where}, row 1", f"task {certificate.task!r}")
            raise UnusableRowError(str(error), reason) from error
        if not finding:
            self.check_all_seen(encoded, range(len(self.inputs)))
        if finding and encoded.sequences is not None:  # only the first of them is read
            encoded = replace(encoded, truncated=np.diff(encoded.sequences.starts) > 1)
        return encoded

    def check_all_seen(self, rows: TokenisedRows, positions: Sequence[int]) -> None:
        """Reject a row of words that the backbone does not see completely: the remaining ones would silently get no tag.

        Args:
            rows: the encoded rows.
            positions: the rows to check.
        """
        for position in positions if rows.first_piece is not None else ():
            words, seen = self.inputs[position], len(rows.places_of_words(position))
            if seen < len(words):
                task = f"task {self.certificate.task!r}:"
                has = (
                    f"has {len(words)} words, but only the first {seen} fit into the {self.certificate.max_length} tokens "
                    "that the backbone takes; split the row, so that every word gets a tag"
                )
                raise UnusableRowError(f"{task} row {self.numbers[position] + 1} {has}", f"{task} it {has}")


def encoding_of(certificate: Certificate) -> tuple[object, ...]:
    """Return a value that is equal for tasks that encode a row, apart from its options, in the same way."""
    chat = certificate.chat
    encoding = {key: value for key, value in (certificate.kind_settings or {}).items() if key not in OF_ANSWERS}
    settings = json.dumps(encoding, sort_keys=True)
    pair = certificate.pair or certificate.options_from == "row"
    lengths = (certificate.max_length, certificate.max_target_length)
    return kind_of(certificate).encoding, settings, pair, lengths, None if chat is None else (chat.digest, chat.system)


def encode_all(asked: Sequence[Request], models: ModelCache) -> list[TokenisedRows]:
    """Return the encoded rows of each request; texts that are encoded alike go to the tokenizer in one call.

    Raises:
        InputError: as in `Request.encoded`.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, each in enumerate(asked):
        if kind_of(each.certificate).reads_texts:
            alike.setdefault(encoding_of(each.certificate), []).append(number)
    found: dict[int, TokenisedRows] = {}
    for numbers in alike.values():
        own = [asked[number] for number in numbers]
        inputs = [text for each in own for text in each.inputs]
        pairs = [text for each in own for text in each.pairs or ()]
        try:
            rows = replace(own[0], numbers=range(len(inputs)), inputs=inputs, pairs=pairs or None).encoded(models)
        except InputError:
            continue  # raised again below, with the task and row
        ends = list(itertools.accumulate(len(each.inputs) for each in own))
        found |= {
            number: rows.take(range(end - len(each.inputs), end))
            for number, each, end in zip(numbers, own, ends, strict=True)
        }
    return [found[number] if number in found else each.encoded(models) for number, each in enumerate(asked)]


def check_request(rows: Sequence[Row], numbers: Sequence[int], certificate: Certificate) -> Request:
    """Return the rows of a task, or raise `InputError` naming those that the task cannot read.

    Args:
        rows: all rows that were given.
        numbers: indices of the rows that the task is to predict.
        certificate: the certificate of the task.
    """
    form = RowForm.of(certificate)
    parts, faults = [], []
    for number in numbers:
        try:
            parts.append(_parts(rows[number], form))
        except ValueError as error:
            faults.append(f"row {number + 1} is {with_reason(show(rows[number]), str(error))}")
    if faults:
        count = "" if len(faults) == 1 else f"{len(faults):,} rows cannot be used: "
        rest = f" and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else ""
        wrong_tuple = len(rows) == 1 and isinstance(rows[0], tuple) and len(rows[0]) != len(form.columns)
        more = "; a tuple is always one row: give several rows in a list" if wrong_tuple else ""
        said = f"{count}{'; '.join(faults[:_SHOWN])}{rest}; each row of this task is {form.in_words}"
        raise InputError(f"task {certificate.task!r}: {said}{more}")
    first = [row[0] for row in parts]
    if len(form.columns) == 1:
        return Request(certificate, numbers, first, None)
    second = [row[1] for row in parts]
    return Request(certificate, numbers, first, None if form.options else second, second if form.options else None)


def _parts(row: Row, form: RowForm) -> list[Any]:
    """Return what a row has in each column of its form; raises `ValueError` as `RowForm.read`."""
    several = len(form.columns) > 1
    if several and not (isinstance(row, tuple) and len(row) == len(form.columns)):
        raise ValueError(show(row))
    return [form.read(place, value) for place, value in enumerate(row if several else (row,))]


def accepts(row: Row, certificate: Certificate) -> bool:
    """Return whether a task takes rows like this one, which was given without a task name."""
    form = RowForm.of(certificate)
    if isinstance(row, tuple) and len(row) == 2 and len(form.columns) == 1 and form.holds != "messages":
        return False  # never two words
    try:
        _parts(row, form)
    except BadText:
        return True  # of the right type
    except ValueError:
        return False
    return True


def in_words(
    outputs: Outputs,
    certificate: Certificate,
    models: ModelCache,
    encoded: TokenisedRows,
    positions: Sequence[int],
    near_ties: Sequence[bool] = (),
) -> list[Prediction]:
    """Convert a bank's outputs for some rows to predictions.

    Args:
        outputs: the outputs of `respond`.
        certificate: the certificate of the task.
        models: the run's backbone and banks, which provide the tokenizer.
        encoded: all rows of the task.
        positions: indices of the predicted rows among them.
        near_ties: for generated texts, whether each was nearly another one; empty if that is not known.
    """
    precision = certificate.environment.precision
    if isinstance(outputs, list):
        assert models.tokenizer is not None
        assert certificate.generation is not None
        texts = decode(models.tokenizer, outputs, certificate.generation.stop)
        near = near_ties or [False] * len(texts)
        found = [Prediction(value=text, near_tie=tie) for text, tie in zip(texts, near, strict=True)]
    elif encoded.first_piece is not None:
        assert certificate.labels is not None
        kept = [row[encoded.places_of_words(position)] for position, row in zip(positions, outputs.cpu(), strict=True)]
        found = tags(certificate.labels, kept, precision=precision)
    elif encoded.option_texts is not None:
        texts_of_rows = [encoded.option_texts[position] for position in positions]
        found = choices(texts_of_rows, outputs.cpu(), precision=precision, decision=certificate.decision)
    else:
        kind = kind_of(certificate)
        own: dict[str, Any] = {} if certificate.decision is None else {"decision": certificate.decision}
        if encoded.texts is not None and kind.extracts:
            own["texts"] = encoded.texts.take(positions)
        found = kind.in_words(
            certificate.labels,
            outputs.cpu().detach().float(),
            targets=certificate.targets,
            rounding=ROUNDING[precision],
            **own,
        )
    return [
        replace(each, task=certificate.task, truncated=encoded.is_truncated(position))
        for each, position in zip(found, positions, strict=True)
    ]

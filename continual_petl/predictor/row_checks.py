"""Check and encode the rows given for one task, and convert its bank's outputs to predictions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from continual_petl.errors import InputError
from continual_petl.heads.predictions import ROUNDING, Prediction, choices, tags
from continual_petl.kind import MAX_OPTIONS, HowEncoded
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import decode
from continual_petl.learner.respond import Outputs
from continual_petl.predictor.records import Row
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.sources.conversations import conversation, messages_of
from continual_petl.streams.sources.row_options import options_fault
from continual_petl.streams.stream_file.size_limits import half_character

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

    def encoded(self, models: ModelCache, *, options: bool = True) -> TokenisedRows:
        """Encode the rows, including padding, exactly as when the task was learned and measured.

        Args:
            models: the run's tokenizer and image processing.
            options: whether the options of the task are encoded with each row; finding its task does not need them.

        Raises:
            InputError: if a row cannot be used.
        """
        certificate, among = self.certificate, "" if list(self.numbers) == list(range(len(self.inputs))) else "its own "
        how = HowEncoded(
            tokenizer=models.tokenizer,
            max_length=certificate.max_length,
            max_target_length=certificate.max_target_length,
            images=models.images,
            chat=certificate.chat,
            options=certificate.options if options else None,
            settings=certificate.kind_settings,
            where=f"task {certificate.task!r}, {among}rows to predict",
        )
        encoded: TokenisedRows = kind_of(certificate).encode(
            self.inputs, how, pairs=self.pairs, row_options=self.options if options else None
        )
        if encoded.first_piece is not None:
            self._check_all_seen(encoded)
        return encoded

    def _check_all_seen(self, rows: TokenisedRows) -> None:
        """Reject a row that the backbone does not see completely: the remaining words would silently get no tag."""
        for position, words in enumerate(self.inputs):
            seen = len(rows.places_of_words(position))
            if seen < len(words):
                raise InputError(
                    f"task {self.certificate.task!r}: row {self.numbers[position] + 1} has {len(words)} words, but only the "
                    f"first {seen} fit into the {self.certificate.max_length} tokens that the backbone takes; split the row, "
                    "so that every word gets a tag"
                )


def encode_all(asked: Sequence[Request], models: ModelCache) -> list[TokenisedRows]:
    """Return the encoded rows of each request; texts that are encoded alike go to the tokenizer in one call.

    Raises:
        InputError: as in `Request.encoded`.
    """
    alike: dict[tuple[bool, int], list[int]] = {}
    for number, each in enumerate(asked):
        if kind_of(each.certificate).reads_texts:
            alike.setdefault((each.certificate.pair, each.certificate.max_length), []).append(number)
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
    parts, faults = [], dict[str, list[str]]()
    for number in numbers:
        try:
            parts.append(_parts(rows[number], certificate))
        except ValueError as error:
            what, _, rule = str(error).rpartition("; ")
            faults.setdefault(rule, []).append(f"row {number + 1}{what}")
    if faults:
        count, more = sum(map(len, faults.values())), ""
        if isinstance(rows[0], tuple) and len(rows) == 1 and "each row of this task" in next(iter(faults)):
            more = "; a tuple is always one row: give several rows in a list"
        said = [
            f"{'; '.join(own[:_SHOWN])}{f' and {len(own) - _SHOWN:,} more' if len(own) > _SHOWN else ''}; {rule}"
            for rule, own in faults.items()
        ]
        begin = "" if count == 1 else f"{count:,} rows cannot be used: "
        raise InputError(f"task {certificate.task!r}: {begin}{'. And '.join(said)}{more}")
    inputs = [source for source, _ in parts]
    options = [texts for _, texts in parts if texts is not None] if certificate.options_from == "row" else None
    if certificate.pair:
        return Request(certificate, numbers, [row[0] for row in inputs], [row[1] for row in inputs])
    return Request(certificate, numbers, inputs, None, options)


def _parts(row: Row, certificate: Certificate) -> tuple[Any, Sequence[str] | None]:
    """Return what a task reads of a row, and the row's own options, if it has any.

    Raises:
        ValueError: if the task cannot read it, with the end of a sentence that begins with the number of the row, and after
            a semicolon what is true of all rows.
    """
    kind = kind_of(certificate)
    own, options = _of_type(row, certificate)
    if options is not None and (fault := options_fault(options, list(options))) is not None:
        raise ValueError(f", options: {fault}; a row needs 2 to {MAX_OPTIONS:,} different texts to choose from")
    if certificate.chat is not None:
        return own, options
    texts = [] if kind.reads_images else [own] if isinstance(own, str) else [*own]
    if not all(map(str.strip, texts)):
        raise ValueError(
            f" is {_shown(own)}, with an empty text; every row needs a text, as in training: fill it, or leave the row out"
        )
    if (half := half_character("\n".join([*texts, *(options or ())]))) is not None:
        raise ValueError(
            f" contains {half}, half of a surrogate pair, which is not a character; write the complete character"
        )
    return own.split() if kind.per_word and isinstance(own, str) else list(own) if kind.per_word else own, options


def _of_type(row: Row, certificate: Certificate) -> tuple[Any, Sequence[str] | None]:
    """Return a row of the type that a task takes, a conversation as messages, and its options; see `_parts`."""
    options = None
    if certificate.options_from == "row":
        if not (isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], list | tuple)):
            wanted = "a pair of a source and a list of options, such as ('Is it red?', ['yes', 'no'])"
            raise ValueError(f" is {_shown(row)}; each row of this task is {wanted}")
        row, options = row
    if certificate.chat is not None:
        try:
            return conversation(messages_of(row), certificate.chat.system, ends="user"), options
        except ValueError as error:
            raise ValueError(
                f" is {_shown(row)}: {error}; each row of this task is the text of a user message, or a list of messages "
                "{role, content} that ends with a user message"
            ) from error
    if (wanted_row := kind_of(certificate).wanted_row(row, pair=certificate.pair)) is not None:
        raise ValueError(f" is {_shown(row)}; each row of this task is {wanted_row}")
    return row, options


def accepts(row: Row, certificate: Certificate) -> bool:
    """Return whether a task takes rows like this one, which was given without a task name."""
    takes_pairs = certificate.pair or certificate.options_from == "row" or certificate.chat is not None
    if isinstance(row, tuple) and len(row) == 2 and not takes_pairs:
        return False  # never two words
    try:
        _of_type(row, certificate)
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
        found = choices(texts_of_rows, outputs.cpu(), precision=precision)
    else:
        kind = kind_of(certificate)
        own = {"texts": encoded.texts.take(positions)} if encoded.texts is not None and kind.extracts else {}
        found = kind.in_words(
            certificate.labels,
            outputs.cpu().detach().float(),
            targets=certificate.targets,
            rounding=ROUNDING[precision],
            **own,
        )
    return [replace(each, task=certificate.task) for each in found]


def _shown(row: Row) -> str:
    text = os.fspath(row) if isinstance(row, os.PathLike) else repr(row)
    return text if len(text) <= 80 else f"{text[:77]}..."

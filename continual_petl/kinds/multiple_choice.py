"""One of the options of each row, as in COPA or SWAG: the row's text is read once with each of its options.

The pooled vector of every pair of text and option gets one number from a linear layer, and the softmax over the numbers of a
row is the probability of each option, as in ``BertForMultipleChoice`` of transformers.

Shape legend: N rows, B rows of a batch, K options of the row with the most, S sequences, W tokens of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError, known_names
from continual_petl.kind import MAX_OPTIONS, HowEncoded, HowRead, ReadRows
from continual_petl.kinds.bases.calibrated import Calibrated
from continual_petl.kinds.bases.several import OfSeveral, there
from continual_petl.streams.preparation.spelling_notices import nearest
from continual_petl.streams.schema.option_columns import OptionColumns
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import OPTIONS, TEXTS, options_in, text_in
from continual_petl.streams.sources.checks import Cells, Fault, Where, row_in, show
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    from torch import Tensor

    from continual_petl.heads.head import Head
    from continual_petl.streams.encoding.rows import TokenisedRows
    from continual_petl.streams.encoding.tokenizer_calls import Encoded
    from continual_petl.streams.scaffold.guess import Guess
    from continual_petl.streams.scaffold.profile import Column

_OPTIONS = ("options", "choices", "endings", "candidates", "answers")
_RIGHT = ("label", "answer", "target", "gold", "correct")
_ONE_EACH = re.compile(
    r"(choice|option|ending|answer|candidate|alternative|sol|opt)[_ ]?([0-9]{1,3}|[a-j])", re.IGNORECASE
)
_JOINED = (("sent1", "sent2"), ("premise", "question"))
"""Columns that are the source together: of SWAG, and of COPA, where the question is cause or effect."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_RULE = (
    "The label of every row is one of the row's options, character for character, or in all rows its position, counted from "
    "0: repair or remove these rows."
)


class MultipleChoice(Calibrated, OfSeveral):
    """The head has one output for each option of a row, with softmax and cross-entropy over these."""

    name = "multiple-choice"
    columns = ("source", "options", "label")
    metrics: tuple[str, ...] = ("accuracy",)
    input_name = "source"
    chooses = True
    several = "a row is read once with each of its options"
    summary = "texts"
    auto_class = "AutoModelForMultipleChoice"
    formats = ("merged",)

    def guess(self, columns: Sequence[Column]) -> Guess | None:
        """Return a task if columns are named like options, in lists or one each, and another one says which is right."""
        from continual_petl.streams.scaffold.guess import Guess, joined_source

        known = {column.name.lower(): column for column in columns}
        options = next(
            (known[name] for name in _OPTIONS if name in known and known[name].holds in ("words", "names")), None
        )
        label = next((known[name] for name in _RIGHT if name in known), None)
        several = [] if options is not None else _one_each(columns)
        taken = [label, options, *several]
        texts = [column for column in columns if column.holds == "text" and column not in taken]
        if (
            not (options or several)
            or label is None
            or not texts
            or label.holds not in ("name", "whole number", "text")
        ):
            return None
        names = OptionColumns([column.name for column in several]) if options is None else options.name
        letters = max((column.longest for column in several), default=0)
        if options is None:
            why = f"columns {names} hold a text each, of which column {label.name} chooses one"
        else:
            why = f"column {names} holds lists, of which column {label.name} chooses one"
        joined = next((pair for pair in _JOINED if {*pair} <= known.keys() and "startphrase" not in known), None)
        if joined is None:
            source = max(texts, key=lambda column: column.letters)
            keys = {"source": source.name, "options": names, "label": label.name}
            return Guess(kind=self.name, columns=keys, why=why, letters=source.longest + letters)
        first, second = (known[name] for name in joined)
        source_column, templates = joined_source(first.name, second.name, columns, " ")
        return Guess(
            kind=self.name,
            columns={"source": source_column, "options": names, "label": label.name},
            templates=templates,
            why=why,
            letters=first.longest + second.longest + letters,
            pairing=f"columns {first.name} and {second.name} were taken together as the source, because of their names",
        )

    def head(self, width: int, num_outputs: int, *, targets: object, **settings: Any) -> Head:
        """Return a linear layer with one output."""
        from continual_petl.heads.linear import ClassHead

        return ClassHead(self.name, width, num_outputs, **settings)

    def read_rows(self, task: TaskSpec, rows: SplitRows, how: HowRead) -> ReadRows:
        """Check sources, options and labels; answers are the texts of the right options."""
        inputs, options = rows.inputs.read(text_in, TEXTS), rows.columns["options"].read(options_in, OPTIONS)
        answers = rows.answers
        if (names := rows.class_names) is not None:  # such as choice1 and choice2
            places = [None if answer is None else names.index(answer) for answer in answers]
            answers = Cells(rows.where, answers.name, places)
        right = [own[index] for own, index in zip(options, _places(answers, options), strict=True)]
        return ReadRows(inputs=inputs, answers=right, names=right, options=options)

    def encode(
        self,
        inputs: Sequence[Any],
        how: HowEncoded,
        *,
        row_options: Sequence[Sequence[str]] | None = None,
        **answered: Any,
    ) -> TokenisedRows:
        """Tokenise each text alone, by which its task can be found, and as a pair with each option."""
        import numpy as np

        from continual_petl.streams.encoding.rows import Sequences, offsets_of
        from continual_petl.streams.encoding.tokenise import check_room
        from continual_petl.streams.encoding.tokenizer_calls import ToEncode, encode

        tokenizer, max_length = self.tokenizer(how), how.max_length
        check_room(tokenizer, max_length, pair=True)
        rows = super().encode(inputs, how)
        if not row_options:
            return rows
        starts = offsets_of(map(len, row_options))
        texts = [text for text, own in zip(inputs, row_options, strict=True) for _ in own]
        options = [option for own in row_options for option in own]
        types = "token_type_ids" in tokenizer.model_input_names
        encoded = encode(tokenizer, ToEncode(texts, options, max_length, types=types))
        rows = replace(
            rows,
            sequences=Sequences(ids=encoded.ids, offsets=encoded.offsets, starts=starts, types=encoded.types),
            option_texts=tuple(map(tuple, row_options)),
            truncated=np.logical_or.reduceat(encoded.cut, starts[:-1]),
        )
        _check_distinct(encoded, row_options, how.where, max_length)
        return rows

    def of_rows(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the output of each option of each row, ``(B, K)``; -inf where a row has fewer options."""
        there_BK = there(batch)
        return outputs.new_full(there_BK.shape, -float("inf")).masked_scatter(there_BK, outputs)

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: object, single_precision: bool
    ) -> dict[str, Any]:
        """Return the share of rows whose right option was chosen; predictions and labels are positions in a row's list."""
        from torchmetrics.classification import MulticlassAccuracy

        return {"accuracy": MulticlassAccuracy(MAX_OPTIONS, average="micro")}


def _one_each(columns: Sequence[Column]) -> list[Column]:
    """Return the columns with one option each, such as ending0 to ending3 or choice1 and choice2; [] if there are none."""
    stems: dict[str, dict[str, Column]] = {}
    for column in columns:
        if column.holds in ("text", "name") and (matched := _ONE_EACH.fullmatch(column.name)):
            stems.setdefault(matched[1].lower(), {})[matched[2].lower()] = column
    for numbered in stems.values():
        order = sorted(numbered, key=lambda end: (len(end), end))
        if len(order) > 1 and order[0] in ("0", "1", "a") and all(_follows(*ends) for ends in pairwise(order)):
            return [numbered[end] for end in order]
    return []


def _follows(end: str, following: str) -> bool:
    if end.isdigit() and following.isdigit():
        return int(following) == int(end) + 1
    return not end.isdigit() and not following.isdigit() and ord(following) == ord(end) + 1


def _places(answers: Cells[Any], options: Sequence[tuple[str, ...]]) -> Sequence[int]:
    """Return the position of the right option of each row; the labels of a split are all texts, or all positions.

    Raises:
        InputError: naming the rows that cannot be used, or that mean different options as texts and as positions.
    """
    pairs = [*zip(answers, options, strict=True)]
    texts = [own.index(answer) if isinstance(answer, str) and answer in own else None for answer, own in pairs]
    numbers = [_integer(answer) for answer in answers]
    inside = [n is not None and 0 <= n < len(own) for n, own in zip(numbers, options, strict=True)]
    if None not in texts and all(inside):
        both = zip(answers, texts, numbers, strict=True)
        faults = [
            Fault(row=row, what=f"{show(answer)} is option {text} by its text, and option {number} by its position")
            for row, (answer, text, number) in enumerate(both)
            if text != number
        ]
        advice = "Write the labels as integers, which .jsonl and .parquet files have, if they are positions"
        answers.refuse(faults, f"{advice}; otherwise, change how these options are written.")
    if None not in texts:
        return [index for index in texts if index is not None]
    if None not in numbers:
        faults = [
            Fault(row=row, what=f"position {number} of {len(own)} options, which are counted from 0")
            for row, (number, own, good) in enumerate(zip(numbers, options, inside, strict=True))
            if not good
        ]
        answers.refuse(faults, _RULE)
        return [number for number in numbers if number is not None]
    wrong = [
        row for row, (text, number) in enumerate(zip(texts, numbers, strict=True)) if text is None and number is None
    ]
    wrong = wrong or [row for row, text in enumerate(texts) if text is None]  # positions among texts
    faults = [Fault(row=row, what=_why_none(*pairs[row])) for row in wrong]
    answers.refuse(faults, _RULE)
    raise AssertionError("some label is not an option")


def _integer(answer: Any) -> int | None:
    if isinstance(answer, str) and _INTEGER.fullmatch(answer):
        return int(answer)
    return int(answer) if isinstance(answer, Integral) and not isinstance(answer, bool) else None


def _why_none(answer: Any, own: tuple[str, ...]) -> str:
    """Return why a label is none of the options of its row."""
    if answer in (None, ""):
        return "missing"
    hint = nearest(answer, own) if isinstance(answer, str) else ""
    return f"{show(answer)} is not among {known_names([*map(show, own)])}{hint}"


def _check_distinct(pairs: Encoded, options: Sequence[Sequence[str]], where: Where | str, max_length: int) -> None:
    """Refuse options of a row that have the same tokens."""
    ends = iter(zip(pairs.offsets[:-1].tolist(), pairs.offsets[1:].tolist(), strict=True))
    for row, own in enumerate(options):
        seen: dict[bytes, str] = {}
        for option in own:
            start, end = next(ends)
            same = seen.setdefault(pairs.ids[start:end].tobytes(), option)
            if same != option:
                raise InputError(
                    f"{row_in(where, row)}, options: {same!r:.80} and {option!r:.80} have the same tokens with this "
                    f"tokenizer, truncated to {max_length} together with their text, so they always get the same score: "
                    "write options that differ earlier, and in more than unknown or invisible characters, or use a larger "
                    "backbone.max_length."
                )

"""The part of a text that answers a question, or that there is none, as in SQuAD 1.1 and 2.0.

The bank reads the question with the context, and a linear layer gives each token a number as the start and one as the end of
the answer, as in ``BertForQuestionAnswering`` of transformers. A context that does not fit is read in windows that overlap by
``stride`` tokens, and the answer is the part with the largest sum of both numbers in any window (Devlin et al. 2019, section
4.2 and 4.3; ``run_qa.py`` of transformers, except that all parts are compared, and not only those of the 20 best starts and
ends). Where rows may have no answer, each window scores this at its first special token, and the row's score is the lowest.

Shape legend: N rows, B rows of a batch, K windows of the row with the most, S windows of all rows, W tokens of the longest,
T tokens of a context, L longest answer in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError, counted
from continual_petl.kind import NO_ANSWER, HowEncoded, HowRead, OwnColumn, ReadRows
from continual_petl.kinds.bases.several import OfSeveral, there
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import TEXTS, from_cell, text_in
from continual_petl.streams.sources.checks import Where, row_in, show
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Encoding
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from continual_petl.heads.head import Head
    from continual_petl.heads.predictions import Prediction
    from continual_petl.streams.encoding.rows import Sequences, Texts, TokenisedRows
    from continual_petl.streams.scaffold.guess import Guess
    from continual_petl.streams.scaffold.profile import Column

_CHUNK = 1000
_ANSWERS = (
    "An answer is a part of its context, character for character: {text: [...], answer_start: [...]} as in SQuAD, with "
    "positions counted from 0, or a text with its position in columns.answer_start; repair or remove these rows."
)


class SpanSettings(StrictModel):
    """How answers are found in a context."""

    stride: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 128
    """How many tokens of a context that does not fit are repeated in its next window."""
    max_answer_length: Annotated[int, Field(strict=True, ge=1, le=1000)] = 30
    """The most tokens of an answer."""
    no_answer: Annotated[bool, Field(strict=True)] = False
    """Whether a row may have no answer, as in SQuAD 2.0."""
    no_answer_threshold: float = 0.0
    """With no_answer: how much higher than the best answer's the score of no answer has to be."""


class Gold(NamedTuple):
    """The right answers to a question."""

    texts: list[str]
    """Empty if the question has no answer."""
    starts: list[int]
    """The position of each in the context, in characters."""


class QuestionAnswering(OfSeveral):
    """The head has two outputs for each token; the loss is the mean of two cross-entropies over the tokens of a window."""

    name = "question-answering"
    columns = ("question", "context", "answer_start", "answers")
    own_columns: ClassVar = {
        "question": OwnColumn("question", "The column with the question."),
        "context": OwnColumn("context", "The column with the text that has the answer."),
        "answers": OwnColumn("answers", "The column with the answers: {text: [..], answer_start: [..]}, or a text."),
        "answer_start": OwnColumn(
            None, "The column with the position of the answer in the context, if answers are texts."
        ),
    }
    own_settings = SpanSettings
    metrics: tuple[str, ...] = ("f1", "exact_match")
    input_name = "question and context"
    always_pairs = True
    extracts = True
    several = "a long context is read in several windows"
    summary = "texts"
    details: ClassVar = {"start": "int", "end": "int", "probability": "float", "no_answer_probability": "float"}

    def read_rows(self, task: TaskSpec, rows: SplitRows, how: HowRead) -> ReadRows:
        """Check questions, contexts and answers; an answer that does not stand where it should is refused."""
        questions, contexts = (rows.columns[key].read(text_in, TEXTS) for key in ("question", "context"))
        starts = rows.columns.get("answer_start")
        answers = rows.answers if starts is None else rows.answers.beside(starts)
        none_allowed = SpanSettings.model_validate(task.kind_settings or {}).no_answer

        def gold_in(row: tuple[Any, str]) -> Gold:
            gold = _gold(*row, whole=starts is None)
            if not gold.texts and not none_allowed:
                raise ValueError("no answer; if there are such rows, write kind_settings: {no_answer: true}")
            return gold

        golds = answers.beside(contexts).read(gold_in, _ANSWERS)
        named = [[f"{text} (at {start})" for text, start in zip(*gold, strict=True)] for gold in golds]
        return ReadRows(inputs=questions, pairs=contexts, answers=golds, names=named)

    def guess(self, columns: Sequence[Column]) -> Guess | None:
        """Return a task if there are a question, a context, and answers with their positions."""
        from continual_petl.streams.scaffold.guess import Guess

        known = {column.name.lower(): column for column in columns}
        lists = next((column for column in columns if column.keys >= {"text", "answer_start"}), None)
        text, start = known.get("answer", known.get("answers")), known.get("answer_start")
        answers = lists if lists is not None else text if start is not None else None
        if not {"question", "context"} <= known.keys() or answers is None:
            return None
        keys = {"question": known["question"].name, "context": known["context"].name, "answers": answers.name}
        if lists is None and start is not None:
            keys["answer_start"] = start.name
        why = f"columns {', '.join(keys.values())} have the usual names of questions with answers that are part of a context"
        letters = known["question"].longest + known["context"].longest
        empty = answers.some_empty or 0 in answers.lengths
        return Guess(kind=self.name, columns=keys, why=why, letters=letters, some_empty=empty)

    def drafted(self, guess: Guess, max_length: int) -> dict[str, Any]:
        """Return a stride that fits into short windows, and whether rows may have no answer."""
        stride = {"stride": max_length // 4} if max_length < 3 * SpanSettings().stride else {}
        return stride | ({"no_answer": True} if guess.some_empty else {})

    def head(self, width: int, num_outputs: int, *, targets: object, dropout: float, **settings: Any) -> Head:
        """Return a linear layer with two outputs for each token."""
        from continual_petl.heads.spans import SpanHead

        return SpanHead(self.name, width, 2, dropout)

    def encode(
        self,
        inputs: Sequence[Any],
        how: HowEncoded,
        *,
        pairs: Sequence[str] | None = None,
        answers: Sequence[Gold] | None = None,
        row_options: Sequence[Sequence[str]] | None = None,
    ) -> TokenisedRows:
        """Tokenise questions with their contexts, and divide them into windows; see `Kind.encode`."""
        from continual_petl.heads.spans import compared
        from continual_petl.streams.encoding.rows import Texts, TokenisedRows, spans_of
        from continual_petl.streams.encoding.tokenise import check_room
        from continual_petl.streams.encoding.tokenizer_calls import settings_kept

        tokenizer, spans = self.tokenizer(how), SpanSettings.model_validate(how.settings or {})
        check_room(tokenizer, how.max_length, pair=True)
        contexts = pairs or []
        windows = _Windows(tokenizer, spans.stride, how.max_length, how.where)
        with settings_kept(tokenizer):
            for start in range(0, len(inputs), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                encoded = tokenizer(list(inputs[chunk]), list(contexts[chunk]), verbose=False).encodings or ()
                for row, encoding in enumerate(encoded, start):
                    windows.add(encoding, None if answers is None else answers[row])
        sequences = windows.sequences(labelled=answers is not None)
        references = () if answers is None else tuple(compared(gold.texts, none=spans.no_answer) for gold in answers)
        first, offsets = spans_of(sequences.offsets, sequences.starts[:-1])
        return TokenisedRows(
            ids=sequences.ids[first],
            offsets=offsets,
            token_types=None if sequences.types is None else sequences.types[first],
            labels=None,
            sequences=sequences,
            texts=Texts(references, tuple(contexts), tuple(windows.spans)),
        )

    def notices_on_encoded(self, task: TaskSpec, split: str, rows: TokenisedRows, answers: Sequence[Gold]) -> list[str]:
        """Return notices on answers that no window has completely, and on those that are too long to be predicted."""
        import numpy as np

        sequences, longest = rows.sequences, SpanSettings.model_validate(task.kind_settings or {}).max_answer_length
        assert sequences is not None
        assert sequences.labels is not None
        assert sequences.places is not None
        notices, name = [], f"task {task.name!r}"
        starts_S, ends_S = sequences.labels.T
        held_S = sequences.places[sequences.offsets[:-1] + starts_S] != NO_ANSWER
        held_N = np.logical_or.reduceat(held_S, sequences.starts[:-1])
        lost = int((~held_N & [bool(gold.texts) for gold in answers]).sum())
        if lost and split == "train":
            notices.append(
                f"{name}: {lost} of {len(rows)} {split} rows are read in several windows (backbone.max_length), none of "
                "which has their whole answer, so they learn that there is none; with a larger kind_settings.stride, at "
                "least as long as the answers in tokens, one window has it."
            )
        lengths_S = np.where(held_S, ends_S - starts_S + 1, 0)
        lengths_N = np.maximum.reduceat(lengths_S, sequences.starts[:-1])
        if (too_long := int((lengths_N > longest).sum())) > 0:
            notices.append(
                f"{name}: {too_long} of {len(rows)} {split} answers have more than {counted(longest, 'token')}, the most of "
                "a predicted answer (kind_settings.max_answer_length), so they are never predicted completely; the longest "
                f"has {int(lengths_N.max())}."
            )
        return notices

    def row_weights(self, rows: TokenisedRows, class_weights: object) -> NDArray[np.float64]:
        """Return the number of windows of each row."""
        import numpy as np

        assert rows.sequences is not None
        return np.diff(rows.sequences.starts).astype(np.float64)

    def of_rows(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the numbers of each token of each window, ``(B, K, W, 2)``; -inf for padding and missing windows."""
        there_BK = there(batch)
        rows = outputs.new_full((*there_BK.shape, *outputs.shape[1:]), -float("inf"))
        mask_SW = (
            self.sequences(batch)["attention_mask"] if batch["attention_mask"].ndim == 3 else batch["attention_mask"]
        )
        rows[there_BK] = outputs.masked_fill(mask_SW[..., None] == 0, -float("inf"))
        return rows

    def kept(self, outputs: Tensor, batch: dict[str, Tensor], settings: Mapping[str, Any] | None) -> Tensor:
        """Return the best answer to each row; see `continual_petl.heads.spans.best_spans`."""
        from continual_petl.heads.spans import best_spans

        how = SpanSettings.model_validate(settings or {})
        threshold = how.no_answer_threshold if how.no_answer else None
        return best_spans(outputs, batch["places"], how.max_answer_length, threshold)

    def extracted(self, kept: Tensor, texts: Texts) -> list[str]:
        """Return the text of each answer, without white space around it; empty if there is no answer."""
        assert texts.sources is not None
        return [text[slice(*span)] for text, span in zip(texts.sources, _spans(kept, texts), strict=True)]

    def is_right(self, answer: str, references: Sequence[str]) -> bool:
        """Return whether a text is an exact match."""
        from continual_petl.heads.spans import normalised

        return normalised(answer) in {normalised(text) for text in references or ("",)}

    def scores(self, labels: object, metric: str | None, *, reading: object, single_precision: bool) -> dict[str, Any]:
        """Return exact match and F1 as in the official script."""
        from continual_petl.heads.spans import SpanScores

        return {"spans": SpanScores()}

    def in_words(
        self, labels: object, outputs_BC: Tensor, *, targets: object, rounding: float, texts: Texts | None = None
    ) -> list[Prediction]:
        """Return the text of each answer, where it is in the context, and how probable it is."""
        from continual_petl.heads.predictions import Prediction

        assert texts is not None
        predictions = []
        values = zip(self.extracted(outputs_BC, texts), _spans(outputs_BC, texts), outputs_BC.tolist(), strict=True)
        for value, (start, end), (*_, share, no_answer, margin) in values:
            span = (start, end) if value else (None, None)
            details = dict(zip(self.details, (*span, share, no_answer), strict=True))
            predictions.append(Prediction(value=value, near_tie=margin <= 2 * rounding, details=details))
        return predictions


def _gold(value: Any, context: str, *, whole: bool) -> Gold:
    """Return the answers of a row; raises `ValueError` if they are not parts of the context."""
    if whole:
        value = from_cell(from_cell(value), "{")
        if isinstance(value, list) and all(isinstance(answer, Mapping) for answer in value):
            value = {key: [answer.get(key) for answer in value] for key in ("text", "answer_start")}
        if not isinstance(value, Mapping) or not {"text", "answer_start"} <= value.keys():
            raise ValueError("missing" if value in (None, "") else f"{show(value)} has no text and answer_start")
        texts, starts = value["text"], value["answer_start"]
    else:
        text, start = value
        texts, starts = ([], []) if text in (None, "") and start in (None, "", -1, "-1") else ([text], [start])
    if not isinstance(texts, list | tuple) or not isinstance(starts, list | tuple) or len(texts) != len(starts):
        raise ValueError(f"{show(texts)} and {show(starts)} are not two lists of the same length")
    return Gold([*texts], [_checked(text, start, context) for text, start in zip(texts, starts, strict=True)])


def _checked(text: Any, start: Any, context: str) -> int:
    """Return the position of an answer, after checking that it is there."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{show(text)} is not a text")
    if isinstance(start, str) and start.isascii() and start.isdigit():
        start = int(start[:12])  # in CSV
    if isinstance(start, bool) or not isinstance(start, int):
        raise ValueError(f"answer_start is {show(start)}, which is not a whole number")
    there = context[start : start + len(text)] if start >= 0 else ""
    if there != text:
        elsewhere = context.find(text)
        hint = "; the context does not have this text" if elsewhere < 0 else f"; it is at {elsewhere}"
        raise ValueError(f"the answer {show(text)} is not at {start}, where the context has {show(there)}{hint}")
    return start


class _Windows:
    """Divides rows into windows.

    Args:
        tokenizer: a fast tokenizer.
        stride: see `SpanSettings`.
        max_length: maximum tokens of a window, those of the question and special tokens included.
        where: names the rows in messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stride: int, max_length: int, where: Where | str) -> None:
        self._tokenizer, self._stride, self._max_length, self._where = tokenizer, stride, max_length, where
        self._ids: list[NDArray[np.int32]] = []
        self._types: list[NDArray[np.int8]] = []
        self._places: list[NDArray[np.int32]] = []
        self._labels: list[tuple[int, int]] = []
        self._counts: list[int] = []
        self.spans: list[NDArray[np.int32]] = []
        """For each row, where each token of its context begins and ends in it, ``(T, 2)``."""

    def add(self, encoded: Encoding, gold: Gold | None) -> None:
        """Add a row, encoded completely: what is around the context is in every window."""
        import numpy as np

        ids = np.array(encoded.ids, np.int32)
        types = np.array(encoded.type_ids, np.int8)
        context_T = np.flatnonzero([part == 1 for part in encoded.sequence_ids])
        spans_T2 = np.array(encoded.offsets, np.int32).reshape(-1, 2)[context_T]
        room = self._max_length - len(ids) + len(context_T)
        self._check(len(ids) - len(context_T), len(context_T), room)
        before, after = np.arange(context_T[0]), np.arange(context_T[-1] + 1, len(ids))
        span = None if gold is None or not gold.texts else self._tokens_of(gold, spans_T2)
        step = room - self._stride
        starts = [0, *range(step, len(context_T) - room + step, step)] if len(context_T) > room else [0]
        for start in starts:
            end = min(start + room, len(context_T))
            chosen = np.concatenate([before, context_T[start:end], after])
            places = np.full(len(chosen), -1, np.int32)
            places[len(before) : len(before) + end - start] = np.arange(start, end)
            no_answer = self._no_answer(ids[chosen].tolist())
            places[no_answer] = NO_ANSWER
            shift = len(before) - start
            inside = span is not None and start <= span[0] and span[1] < end
            self._labels.append((span[0] + shift, span[1] + shift) if span and inside else (no_answer, no_answer))
            self._ids.append(ids[chosen])
            self._types.append(types[chosen])
            self._places.append(places)
        self._counts.append(len(starts))
        self.spans.append(spans_T2)

    def sequences(self, *, labelled: bool) -> Sequences:
        """Return the windows of all rows.

        Args:
            labelled: whether the rows have answers; the label of a window without its row's answer is that of no answer.
        """
        import numpy as np

        from continual_petl.streams.encoding.rows import Sequences, offsets_of

        def flat(parts: list[Any], dtype: Any) -> Any:
            return np.concatenate([np.zeros(0, dtype), *parts])

        return Sequences(
            ids=flat(self._ids, np.int32),
            offsets=offsets_of(map(len, self._ids)),
            starts=offsets_of(self._counts),
            types=flat(self._types, np.int8) if "token_type_ids" in self._tokenizer.model_input_names else None,
            places=flat(self._places, np.int32),
            labels=np.array(self._labels, np.int64).reshape(-1, 2) if labelled else None,
        )

    def _check(self, num_around: int, num_tokens: int, room: int) -> None:
        where, longest = row_in(self._where, len(self._counts)), self._max_length
        if not num_tokens:
            raise InputError(
                f"{where}: the context gives no tokens with this tokenizer, so it has no answer; remove the row."
            )
        if num_tokens <= room:
            return
        held = f"the question and special tokens take {num_around} of the {longest} tokens of a window (backbone.max_length)"
        if room < 1:
            raise InputError(f"{where}: {held}, which leaves no room for the context; use a larger max_length.")
        if room <= self._stride:
            raise InputError(
                f"{where}: {held}, which leaves {room} for a context of {counted(num_tokens, 'token')}, but the next window "
                f"repeats {self._stride} of them (kind_settings.stride): use a stride below {room}, or a larger max_length, "
                "such as 384."
            )

    def _tokens_of(self, gold: Gold, spans_T2: NDArray[np.int32]) -> tuple[int, int]:
        """Return the first and the last token of the answer to learn, which is the first one."""
        text = gold.texts[0]
        start = gold.starts[0] + len(text) - len(text.lstrip())
        end = gold.starts[0] + len(text.rstrip())
        first = int(spans_T2[:, 1].searchsorted(start, side="right"))
        last = int(spans_T2[:, 0].searchsorted(end, side="left")) - 1
        if first > last:
            raise InputError(
                f"{row_in(self._where, len(self._counts))}: the answer {show(text)} gives no tokens with this tokenizer, "
                "so it cannot be learned; remove the row."
            )
        return first, last

    def _no_answer(self, ids: list[int]) -> int:
        """Return where a window scores that there is no answer, as ``run_qa.py`` does."""
        known = (self._tokenizer.cls_token_id, self._tokenizer.bos_token_id)
        return next((ids.index(token) for token in known if token is not None and token in ids), 0)


def _spans(kept: Tensor, texts: Texts) -> list[tuple[int, int]]:
    """Return where each answer begins and ends in its context, without white space around it; (0, 0) without an answer."""
    assert texts.sources is not None
    assert texts.places is not None
    spans = []
    for context, places, (first, last, *_) in zip(texts.sources, texts.places, kept.tolist(), strict=True):
        if first < 0:
            spans.append((0, 0))
            continue
        start, end = int(places[int(first), 0]), int(places[int(last), 1])
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        spans.append((start, start + len(text.strip())))
    return spans

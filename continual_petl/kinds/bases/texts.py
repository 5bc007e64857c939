"""What kinds that read texts share; all kinds of this package are derived from it and replace what is different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from continual_petl.kind import HowEncoded, HowRead, Kind, ReadRows
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import TEXTS, text_in
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.rows import TokenisedRows


class OfTexts(Kind):
    """A kind that reads one text per row, or a pair of them, and has one answer per row."""

    @property
    def encoding(self) -> str:
        """Texts and pairs are encoded alike, unless a kind derived from this one encodes them in its own way."""
        own = type(self)
        alike = self.reads_texts and own.encode is OfTexts.encode and own.tokenizer is OfTexts.tokenizer
        return "texts" if alike else self.name

    def read_rows(self, task: TaskSpec, rows: SplitRows, how: HowRead) -> ReadRows:
        """Check inputs, then answers; see `Kind.read_rows`."""
        inputs, keys = self.read_inputs(task, rows, how.folder)
        if "text_pair" in rows.columns:
            rows.columns["text_pair"].read(text_in, TEXTS)
        answers, names = self.read_answers(task, rows, inputs, how)
        return ReadRows(inputs=inputs, answers=answers, names=names, keys=keys or [])

    def read_inputs(self, task: TaskSpec, rows: SplitRows, folder: str | None) -> tuple[list[Any], list[str] | None]:
        """Return checked inputs, and a key for each, or None if they are texts, which are their own keys.

        Args:
            task: the task.
            rows: the rows of a split, as read.
            folder: where relative paths begin.

        Raises:
            InputError: naming the rows that cannot be used.
        """
        return rows.inputs.read(text_in, TEXTS), None

    def read_answers(
        self, task: TaskSpec, rows: SplitRows, inputs: Sequence[Any], how: HowRead
    ) -> tuple[Any, list[Any]]:
        """Return the answers of a split as numbers and in words; see `Kind.read_rows`."""
        raise NotImplementedError

    def encode(
        self,
        inputs: Sequence[Any],
        how: HowEncoded,
        *,
        pairs: Sequence[str] | None = None,
        answers: Any = None,
        row_options: Sequence[Sequence[str]] | None = None,
    ) -> TokenisedRows:
        """Tokenise texts or pairs; see `Kind.encode`."""
        from continual_petl.streams.encoding.tokenise import check_not_empty, tokenise

        rows = tokenise(inputs, pairs, answers, self.tokenizer(how), how.max_length)
        check_not_empty(inputs, rows, how.where)
        return rows

    def tokenizer(self, how: HowEncoded) -> PreTrainedTokenizerBase:
        """Return the tokenizer.

        Raises:
            ValueError: if there is none.
        """
        if how.tokenizer is None:
            raise ValueError(f"a {self.name} needs the tokenizer of the backbone")
        found: PreTrainedTokenizerBase = how.tokenizer
        return found

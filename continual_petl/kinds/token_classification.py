"""One tag for each word of a row, such as those that mark entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from continual_petl.errors import about
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.kind import IGNORED, HowEncoded, HowRead
from continual_petl.kinds.bases.labels import OfClasses
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import WORDS, words_in
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from continual_petl.streams.encoding.rows import TokenisedRows


class TokenClassification(OfClasses):
    """The head is that of texts, on the state of each word's first token."""

    name = "token-classification"
    columns = ("tokens", "tags")
    metrics: tuple[str, ...] = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
    input_name = "words"
    per_word = True
    answer_type = "list"
    auto_class = "AutoModelForTokenClassification"
    peft_type = "TOKEN_CLS"
    adapters_head = "tagging"

    def labels_in(self, task: TaskSpec, train: SplitRows, given: tuple[str, ...] | None) -> Iterable[str]:
        """Return all tags of the training rows."""
        from continual_petl.streams.preparation.label_lists import tag_lists

        words, _ = self.read_inputs(task, train, None)
        return chain.from_iterable(tag_lists(train.answers, words))

    def read_inputs(self, task: TaskSpec, rows: SplitRows, folder: str | None) -> tuple[list[Any], list[str] | None]:
        """Return the words of each row."""
        return rows.inputs.read(words_in, WORDS), None

    def read_answers(
        self, task: TaskSpec, rows: SplitRows, inputs: Sequence[Any], how: HowRead
    ) -> tuple[list[NDArray[np.int64]], list[list[str]]]:
        """Return the index of each word's tag, an array per row, and the tags."""
        from continual_petl.streams.preparation.label_lists import encode_tags, tag_lists

        labels = how.labels
        assert labels is not None
        lists = tag_lists(rows.answers, inputs)
        with about("labels"):
            tags = encode_tags(lists, labels, positions=how.positions)
        return tags, [[labels[number] for number in row.tolist()] for row in tags]

    def tag_reading(self, task: TaskSpec, labels: tuple[str, ...], train: Any) -> tuple[TagReading, str | None, str]:
        """Return how the tags mark entities; see `continual_petl.streams.preparation.tag_reading`."""
        from continual_petl.streams.preparation.tag_reading import tags_of

        return tags_of(task, labels, train)

    def label_counts(self, answers: Any, num_labels: int) -> NDArray[np.int64]:
        """Return the number of words with each tag."""
        import numpy as np

        return np.bincount(np.concatenate(answers), minlength=num_labels)

    def encode(self, inputs: Sequence[Any], how: HowEncoded, **rows: Any) -> TokenisedRows:
        """Tokenise lists of words."""
        from continual_petl.streams.encoding.tokenise import tokenise_words

        return tokenise_words(inputs, rows.get("answers"), self.tokenizer(how), how.max_length, where=how.where)

    def truncation_in_words(self, *, chats: bool) -> str:
        """Return what happens to words that are cut off."""
        return "the words after that are neither learned nor scored."

    def scores(
        self,
        labels: Sequence[str] | None,
        metric: str | None,
        *,
        reading: TagReading | None,
        single_precision: bool,
    ) -> dict[str, Any]:
        """Return scores of entities, if the tags mark any, and the share of words with the right tag."""
        from torchmetrics.classification import MulticlassAccuracy

        from continual_petl.heads.entities import EntityScores

        scores = {"accuracy": MulticlassAccuracy(len(labels or ()), average="micro", ignore_index=IGNORED)}
        if reading is None or reading.scheme != "none":
            return {"entities": EntityScores(tuple(labels or ()), reading), **scores}
        return scores

    def in_names(
        self, answers: Tensor, references: Tensor, labels: Sequence[str] | None
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Return the tags of each row's words; see `Kind.in_names`."""
        assert labels is not None
        words = [row != IGNORED for row in references]
        predicted, expected = (
            [[labels[tag] for tag in row[own].tolist()] for row, own in zip(rows, words, strict=True)]
            for rows in (answers, references)
        )
        return predicted, expected

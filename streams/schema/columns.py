"""Schema of a task's ``columns``: which columns of the data it reads."""

from __future__ import annotations

from continual_petl._frozen import FrozenModel
from continual_petl.heads.kinds import Kind
from continual_petl.streams.schema.data_spec import Text
from continual_petl.streams.schema.of_kind import COLUMNS


class ColumnsSpec(FrozenModel):
    """What the columns of the data mean. Only those that the task's kind reads may be given."""

    text: Text = "text"
    """The column with the text (classification, regression, multilabel)."""
    text_pair: Text | None = None
    """The column with the second text, for tasks on pairs."""
    label: Text = "label"
    """The column with the class, the number, or (multilabel) the list of labels, in CSV a JSON list."""
    source: Text = "source"
    """The column with the input text (seq2seq, causal-lm)."""
    target: Text = "target"
    """The column with the output text (seq2seq, causal-lm)."""
    tokens: Text = "tokens"
    """The column with the list of words (token-classification), in CSV a JSON list."""
    tags: Text = "tags"
    """The column with the list of tags, one per word (token-classification), in CSV a JSON list."""
    image: Text = "image"
    """The column with the image (image-classification): a path, what datasets reads, or rows of grey values or RGB."""

    def read_by(self, kind: Kind) -> dict[str, str | None]:
        """Return the keys that a task of ``kind`` reads, with the names of the columns; the last one is the answer."""
        return {key: getattr(self, key) for key in COLUMNS[kind]}

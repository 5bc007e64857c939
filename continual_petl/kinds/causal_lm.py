"""A text that continues each text, by a decoder; or the answers of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.kinds.bases.generation import Generation
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import from_cell
from continual_petl.streams.sources.checks import Cells, show
from continual_petl.streams.sources.conversations import RULE, check_conversations, is_message
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from continual_petl.streams.encoding.rows import TokenisedRows


class CausalLM(Generation):
    """Source and target are in the same row, so sources are padded on the left where texts are generated."""

    name = "causal-lm"
    trains_with = frozenset({"label_smoothing", "packing"})
    output_head = "causal"
    continues = True
    takes_chats = True
    auto_class = "AutoModelForCausalLM"
    peft_type = "CAUSAL_LM"

    def read_texts(self, task: TaskSpec, rows: SplitRows, chat: ChatSpec | None) -> tuple[list[Any], list[str]]:
        """Return sources and targets, or each conversation up to its last message, and the text of that message."""
        if chat is not None:
            return _conversations(task, chat, rows)
        if any(isinstance(v, list) and any(map(is_message, v)) for v in rows.inputs[:1]):
            raise InputError(
                f"{rows.inputs}: the rows are lists of messages; to learn conversations, add "
                "chat: {} to this task, or name a column of whole conversations: columns: {messages: ...}.",
                key=("columns", "source"),
            )
        return super().read_texts(task, rows, chat)

    def encode(self, inputs: Sequence[Any], how: HowEncoded, **rows: Any) -> TokenisedRows:
        """Tokenise sources and targets, or conversations."""
        if how.chat is None:
            return super().encode(inputs, how, **rows)
        from continual_petl.streams.encoding.tokenise_chats import tokenise_chats

        self.tokenizer(how)
        return tokenise_chats(inputs, rows.get("answers"), how, rows.get("row_options"))

    def check_encoded(self, task: TaskSpec, rows: TokenisedRows, max_length: int) -> None:
        """Check that the longest source and the text generated after it fit into one row."""
        if not len(rows):
            return
        longest, new = int(rows.lengths.max()), task.generation.max_new_tokens
        if longest + new > max_length:
            raise InputError(
                f"task {task.name!r}, generation.max_new_tokens: {new} new tokens after a source of {longest} exceed the "
                f"{max_length} tokens of a row (backbone.max_length); use at most {max_length - longest}, or a larger "
                "max_target_length, which truncates sources to fewer tokens."
            )

    def truncation_in_words(self, *, chats: bool) -> str:
        """Return what happens to text that is cut off."""
        if chats:
            return "their oldest turns were left out and, if that was not enough, the end of their last message too."
        return super().truncation_in_words(chats=chats)

    def row_weights(self, rows: TokenisedRows, class_weights: tuple[float, ...] | None) -> NDArray[np.float64]:
        """Return the number of learned tokens of each row; of a conversation, those of all answers."""
        import numpy as np

        found_N = super().row_weights(rows, class_weights)
        starts_N, is_empty_N = rows.offsets[:-1], rows.lengths == 0
        learned = np.zeros(len(rows.ids), dtype=np.bool_) if rows.learned is None else rows.learned
        # The first token of a row is not predicted by any other.
        first_N = np.where(is_empty_N, found_N > 0, np.append(learned, False)[starts_N])
        return found_N + rows.sums(learned.astype(np.float64)) - first_N


def _conversations(task: TaskSpec, chat: ChatSpec, rows: SplitRows) -> tuple[list[Any], list[str]]:
    if task.columns.messages is None:
        names = f"{task.columns.source} and {task.columns.target}"
        column: Cells[Any] = Cells(rows.where, names, zip(rows.inputs, rows.answers, strict=True))
    else:
        column = rows.inputs.read(_no_text, RULE)
    chats, answers = check_conversations(column, chat.system)
    return [*chats], answers


def _no_text(value: Any) -> tuple[Any]:
    value = from_cell(value)
    if isinstance(value, str):
        raise ValueError(f"{show(value)} is a text")
    return (value,)

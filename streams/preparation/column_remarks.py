"""Remarks for the user on the columns that a task reads, and on the columns that it does not read.

Unlike other notices, they are not in the certificate, because one of them contains text from a row.
"""

from __future__ import annotations

from continual_petl.kind_registry import kind_of
from continual_petl.streams.schema.data_spec import looks_like_path
from continual_petl.streams.schema.stream_spec import DataSpec, TaskSpec
from continual_petl.streams.sources.split_rows import SplitRows

_SHOWN = 160
"""Maximum number of characters of a row that are shown."""


def remarks_on(task: TaskSpec, train: SplitRows) -> list[str]:
    """Return remarks on the columns of a task.

    Args:
        task: as given in the stream.
        train: its training rows, checked.
    """
    return [*_unread(task, train), *([] if task.reads_chats else _joined(task, train))]


def rendered(task: TaskSpec, text: str) -> str:
    """Return a notice that shows the first conversation as the chat template renders it."""
    shown = text if len(text) <= 4 * _SHOWN else f"{text[: 2 * _SHOWN]} ... {text[-2 * _SHOWN :]}"
    return f"task {task.name!r}: the first row, as the chat template renders it: {shown!r}."


def _unread(task: TaskSpec, train: SplitRows) -> list[str]:
    """Return a remark on each text column that is not read: it may be half of a pair."""
    read = task.columns.read_by(task.kind)
    if "text_pair" in read and read["text_pair"] is None:
        advice = "if it is the second text of a pair, write columns: {{text_pair: {0}}}"
    elif "messages" in read:
        advice = "if it belongs to the conversations, add it to their messages"
    elif "source" in read:
        advice = "if it belongs to the source, " + _template(task, "\\n{{{0}}}")
    else:
        advice = "if it belongs to the text, join several columns into one with data.templates"
    return [
        f"task {task.name!r}: the column {column!r} holds texts and is not read; {advice.format(column)}."
        for column in train.unread
    ]


def _template(task: TaskSpec, more: str) -> str:
    """Describe how to append ``more`` to the source; returns text to be passed through ``str.format``."""
    source, data = task.columns.source, task.data
    if isinstance(data, DataSpec) and source in (data.templates or {}):
        return f"write {more} at the end of data.templates.{source}"
    path = "..." if not isinstance(data, str) else data if looks_like_path(data) else f"./{data}"
    source, path = (text.replace("{", "{{").replace("}", "}}") for text in (source, path))
    return (
        f'write data: {{{{path: {path}, templates: {{{{joined: "{{{{{source}}}}}{more}"}}}}}}}} and columns: '
        "{{source: joined}}"
    )


def _joined(task: TaskSpec, train: SplitRows) -> list[str]:
    """Return a remark if nothing separates the sources of a causal-lm task from its targets."""
    if not kind_of(task).continues or _is_separated(train.inputs, train.answers):
        return []
    first = train.inputs[0] + train.answers[0]
    start = max(0, len(train.inputs[0]) - _SHOWN // 2)  # the boundary between the two is what matters
    shown = first[start : start + _SHOWN]
    shown = ("..." if start else "") + shown + ("..." if start + _SHOWN < len(first) else "")
    return [
        f"task {task.name!r}: source and target are joined without a separator; the first row becomes {shown!r}. To mark "
        f"where the answer begins, {_template(task, chr(92) + 'nAnswer:').format()}."
    ]


def _is_separated(sources: list[str], targets: list[str]) -> bool:
    """Return whether white space separates source and target in all rows, or all sources end in one mark such as a colon."""
    ends = {source[-1] for source in sources}
    if len(ends) == 1 and not (mark := next(iter(ends))).isalnum() and mark not in ".?!":
        return True
    return all(s[-1].isspace() or t[0].isspace() for s, t in zip(sources, targets, strict=True))

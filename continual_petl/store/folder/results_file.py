"""``results.jsonl``: for each task, a sealed line with its row of the result matrix R, and another when it is finished.

Each line has a seal that also covers the seal of the previous line, so a line that was changed, removed, inserted or moved
is detected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.digests import combined_digest
from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import append_lines, line_bytes
from continual_petl.store.files.reading import parse_json, read_lines, read_tail
from continual_petl.store.files.sealed import SEAL, invalid
from continual_petl.streams.schema.field_types import Name

Status = Literal["measured", "certified", "not measured"]


class MeasuredScore(StrictModel):
    """One cell of the result matrix."""

    task: Name
    """The column."""
    index: Index
    """The column's position in the chain, unique even for a task that was replaced."""
    split: Literal["validation", "test"]
    metric: str
    value: float | None
    """None if unknown or undefined."""
    num_examples: Index
    status: Status


class RoutedCell(StrictModel):
    """How a task's rows were predicted without a task name."""

    task: Name
    """The task that the rows belong to."""
    index: Index
    """The task's position in the chain."""
    split: Literal["validation", "test"]
    num_examples: Index
    """Number of rows that were routed: all rows, or a sample if there are many."""
    chosen: dict[Name, Index]
    """Number of rows for which each task was the most probable one, in descending order."""
    unknown: Index
    """Number of rows that did not resemble the rows of any task."""
    correct: Index | None
    """Number of correct predictions if each row is predicted by its most probable task; None for kinds whose predictions
    are not simply right or wrong."""
    correct_own: Index | None
    """Number of these correct predictions that came from the rows' own task."""
    correct_known: Index | None
    """Number of correct predictions that remain if unknown rows get no prediction."""


class RowLine(StrictModel):
    """A row of the result matrix: the scores on the tasks so far, after one more was learned."""

    type: Literal["row"] = "row"
    after: Name
    index: Index
    """Position of ``after`` in the chain."""
    cells: tuple[MeasuredScore, ...]
    routed: tuple[RoutedCell, ...] = ()
    """How the rows of the measured tasks were predicted without a task name."""


class TaskLine(StrictModel):
    """A finished task: it is learned, committed and measured, and its callbacks have run."""

    type: Literal["task"] = "task"
    task: Name
    index: Index
    """Position in the chain."""
    certificate: Digest
    """Seal of its certificate."""
    seconds: dict[str, float]
    """Seconds by phase: data, start, train, evaluate, commit, measure, verify."""
    checks: dict[str, int] = Field(default_factory=dict)
    """Number of earlier certificates checked after it, by depth: digests, probe, full."""
    gain: float | None = None
    """Validation score from the starting point that was taken minus the score from a fresh bank, after the short fits of
    ``start_from: auto``."""
    exports: dict[str, str | None] | None = None
    """For each format, why the task cannot be exported in it, None if it can; not recorded by earlier versions."""


Line = RowLine | TaskLine
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def cell_of(certificate: Certificate, value: float | None, status: Status) -> MeasuredScore:
    """Return the cell of a learned task, with the score that its bank has now or that its certificate holds."""
    return MeasuredScore(
        task=certificate.task,
        index=certificate.index,
        split=certificate.counted_split,
        metric=certificate.metric,
        value=value,
        num_examples=certificate.num_examples,
        status=status,
    )


def append_results(path: Path, lines: Sequence[Line]) -> None:
    """Append lines, flushed to disk. A torn last line, left by a killed process, is cut off first.

    Raises:
        StoreError: if the file is damaged.
    """
    before = _last_seal(path)
    sealed = []
    for line in lines:
        content = line.model_dump(mode="json")
        before = _seal(content, before)
        sealed.append({**content, SEAL: before})
    append_lines(path, sealed)


def read_results(path: Path) -> list[Line]:
    """Return every committed line, oldest first; a torn last line was never committed and is left out.

    Raises:
        StoreError: naming the damaged line.
    """
    return list(each_result(path))


def each_result(path: Path) -> Iterator[Line]:
    """Yield the lines that `read_results` returns, one by one, since the rows of a long run take a lot of memory."""
    before: str | None = None
    for number, content in enumerate(_whole_lines(path), 1):
        where = f"{path}:{number}"
        raw = parse_json(content, where)
        seal = raw.pop(SEAL, None)
        if seal != _checked_seal(raw, before, where):
            raise StoreError(
                f"{where}: this line is not the one that was written here: it was changed, or lines before it were removed "
                "or moved. Restore the file from a copy."
            )
        if content != line_bytes({**raw, SEAL: seal})[:-1]:
            raise StoreError(f"{where}: its bytes are not those that were written; the file is damaged. Restore it.")
        before = seal
        try:
            yield _LINE.validate_python(raw)
        except ValidationError as error:
            raise invalid(where, error) from error


def read_without_cells(path: Path) -> list[Line]:
    """Return the lines that `read_results` returns, but without the cells of the rows, to save memory."""
    return [line if isinstance(line, TaskLine) else line.model_copy(update={"cells": ()}) for line in each_result(path)]


def was_committed(path: Path, index: int) -> bool:
    """Return whether the results name a task at a position in the chain."""
    return any(line.index == index for line in each_result(path))


def unfinished(links: Iterable[Link], lines: Iterable[Line]) -> list[str]:
    """Return the learned tasks without a `TaskLine`: the run ended after their commit but before they were finished."""
    done = {(line.task, line.index) for line in lines if isinstance(line, TaskLine)}
    return [link.task for link in links if (link.task, link.index) not in done]


def measured_rows(links: Iterable[Link], lines: Iterable[Line]) -> dict[str, RowLine]:
    """Return the row measured after each learned task, if any; rows that `reevaluate` appended are left out."""
    rows = (line for line in lines if isinstance(line, RowLine) and any(cell.task == line.after for cell in line.cells))
    by_entry = {(row.after, row.index): row for row in rows}
    return {link.task: by_entry[link.task, link.index] for link in links if (link.task, link.index) in by_entry}


def _whole_lines(path: Path) -> Iterator[bytes]:
    before: bytes | None = None
    number = 0
    try:
        for line in read_lines(path):
            if before is not None:
                yield before
            before, number = line, number + 1
    except FileNotFoundError:
        return
    if before and _is_whole(before[:-1]):
        # The line is complete except for its last byte, so its newline was damaged, not torn off.
        raise StoreError(f"{path}:{number}: the end of the line is damaged. Restore the file from a copy.")


def _is_whole(content: bytes) -> bool:
    try:
        parse_json(content, "")
    except StoreError:
        return False
    return True


def _last_seal(path: Path) -> str | None:
    """Return the seal of the last complete line; only the end of the file is read, however long the file is."""
    try:
        last, behind = read_tail(path)
    except FileNotFoundError:
        return None
    if behind and _is_whole(behind[:-1]):
        deque(_whole_lines(path), maxlen=0)  # raises, with the number of the line
    return None if last is None else parse_json(last, f"{path}: the last line").get(SEAL)


def _seal(content: dict[str, Any], before: str | None) -> str:
    return combined_digest({"before": before, "line": content})


def _checked_seal(content: dict[str, Any], before: str | None, where: str) -> str:
    try:
        return _seal(content, before)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: not JSON as a store writes it ({error}); the file is damaged") from error

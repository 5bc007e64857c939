"""Run folders without a ledger (format 2), as lines of one; the first command that writes to such a folder writes it.

There, every certificate and every file in ``tombstones`` named the seal of the entry before it, ``results.jsonl`` held rows
and finished tasks, each line sealed together with the seal of the line before, and ``signature.json`` a signature. None of
these files is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.digests import combined_digest
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import line_bytes
from continual_petl.store.files.reading import entries, parse_json, read_lines
from continual_petl.store.files.sealed import SEAL, VERSION, invalid, read_sealed
from continual_petl.store.ledger.lines import (
    CommitLine,
    Entry,
    FinishedLine,
    ForgetLine,
    Line,
    Removed,
    Result,
    RowLine,
    SignatureLine,
)
from continual_petl.streams.schema.field_types import Name

TOMBSTONES, RESULTS, SIGNATURE = "tombstones", "results.jsonl", "signature.json"
_RESULT: TypeAdapter[Result] = TypeAdapter(RowLine | FinishedLine)


class _Removed(StrictModel):
    index: Index
    seal: Digest | None
    predecessor: Digest | None


class _Tombstone(StrictModel):
    format_version: Literal[2]
    index: Index
    predecessor: Digest | None
    task: Name | None
    why: Literal["forgotten", "replaced", "lost"]
    removed: _Removed
    aside: bool


def is_format_2(folder: Path) -> bool:
    """Return whether a run folder without a ledger was written before there were ledgers."""
    return (folder / RESULTS).exists() or (folder / TOMBSTONES).exists()


def lines_of(folder: Path, commits: Mapping[str, CommitLine]) -> list[Line]:
    """Return the lines of the ledger that a run folder of format 2 would have.

    Args:
        folder: the run folder.
        commits: the lines of all certificates in it, by the names of their folders.

    Raises:
        StoreError: if the folder is damaged, or an entry is missing whose task is unknown.
    """
    results = list(_results(folder / RESULTS))
    by_index: dict[int, Entry] = {}
    gone: set[str] = set()
    for stone, removed in _tombstones(folder / TOMBSTONES, commits, results):
        by_index[stone.index] = stone
        by_index.setdefault(removed.index, removed)
        gone |= {removed.seal} if stone.why != "lost" else set()
    for commit in commits.values():
        if commit.seal in gone:
            continue  # the process was killed before it deleted the folder
        other = by_index.get(commit.index)
        if other is not None and other.seal != commit.seal:
            raise StoreError(
                f"task {commit.task!r}: its certificate is entry number {commit.index} of the chain, and so is that of "
                f"{other.task!r}. Move the folder that does not belong there out of {folder / 'banks'}."
            )
        by_index[commit.index] = commit
    for line in results:
        if isinstance(line, FinishedLine) and line.index not in by_index:
            by_index[line.index] = CommitLine(index=line.index, seal=line.certificate, predecessor=None, task=line.task)
    if gaps := set(range(max(by_index, default=-1) + 1)) - by_index.keys():
        raise StoreError(
            f"entry {min(gaps)} of the chain is missing: a task's folder in {folder / 'banks'}, or a tombstone in "
            f"{folder / TOMBSTONES}. Restore it from a copy."
        )
    there = {commit.seal for commit in commits.values()}
    chain: list[Entry] = []
    for entry in (by_index[index] for index in sorted(by_index)):
        if chain and entry.predecessor is None and entry.seal not in there:
            # Unknown: the entry before was missing too when this one was dropped or, if it is missing, is not recorded.
            chain.append(entry.model_copy(update={"predecessor": chain[-1].seal}))
        else:
            chain.append(entry)
    return [*chain, *results, *_signature(folder / SIGNATURE)]


def _tombstones(
    folder: Path, commits: Mapping[str, CommitLine], results: list[Result]
) -> Iterator[tuple[ForgetLine, CommitLine]]:
    """Yield each tombstone with the entry that it dropped."""
    files = entries(folder)
    for path in files:
        raw, seal = _sealed(path)
        try:
            stone = _Tombstone.model_validate(raw)
        except ValidationError as error:
            raise invalid(path, error) from error
        if path.name != f"{stone.index:06d}.json":
            raise StoreError(
                f"{path}: this is the tombstone at position {stone.index} of the chain; a file was renamed"
            )
        removed = stone.removed
        if stone.task is None or removed.seal is None or stone.aside:
            raise StoreError(
                f"{path}: it drops an entry whose task is unknown, or one side of a fork, which this release cannot read"
            )
        known = next((commit for commit in commits.values() if commit.seal == removed.seal), None)
        last = max((entry.index for entry in [*commits.values(), *results]), default=-1)
        if stone.why == "replaced" and path == files[-1] and known is not None and last < stone.index:
            return  # the process was killed before the new bank was written, and the old one is still there
        yield (
            ForgetLine(
                index=stone.index,
                predecessor=stone.predecessor,
                task=stone.task,
                seal=seal,
                why=stone.why,
                removed=Removed(index=removed.index, seal=removed.seal),
            ),
            known
            or CommitLine(index=removed.index, seal=removed.seal, predecessor=removed.predecessor, task=stone.task),
        )


def _sealed(path: Path, version: int = 2) -> tuple[dict[str, Any], str]:
    try:
        return read_sealed(path, version, "it")
    except FileNotFoundError:
        raise StoreError(f"{path}: missing. Restore it from a copy.") from None


def _results(path: Path) -> Iterator[Result]:
    """Yield the lines of results.jsonl; a torn last line was never committed and is left out."""
    before: str | None = None
    with suppress(FileNotFoundError):
        for number, (content, is_whole) in enumerate(read_lines(path), 1):
            if not is_whole:
                return
            where = f"{path}:{number}"
            raw = parse_json(content, where)
            seal = raw.pop(SEAL, None)
            try:
                as_written = seal == combined_digest({"before": before, "line": raw})
                as_written &= content + b"\n" == line_bytes({**raw, SEAL: seal})
            except (ValueError, RecursionError) as error:
                raise StoreError(f"{where}: not JSON as a store writes it ({error}); the file is damaged") from error
            if not as_written:
                raise StoreError(
                    f"{where}: this line is not the one that was written here: it was changed, or lines before it were "
                    "removed or moved. Restore the file from a copy."
                )
            before = seal
            try:
                yield _RESULT.validate_python(raw | ({"type": "finished"} if raw.get("type") == "task" else {}))
            except ValidationError as error:
                raise invalid(where, error) from error


def _signature(path: Path) -> Iterator[SignatureLine]:
    if path.exists():
        raw, _ = _sealed(path, 1)
        try:
            yield SignatureLine.model_validate({key: value for key, value in raw.items() if key != VERSION})
        except ValidationError as error:
            raise invalid(path, error) from error

"""The kinds of lines in ``ledger.jsonl``: commit, forget, row, finished, signature.

Commits and forgets are the entries of the chain. Each has a position, a seal, and names the seal of the entry before it. The
seal of a commit is that of the task's certificate; so certificates do not depend on the times that other lines contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.banks.config.presets import in_short, in_words, preset_of
from continual_petl.digests import combined_digest
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.streams.schema.field_types import Name

Status = Literal["measured", "certified", "not measured"]


class Removed(StrictModel):
    """A commit that another entry drops."""

    index: Index
    seal: Digest


class CommitLine(StrictModel):
    """A learned task: its place in the chain, and what lists show about it; much smaller than its certificate."""

    type: Literal["commit"] = "commit"
    index: Index
    """0-based position in the chain."""
    predecessor: Digest | None
    """Seal of the previous entry; None for the first."""
    task: Name
    seal: Digest
    """Seal of its certificate."""
    file: Digest | None = None
    """SHA-256 of its ``bank.json``; None for a bank that was dropped before there were ledgers."""
    replaces: Removed | None = None
    """The task's commit that this one replaces."""
    shared: bool = False
    """Whether the task's bank is shared and so keeps changing as later tasks are learned."""
    kind: str = ""
    metric: str = ""
    score: float | None = None
    """Score on the reported split, just after the task was learned; None if undefined."""
    split: Literal["validation", "test"] = "validation"
    """The reported split."""
    errors: Mapping[str, float] = {}
    """Errors of a regression on this split; see `Certificate.errors`."""
    parameters: Mapping[str, int] = {}
    """Number of parameters by part."""
    digest: str = ""
    """Digest of the bank's tensors."""
    preset: str | None = None
    """Name of the bank's preset; None if it matches none."""
    bank: str = ""
    """Description of the bank."""
    short: str = ""
    """Short description of the bank."""
    bytes: Index = 0
    """Size on disk, certificate and routing statistics included."""

    @property
    def folder(self) -> str:
        """Name of its folder in ``banks``."""
        return folder_of(self.task, self.index, self.replaces)

    @property
    def removed(self) -> Removed:
        """This commit, as the entry that drops it names it."""
        return Removed(index=self.index, seal=self.seal)

    def says_the_same(self, certificate: Certificate) -> bool:
        """Return whether what this line repeats of its certificate is what the certificate says.

        Descriptions in words are left out: another release may word them otherwise. Without ``file``, the line only knows
        the place.
        """
        known = _place(certificate) if self.file is None else _place(certificate) | _facts(certificate)
        return all(getattr(self, name) == value for name, value in known.items())


def _place(certificate: Certificate) -> dict[str, Any]:
    return {name: getattr(certificate, name) for name in ("index", "seal", "predecessor", "task")}


def _facts(certificate: Certificate) -> dict[str, Any]:
    same = ("kind", "metric", "score", "errors", "parameters", "digest")
    facts = {name: getattr(certificate, name) for name in same}
    return facts | {"shared": certificate.bank.scope == "shared", "split": certificate.counted_split}


def folder_of(task: str, index: int, replaces: Removed | None) -> str:
    """Return the name of a bank's folder: a bank never takes the folder of the one that it replaces."""
    return task if replaces is None else f"{task}@{index}"


def commit_of(certificate: Certificate, file: str, num_bytes: int, replaces: Removed | None = None) -> CommitLine:
    """Return the line of a certificate, given the SHA-256 of its file and the size of its folder."""
    bank = certificate.bank
    return CommitLine(
        **_place(certificate),
        **_facts(certificate),
        file=file,
        replaces=replaces,
        preset=preset_of(bank),
        bank=in_words(bank),
        short=in_short(bank),
        bytes=num_bytes,
    )


class ForgetLine(StrictModel):
    """A task that was dropped on purpose: the tombstone that takes its place in the chain."""

    type: Literal["forget"] = "forget"
    index: Index
    predecessor: Digest | None
    task: Name
    seal: Digest
    """Digest of the other fields; see `forget_line`."""
    why: Literal["forgotten", "replaced", "lost"]
    """``lost``: its bank was already missing. ``replaced``: as runs without a ledger recorded it."""
    removed: Removed


def forget_line(
    index: int, predecessor: str | None, removed: CommitLine, why: Literal["forgotten", "lost"]
) -> ForgetLine:
    """Return the line that drops a commit."""
    fields = {"index": index, "predecessor": predecessor, "task": removed.task, "why": why}
    seal = combined_digest({**fields, "removed": removed.removed.model_dump(mode="json")})
    return ForgetLine(**fields, removed=removed.removed, seal=seal)


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


class FinishedLine(StrictModel):
    """A finished task: it is learned, committed and measured, and its callbacks have run."""

    type: Literal["finished"] = "finished"
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


class SignatureLine(StrictModel):
    """A signature of all lines before it; see `continual_petl.store.signature`."""

    type: Literal["signature"] = "signature"
    index: Index
    """Position of the signed entry in the chain."""
    entry: Digest
    """Its seal."""
    ledger: Digest | None = None
    """Seal of the line before this one; None if the run was signed before there were ledgers."""
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
    """In hexadecimal digits."""
    public_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The public key that belongs to the signing key; it is only displayed, never used to check the signature."""


Entry = CommitLine | ForgetLine
Result = RowLine | FinishedLine
Line = Entry | Result | SignatureLine
LINES: Mapping[str, type[Line]] = {
    line.model_fields["type"].default: line for line in (CommitLine, ForgetLine, RowLine, FinishedLine, SignatureLine)
}


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


def unfinished(commits: Iterable[CommitLine], lines: Iterable[Result]) -> list[str]:
    """Return the learned tasks without a `FinishedLine`: the run ended after their commit but before they were finished."""
    done = {(line.task, line.index) for line in lines if isinstance(line, FinishedLine)}
    return [commit.task for commit in commits if (commit.task, commit.index) not in done]


def measured_rows(commits: Iterable[CommitLine], lines: Iterable[Result]) -> dict[str, RowLine]:
    """Return the row measured after each learned task, if any; rows that `reevaluate` appended are left out."""
    rows = (line for line in lines if isinstance(line, RowLine) and any(cell.task == line.after for cell in line.cells))
    by_entry = {(row.after, row.index): row for row in rows}
    return {
        commit.task: by_entry[commit.task, commit.index]
        for commit in commits
        if (commit.task, commit.index) in by_entry
    }

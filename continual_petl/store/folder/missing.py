"""Find entries of the chain that a run is known to have had but that its folder lacks.

A gap shows in the chain: the entry after it names a predecessor that does not exist. The chain cannot show that its newest
entries are missing, since nothing follows them, but ``results.jsonl`` can: it names every learned task with its position in
the chain and the seal of its certificate. As long as anything is missing, nothing is committed: a new entry could take its
position, and then neither could be dropped or put back without breaking the chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from continual_petl.store.certificate.chain import Link, MainLine
from continual_petl.store.certificate.tombstone import Tombstone, tombstone_file
from continual_petl.store.folder.results_file import Line, RowLine, TaskLine


@dataclass(frozen=True)
class Missing:
    """One entry that is missing."""

    task: str | None
    """None if its task is unknown."""
    index: int | None
    """Position in the chain; None in runs of format 1, which do not record it."""
    seal: str | None = None
    """None if unknown."""
    predecessor: str | None = None
    """None if the previous entry is missing too, or if this was the first one."""
    taken: str | None = None
    """The task whose entry has this position now."""
    again: bool = False
    """Whether the task is learned at another position."""
    replaces: bool = False
    """Whether only a tombstone records that a bank was to be written here, replacing an older one."""

    def message(self, folder: Path) -> str:
        """Describe in one paragraph what is missing, and what to do.

        Args:
            folder: the run folder.
        """
        by_name = f"`continual-petl forget {folder} {self.task}`"
        by_entry = f"`continual-petl forget {folder} --entry {self.index}`"
        until = "Until then nothing can be learned into this run"
        if self.task is None:
            stone = tombstone_file(folder / "tombstones", self.index or 0)
            return (
                f"entry {self.index} of the chain is missing: a task's folder below {folder / 'banks'}, or the tombstone "
                f"{stone}. Restore it from a copy, or drop it on record with {by_entry}. {until}"
            )
        where = "" if self.index is None else f" as entry {self.index} of the chain"
        path, drop = folder / "banks" / self.task, by_entry if self.again else by_name
        if self.taken == self.task and self.seal is None:
            return (
                f"task {self.task!r}: results.jsonl says that it was learned twice as entry {self.index} of the chain: its "
                f"bank was lost and another one learned in its place. Drop the task on record with {by_name}, after which "
                f"it can be learned again. {until}"
            )
        if self.taken == self.task:
            return (
                f"task {self.task!r}: its certificate, entry {self.index} of the chain, is not the one that results.jsonl "
                f"names: its bank.json was edited, or its bank was lost and another one was learned in its place. Restore "
                f"{path} from a copy, or drop the task on record with {by_name}, after which it can be learned again. {until}"
            )
        if self.replaces:
            return (
                f"task {self.task!r} was replaced{where}, but its bank is missing. If a kill interrupted that, the next "
                f"command that learns restores the old bank; otherwise restore {path} from a copy, or drop it on record with "
                f"{drop}. {until}"
            )
        if self.index is None:
            return f"task {self.task!r} was learned, but its bank is missing. Restore {path} from a copy. {until}"
        other = "" if self.taken is None else f", and that entry now belongs to {self.taken!r}"
        return (
            f"task {self.task!r} was learned{where}, but its bank is missing{other}. Restore {path} from a copy, or drop it "
            f"on record with {drop}. {until}"
        )


def missing(
    links: Sequence[Link], tombstones: Sequence[Tombstone], lines: Iterable[Line], *, gaps: bool = True
) -> list[Missing]:
    """Return what is missing, in the order of the chain.

    Args:
        links: of the whole chain: learned tasks, tombstones, and the entries that tombstones replace.
        tombstones: those that count.
        lines: of ``results.jsonl``.
        gaps: whether positions without a link count as missing; False if some entries cannot be read.
    """
    chain = MainLine(links)
    main = {index: here[0] for index, here in chain.by_index.items()}
    there = {(link.task, link.index): link for link in links}
    names = {link.task for link in links}
    learned = {link.task: link.index for link in links if not link.tombstone}
    found: dict[tuple[int, str], Missing] = {}
    unplaced: dict[str, Missing] = {}

    def add(task: str | None, index: int | None, seal: str | None, *, replaces: bool = False) -> None:
        if index is None:
            unplaced.setdefault(task or "", Missing(task, None))
            return
        before, behind, here = chain.before(index), chain.after(index), main.get(index)
        if seal is None and here is None and behind:
            seal = behind[0].predecessor
        found[index, task or ""] = Missing(
            task,
            index,
            seal,
            predecessor=(before[0].seal or None) if before else None,
            taken=None if here is None else here.task,
            again=learned.get(task or "", index) != index,
            replaces=replaces,
        )

    seen: Counter[tuple[str, int | None]] = Counter()
    for line in lines:
        task, seal = (line.after, None) if isinstance(line, RowLine) else (line.task, line.certificate)
        link = there.get((task, -1 if line.index is None else line.index))
        if link is None:
            if line.index is not None or task not in names:
                add(task, line.index, seal)
        elif isinstance(line, TaskLine) and not link.tombstone:
            # A task is finished once. Lines without a seal can only show that there was a bank before this one.
            seen[task, line.index] += seal is None
            if (seal is not None and seal != link.seal) or seen[task, line.index] > 1:
                add(task, line.index, seal)
    known = {index for index, _ in found}
    newest = max(main.keys() | known, default=-1)
    replaced = {stone.index + 1: stone.task for stone in tombstones if stone.why == "replaced"}
    if gaps:
        for index in range(newest + 1 + (newest + 1 in replaced)):
            if not chain.has(index) and index not in known:
                add(replaced.get(index), index, None, replaces=index in replaced)
    entries = [entry for _, entry in sorted(found.items(), key=lambda item: item[0])]
    return _placed(entries, list(unplaced), newest + 1)


def _placed(found: list[Missing], unplaced: Sequence[str], end: int) -> list[Missing]:
    """Match tasks named by lines of format 1, which have no position, with missing entries; both are in order.

    Args:
        found: missing entries by position.
        unplaced: tasks that are missing.
        end: the position after the newest entry.
    """
    gaps = [entry for entry in found if entry.task is None]
    if len(unplaced) < len(gaps):
        return [*found, *(Missing(task, None) for task in unplaced)]
    gaps += [Missing(None, index) for index in range(end, end + len(unplaced) - len(gaps))]
    placed = [replace(gap, task=task, again=False) for task, gap in zip(unplaced, gaps, strict=True)]
    return [*(entry for entry in found if entry.task is not None), *placed]

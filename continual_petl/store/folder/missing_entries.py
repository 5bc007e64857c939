"""Find entries of the chain that were once in a run's folder and are now missing.

The chain itself shows a gap: the entry after the gap names a predecessor that does not exist. The chain cannot show that its
newest entries are missing, since nothing follows them, but ``results.jsonl`` can: it names every learned task with its
position in the chain and the seal of its certificate. As long as an entry is missing, nothing is committed: a new entry could
take its position, and then neither of the two could be dropped or restored without breaking the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from continual_petl.errors import quoted
from continual_petl.store.certificate.chain import Link, MainLine
from continual_petl.store.certificate.tombstone import Tombstone, tombstone_file
from continual_petl.store.folder.results_file import Line, RowLine, TaskLine


@dataclass(frozen=True)
class Missing:
    """One entry that is missing."""

    task: str | None
    """None if its task is unknown."""
    index: int
    """Position in the chain."""
    seal: str | None = None
    """None if unknown."""
    predecessor: str | None = None
    """None if the previous entry is missing too, or if this was the first one."""
    taken: str | None = None
    """The task whose entry has this position now."""
    again: bool = False
    """Whether the task has another entry, at another position."""
    replaces: bool = False
    """Whether only a tombstone records that a bank was to be written here, replacing an older one."""

    def message(self, folder: Path) -> str:
        """Describe in one paragraph what is missing, and what to do.

        Args:
            folder: the run folder.
        """
        by_name = f"`continual-petl forget {quoted(folder)} {quoted(self.task)}`"
        by_entry = f"`continual-petl forget {quoted(folder)} --entry {self.index}`"
        until = "Until this is fixed, no task can be learned in this run"
        if self.task is None:
            stone = tombstone_file(folder / "tombstones", self.index)
            return (
                f"entry {self.index} of the chain is missing: a task's folder in {folder / 'banks'}, or the tombstone "
                f"{stone}. Restore it from a copy, or drop it on purpose with {by_entry}. {until}"
            )
        where = f" as entry {self.index} of the chain"
        path, drop = folder / "banks" / self.task, by_entry if self.again else by_name
        if self.taken == self.task:
            return (
                f"task {self.task!r}: its certificate, entry {self.index} of the chain, is not the one that results.jsonl "
                f"names: its bank.json was edited, or its bank was lost and another one was learned in its place. Restore "
                f"{path} from a copy, or drop the task with {by_name}, after which it can be learned again. {until}"
            )
        if self.replaces:
            return (
                f"task {self.task!r} was replaced{where}, but its bank is missing. If the process was killed during the "
                f"replacement, the next command that learns restores the old bank; otherwise restore {path} from a copy, or "
                f"drop it on purpose with {drop}. {until}"
            )
        taken = "" if self.taken is None else f", and that entry now belongs to {self.taken!r}"
        return (
            f"task {self.task!r} was learned{where}, but its bank is missing{taken}. Restore {path} from a copy, or drop it "
            f"on purpose with {drop}. {until}"
        )


def missing(
    links: Sequence[Link], tombstones: Sequence[Tombstone], lines: Iterable[Line], *, gaps: bool = True
) -> list[Missing]:
    """Return the missing entries, in the order of the chain.

    Args:
        links: all links of the chain: learned tasks, tombstones, and the entries that tombstones replace.
        tombstones: the tombstones in effect.
        lines: lines of ``results.jsonl``.
        gaps: whether positions without a link count as missing; False if some entries cannot be read.
    """
    chain = MainLine(links)
    main = {index: here[0] for index, here in chain.by_index.items()}
    there = {(link.task, link.index): link for link in links}
    learned = {link.task: link.index for link in links if not link.tombstone}
    entries: dict[tuple[int, str], Missing] = {}

    def add(task: str | None, index: int, seal: str | None, *, replaces: bool = False) -> None:
        before, behind, here = chain.before(index), chain.after(index), main.get(index)
        if seal is None and here is None and behind:
            seal = behind[0].predecessor
        entries[index, task or ""] = Missing(
            task,
            index,
            seal,
            predecessor=(before[0].seal or None) if before else None,
            taken=None if here is None else here.task,
            again=learned.get(task or "", index) != index,
            replaces=replaces,
        )

    for line in lines:
        task, seal = (line.after, None) if isinstance(line, RowLine) else (line.task, line.certificate)
        link = there.get((task, line.index))
        if link is None or (isinstance(line, TaskLine) and not link.tombstone and seal != link.seal):
            add(task, line.index, seal)
    known = {index for index, _ in entries}
    newest = max(main.keys() | known, default=-1)
    replaced = {stone.index + 1: stone.task for stone in tombstones if stone.why == "replaced"}
    if gaps:
        for index in range(newest + 1 + (newest + 1 in replaced)):
            if not chain.has(index) and index not in known:
                add(replaced.get(index), index, None, replaces=index in replaced)
    return [entry for _, entry in sorted(entries.items(), key=lambda item: item[0])]

"""The memory of experience replay: a share of each earlier task's training rows, drawn once and never changed.

De Masson d'Autume et al. 2019 (https://arxiv.org/abs/1906.01076) keep rows in a memory and replay some of them
regularly; section 5.2 reports that a random choice of rows loses little. They use one head for all tasks; here each row goes
through the head of its task.
"""

from __future__ import annotations

import torch

from continual_petl.seeding import derive_seed


class Memory:
    """The stored rows of each task, as row indices.

    Args:
        share: share of each task's training rows to keep, above 0 and at most 1.

    Example:
        >>> memory = Memory(0.01)
        >>> memory.keep("yelp", 500, seed=13)
        >>> len(memory.rows["yelp"])
        5
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share: got {share}; it must be above 0 and at most 1")
        self.share = share
        self.rows: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def keep(self, task: str, num_rows: int, seed: int) -> None:
        """Keep a share of a task's rows, at least one; the choice depends only on ``seed`` and the task's name."""
        count = max(1, round(self.share * num_rows))
        self.rows[task] = sorted(torch.randperm(num_rows, generator=_drawn(seed, task))[:count].tolist())

    def draw(self, most: int, seed: int) -> dict[str, list[int]]:
        """Return a uniform sample of at most ``most`` rows without replacement, as row indices by task."""
        every = [(task, row) for task, rows in self.rows.items() for row in rows]
        found: dict[str, list[int]] = {}
        for place in torch.randperm(len(every), generator=_drawn(seed, "draw"))[:most].tolist():
            task, row = every[place]
            found.setdefault(task, []).append(row)
        return found


def _drawn(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "memory", name))

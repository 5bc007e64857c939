"""Divide the classes of a data set among several tasks, depending on a seed.

The order of the classes is a random permutation: they are sorted by their hashes, seeded with ``split.seed``. It is the same
on every machine, and depends neither on the order in which the labels are written nor on the name of the task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from continual_petl.errors import counted
from continual_petl.seeding import derive_seed

MIN_CLASSES = 2
"""Minimum number of classes of a task."""


def split_labels(labels: Collection[str], classes_per_task: int, seed: int) -> list[tuple[str, ...]]:
    """Return the labels of each task, in their order of use; the last task may have fewer labels.

    Args:
        labels: all labels; their order makes no difference.
        classes_per_task: number of labels of each task.
        seed: determines the order.

    Raises:
        ValueError: if there would be a single task, or a task with a single class.

    Example:
        >>> split_labels(["a", "b", "c", "d", "e"], 3, seed=0) == split_labels(["e", "d", "c", "b", "a"], 3, seed=0)
        True
        >>> [len(group) for group in split_labels(["a", "b", "c", "d", "e"], 3, seed=0)]
        [3, 2]
    """
    check_division(len(labels), classes_per_task)
    order = sorted(labels, key=lambda label: (derive_seed(seed, "split", label), label))
    return [tuple(order[start : start + classes_per_task]) for start in range(0, len(order), classes_per_task)]


def check_division(num_labels: int, classes_per_task: int) -> None:
    """Check that labels can be divided into several tasks.

    Raises:
        ValueError: if there would be a single task, or a task with a single class; the message says what to write.
    """
    if _divides(num_labels, classes_per_task):
        return
    others = [size for size in range(MIN_CLASSES, num_labels) if _divides(num_labels, size)]
    nearest = sorted(sorted(others, key=lambda size: abs(size - classes_per_task))[:2])
    advice = f"write {' or '.join(map(str, nearest))}" if nearest else "use a data set with at least 4 labels"
    if classes_per_task >= num_labels:
        raise ValueError(
            f"got {classes_per_task} classes per task, but there are {num_labels} labels, enough for only one task: "
            f"{advice}, or remove split"
        )
    raise ValueError(
        f"got {classes_per_task} classes per task; only one of {num_labels} labels is left for the last task, but a "
        f"classification task needs two: {advice}"
    )


def _divides(num_labels: int, size: int) -> bool:
    return MIN_CLASSES <= size < num_labels and not 0 < num_labels % size < MIN_CLASSES


def split_names(name: str, num_tasks: int) -> list[str]:
    """Return the names of the tasks that replace an entry: the entry's name, followed by a number with leading zeros.

    Example:
        >>> split_names("intents", 2)
        ['intents-01', 'intents-02']
    """
    width = max(2, len(str(num_tasks)))
    return [f"{name}-{number:0{width}}" for number in range(1, num_tasks + 1)]


def left_out_notice(task: str, counts: Mapping[str, tuple[int, int]]) -> str | None:
    """Return a notice about rows whose label belongs to another task, if there are any.

    Args:
        task: name of the task.
        counts: for each split, the number of rows that are left out, and the total.
    """
    listed = ", ".join(f"{left:,} of {counted(total, f'{name} row')}" for name, (left, total) in counts.items() if left)
    return f"task {task!r}: {listed} have labels of other tasks (all_labels) and are left out." if listed else None

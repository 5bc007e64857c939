"""Classes of a classification task: map the values of the label column to indices 0..n-1, and indices to names.

Every label is a name. The integer 3 has the name ``"3"``, the same as the string ``"3"`` (CSV has no integers). Without
``labels``, names are sorted, numerically if all are integers. With ``labels``, the given order is used, and a column of
integers may also hold positions in that list, provided that no name is an integer: in ``labels: ["1", "0"]``, the value 0
can only be a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError, known_names
from continual_petl.kind_registry import find_kind
from continual_petl.streams.preparation.spelling_notices import nearest, unknown_faults
from continual_petl.streams.sources.checks import SHOWN, Cells, show
from continual_petl.streams.sources.label_file import read_label_names as read_label_names

if TYPE_CHECKING:  # stream files are checked without numpy
    import numpy as np
    from numpy.typing import NDArray

# Limited to the number of digits that Python parses; longer numbers are ordinary names.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,4000}")


def label_names(column: Cells[Any]) -> Cells[str]:
    """Return the label of every row as a name.

    Raises:
        InputError: if a label is missing, or neither a string nor an integer; the message names the rows.
    """
    rule = (
        "A label is a string or an integer; repair or remove these rows (hidden labels cannot be evaluated), or use "
        "kind: regression for numbers."
    )
    return column.read(_label, rule)


def _label(value: Any) -> str:
    name = label_name(value)
    if name is None:
        missing = value is None or value == "" or value != value
        raise ValueError("missing" if missing else f"{show(value)} is {type(value).__name__}")
    return name


def label_name(value: Any) -> str | None:
    """Return the name for a value of a label column; ``None`` if it is not a valid label."""
    match value:
        case str() if value:
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if value.is_integer():  # JSON and Arrow turn integer columns with missing values into floats
            return str(int(value))
    return None


def class_labels(
    column: Cells[Any], names: Iterable[str], given: tuple[str, ...] | None, *, kind: str = "classification"
) -> tuple[str, ...]:
    """Return the classes in order, from the training split.

    Args:
        column: the label column of the training split, for messages.
        names: the labels of the training rows.
        given: the order fixed by the stream or the data set; ``None`` means sorted.
        kind: name of the task's kind, for messages.

    Raises:
        InputError: if there are fewer than two classes.
    """
    found = set(names)
    if len(found) < 2:
        only = next(iter(found), "")
        other = find_kind(kind).instead_of_one_label(str(only))
        raise InputError(
            f"{column}: all rows have the label {only!r}; a {kind} task needs at least two classes, "
            f"so add rows with another label{other}."
        )
    if given is not None:
        return given
    return tuple(sorted(found, key=int if all(map(_INTEGER.fullmatch, found)) else str))


def encode_labels(
    names: Cells[str], labels: tuple[str, ...], *, positions: bool, key: str = "`labels`"
) -> NDArray[np.int64]:
    """Return the class index of every row, ``(N,)``.

    Args:
        names: the label of every row.
        labels: the classes in order.
        positions: whether integers may be positions in ``labels``; only true if ``labels`` was given explicitly.
        key: where the labels are written, for messages.

    Raises:
        InputError: if a label is not among ``labels``; the message names the rows.
    """
    index = label_index(labels, positions=positions)
    faults = unknown_faults(enumerate(names), index, "label")
    if faults:
        names.refuse(faults, unknown_rule(labels, positions=positions, key=key))
    import numpy as np

    return np.fromiter((index[name] for name in names), dtype=np.int64, count=len(names))


def _also_positions(labels: tuple[str, ...], positions: bool) -> bool:
    return positions and not any(map(_INTEGER.fullmatch, labels))


def label_index(labels: tuple[str, ...], *, positions: bool) -> dict[str, int]:
    """Return the class index of each name, and of each position if positions may be used instead of names."""
    index = {name: number for number, name in enumerate(labels)}
    if _also_positions(labels, positions):
        index |= {str(number): number for number in range(len(labels))}
    return index


def unknown_rule(labels: tuple[str, ...], *, positions: bool, key: str = "`labels`") -> str:
    """Describe the known labels, and how to correct rows that have a different one."""
    source = f"the list {key}" if positions or key != "`labels`" else "the training rows"
    rule = f"The classes are those of {source}: {known_names([*map(repr, labels)])}"
    rule += f", or their positions 0 to {len(labels) - 1}" if _also_positions(labels, positions) else ""
    return f"{rule}. Repair or remove these rows, or write all classes under {key}."


def check_class_weights(task: str, weights: str | Mapping[str, float] | None, labels: tuple[str, ...]) -> None:
    """Check that ``training.class_weights`` only names labels of the task.

    Raises:
        InputError: if it names an unknown label.
    """
    known = set(labels)
    unknown = [name for name in weights if name not in known] if isinstance(weights, Mapping) else []
    if unknown:
        hinted = [f"{name!r}{nearest(name, labels)}" for name in unknown[:SHOWN]]
        raise InputError(
            f"task {task!r}, training.class_weights: {known_names([*hinted, *map(repr, unknown[SHOWN:])])} "
            f"{'is not a label' if len(unknown) == 1 else 'are not labels'} of this task; its labels are "
            f"{known_names([*map(repr, labels)])}.",
            key=("training", "class_weights"),
        )


def absent_notice(task: str, labels: tuple[str, ...], counts: NDArray[np.int64]) -> str | None:
    """Return a notice if any class has no training row.

    Args:
        task: name of the task.
        labels: the classes.
        counts: number of training rows of each class.
    """
    absent = [label for label, count in zip(labels, counts.tolist(), strict=True) if count == 0]
    if not absent:
        return None
    word, it = ("label", "it") if len(absent) == 1 else ("labels", "they")
    return f"task {task!r}: no training row has the {word} {known_names([*map(repr, absent)])}; {it} cannot be learned."

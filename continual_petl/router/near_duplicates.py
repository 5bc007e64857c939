"""Finds out whether a task's training rows are too alike to say which rows are foreign to it: filled-in templates, say.

Ordinary requests lie far from such rows, so they would be called unknown although they mean the same. The measure is the
median cosine of a row's features to those of the nearest other row. On MiniLM, it is 0.55 to 0.85 for texts that people
wrote, and 0.93 for templates.

Shape suffixes: N rows, F features per row, as in `continual_petl.router.row_states`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 1000
"""Maximum number of rows that are compared with each other."""
TOO_ALIKE = 0.88
"""A likeness above this is reported when the task is learned."""


def likeness(states_NF: NDArray[np.float64]) -> float:
    """Return how alike the rows of a task are: the median, over rows, of the cosine to the nearest other row.

    ``median_i max_{j != i} x_i . x_j / (|x_i| |x_j|)``

    Args:
        states_NF: their features; of more than `MAX_ROWS` rows, the same ones are drawn every time.

    Returns:
        -1 to 1; a row of zeros is like no other, with a cosine of 0; so is a single row.

    Example:
        >>> likeness(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
        1.0
    """
    if len(states_NF) > MAX_ROWS:
        # Drawn, not evenly spaced: rows are often in the order of their labels or templates.
        states_NF = states_NF[np.random.default_rng(0).choice(len(states_NF), MAX_ROWS, replace=False)]
    if len(states_NF) < 2:
        return 0.0
    lengths_N1 = np.linalg.norm(states_NF, axis=1, keepdims=True)
    unit_NF = states_NF / np.where(lengths_N1 > 0, lengths_N1, 1.0)
    cosines_NN = unit_NF @ unit_NF.T
    np.fill_diagonal(cosines_NN, -np.inf)
    return float(np.median(cosines_NN.max(1)))


def near_duplicate_notices(task: str, alike: float) -> list[str]:
    """Return a notice for the user if the training rows of a task are too alike; none otherwise.

    Args:
        task: its name.
        alike: the `likeness` of its training rows.
    """
    if alike <= TOO_ALIKE:
        return []
    return [
        f"task {task!r}: half of the training rows are near-duplicates of another one, as in filled-in templates (cosine of "
        f"{alike:.2f} or more in the frozen backbone; for texts that people wrote, it is 0.55 to 0.85). They do not say what "
        "is foreign: ordinary requests that are not worded like them would be called unknown. So every row without a task's "
        "name that is found to be this task's is predicted, unless a limit is given: `--reject 0.01`, or `routing: {reject: "
        "0.01}` for the task. With more varied rows, the task would tell foreign ones."
    ]

"""The tasks that a row without a task's name may belong to, and the predictions of the most probable ones.

Shape suffixes: F features that the router reads per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from continual_petl.errors import InputError, UnusableRowError
from continual_petl.heads.predictions import Prediction
from continual_petl.router.sums import Array

NUM_RUNNERS_UP = 3
"""Number of tasks that are listed after the most probable one."""
MAX_CANDIDATES = NUM_RUNNERS_UP + 1
"""Maximum number of tasks that predict a row without a task."""
ROUNDING: Mapping[str, tuple[float, float, float]] = {"fp32": (1e-3, 1e-5, 1e-4), "bf16": (0.5, 0.005, 0.03)}
"""How much a row's result can depend on the other rows of its batch, by precision of the backbone: the difference of two
tasks' log-probabilities, and, as shares of themselves, the distances from a task of the frozen states and of the bank's
vectors. docs/explanation/bit-identity.md has differences that were measured; those of vectors were at most 0.016 in bf16, of
260 rows on MiniLM."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """The tasks that one row may belong to."""

    task: str
    """The most probable task."""
    tied: bool
    """Whether the same row in another batch could get another task; see `ROUNDING`."""
    probabilities: Mapping[str, float]
    """Probabilities of the most probable tasks, in descending order; ties are ordered by name."""
    truncated: bool
    """Whether only a part of the row was read to find them."""
    features: Mapping[str, Array]
    """What the router reads of the row, ``(F,)``, in the encoding of each of the most probable tasks."""

    def candidates(self, number: int) -> list[str]:
        """Return this many of the most probable tasks, the most probable first; fewer if the others have no probability."""
        return [self.task, *(task for task in self.probabilities if task != self.task)][:number]

    def with_tasks(
        self, prediction: Prediction | None, known: Known, candidates: tuple[Prediction, ...] = ()
    ) -> Prediction:
        """Return the prediction of this row with the probabilities of the tasks; None stands for a row of an unknown task."""
        others = {task: share for task, share in self.probabilities.items() if prediction is None or task != self.task}
        return replace(
            prediction or Prediction(truncated=self.truncated),
            task_probability=self.probabilities[self.task],
            known=known.share,
            runners_up=others,
            task_near_tie=self.tied or known.tied,
            candidates=candidates,
        )


@dataclass(frozen=True, kw_only=True)
class Known:
    """How far a row is from the task that it was found to belong to."""

    share: float
    """The share of the task's own rows that are at least as far away."""
    rejected: bool
    """Whether this share is below the limit, so that the row is unknown."""
    tied: bool
    """Whether the same row in another batch could be unknown in one of them only; see `ROUNDING`."""


def check_candidates(number: object) -> None:
    """Raise `InputError` unless so many candidates can be asked for; None asks for none."""
    if number is not None and (type(number) is not int or not 1 <= number <= MAX_CANDIDATES):
        raise InputError(
            f"candidates: got {number!r}; allowed: 1 to {MAX_CANDIDATES}, the number of tasks that predict each row"
        )


def with_candidates(
    routes: Mapping[int, Route],
    best: Mapping[int, Prediction],
    candidates: Mapping[int, int],
    predict: Callable[[Mapping[int, str]], Mapping[int, Prediction]],
) -> dict[int, tuple[Prediction, ...]]:
    """Return the predictions of the most probable tasks of each row, by the row's index, without tasks that refuse the row.

    Args:
        routes: the tasks that each row may belong to.
        best: the predictions of the most probable tasks, of the rows where they are known.
        candidates: the number of tasks that were asked for, of the rows where any were.
        predict: returns the predictions of some rows, each by the task that is given for it.
    """
    ranked = {index: routes[index].candidates(number) for index, number in candidates.items()}
    by_rank = list[Mapping[int, Prediction]]()
    for rank in range(max(map(len, ranked.values()), default=0)):
        known = {} if rank else best
        missing = {index: tasks[rank] for index, tasks in ranked.items() if rank < len(tasks) and index not in known}
        by_rank.append({**known, **_accepted(missing, predict)})
    return {
        index: tuple(
            replace(predictions[index], task_probability=routes[index].probabilities[task])
            for predictions, task in zip(by_rank, tasks, strict=False)
            if index in predictions
        )
        for index, tasks in ranked.items()
    }


def _accepted(
    tasks: Mapping[int, str], predict: Callable[[Mapping[int, str]], Mapping[int, Prediction]]
) -> dict[int, Prediction]:
    """Return the predictions of some rows, each by its task, without the rows that their tasks refuse."""
    found: dict[int, Prediction] = {}
    halving_refused([*tasks], lambda own: found.update(predict({index: tasks[index] for index in own})))
    return found


def halving_refused(indices: Sequence[int], work: Callable[[Sequence[int]], None]) -> dict[int, UnusableRowError]:
    """Do something with rows, halving them where one is refused; return why rows are refused, by their indices.

    Args:
        indices: the rows; nothing is done without any.
        work: does it for some of the rows, all at once, unless it raises `UnusableRowError`, having done nothing.
    """
    if not indices:
        return {}
    try:
        work(indices)
    except UnusableRowError as error:
        if len(indices) == 1:
            return {indices[0]: error}
        middle = len(indices) // 2
        return halving_refused(indices[:middle], work) | halving_refused(indices[middle:], work)
    return {}

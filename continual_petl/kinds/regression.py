"""One number for each text, or pair of texts, standardised by the mean and the deviation of the training targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from continual_petl.heads.targets import LARGEST, Targets
from continual_petl.kind import HowRead
from continual_petl.kinds.bases.texts import OfTexts
from continual_petl.streams.preparation.spelling_notices import numbers_notice
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.checks import Cells, show
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from continual_petl.heads.head import Head
    from continual_petl.heads.predictions import Prediction

_QUANTILES = 10
_LARGEST_SINGLE = (2 - 2**-23) * 2.0**127


class Regression(OfTexts):
    """The head has one output, with the squared error as loss."""

    name = "regression"
    metrics: tuple[str, ...] = ("spearman", "pearson")
    has_numbers = True
    answer_type = "float"
    summary = "points"
    auto_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"
    problem_type = "regression"
    adapters_head = "classification"

    def head(
        self,
        width: int,
        num_outputs: int,
        *,
        targets: Targets | None,
        **settings: Any,
    ) -> Head:
        """Return a linear layer with one output."""
        from continual_petl.heads.linear import NumberHead

        head = NumberHead(self.name, width, num_outputs, **settings)
        head.targets = targets
        return head

    def lowest(self, metric: str) -> float:
        """Return -1, since its metrics are correlations."""
        return -1.0

    def read_answers(
        self, task: TaskSpec, rows: SplitRows, inputs: Sequence[Any], how: HowRead
    ) -> tuple[NDArray[np.float64] | NDArray[np.float32], list[str]]:
        """Return the numbers, and the spelling of each."""
        answers = targets_of(rows.answers, single_precision=how.single_precision)
        return answers, [repr(value) for value in answers.tolist()]

    def notice_on_answers(self, task: TaskSpec, splits: Mapping[Any, SplitRows]) -> str | None:
        """Return a notice on numbers that are written in unusual ways."""
        return numbers_notice(task.name, {name: rows.answers for name, rows in splits.items()})

    def notice_on_training(self, task: TaskSpec, answers: Any) -> str | None:
        """Return a notice if all targets are the same; refuse targets that cannot be standardised."""
        Targets.of(task.name, answers.tolist())  # so that a dry run refuses them too
        if (answers != answers[0]).any():
            return None
        return (
            f"task {task.name!r}: its training targets all equal {float(answers[0])!r}, so there is nothing to learn but "
            "this number, and correlations with the predictions are not defined."
        )

    def strata(self, answers: Any, groups: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Return the quantile of each group's mean target; there are ten, or fewer if fewer rows are wanted."""
        import numpy as np

        means = np.bincount(groups, weights=np.asarray(answers, dtype=np.float64)) / np.bincount(groups)
        num = min(_QUANTILES, wanted)
        edges = np.quantile(means, np.arange(1, num) / num)
        return np.searchsorted(edges, means, side="right").astype(np.int64)

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: object, single_precision: bool
    ) -> dict[str, Any]:
        """Return correlations and errors."""
        from continual_petl.heads.number_metrics import NumberMetrics, single_precision_metrics

        return {**single_precision_metrics()} if single_precision else {"numbers": NumberMetrics()}

    def in_words(
        self, labels: tuple[str, ...] | None, outputs_BC: Tensor, *, targets: Targets | None, rounding: float
    ) -> list[Prediction]:
        """Return the numbers in the units of the targets."""
        from continual_petl.heads.predictions import Prediction

        numbers_B = outputs_BC.squeeze(-1)
        numbers_B = numbers_B if targets is None else targets.restored(numbers_B)
        return [Prediction(value=value) for value in numbers_B.tolist()]


def targets_of(column: Cells[Any], *, single_precision: bool = False) -> NDArray[np.float64] | NDArray[np.float32]:
    """Return the targets as float64 ``(N,)``; strings that spell a number are accepted, since CSV has only strings.

    Args:
        column: the targets of a split.
        single_precision: return float32 for a bank whose targets were read in this precision, see
            `TaskPlan.single_precision`; the digest of the rows is then as it was.

    Raises:
        InputError: if a target is missing, not a number, not finite, too large, or loses digits of its whole part in
            float64; the message names the rows.
    """
    import numpy as np  # not imported by the code that reads files for `predict`

    rule = "A regression task needs a finite number in every row; repair or remove these rows."
    numbers = column.read(partial(_number, single_precision=single_precision), rule)
    return np.array(numbers, np.float32) if single_precision else np.array(numbers, np.float64)


def _number(value: Any, *, single_precision: bool) -> float:
    if value is None or value == "":
        raise ValueError("missing")
    try:
        is_number = isinstance(value, Real | Decimal | str) and not isinstance(value, bool)
        number = float(value) if is_number else None
    except OverflowError:
        number = math.inf
    except ValueError:
        number = None
    if number is None:
        raise ValueError(f"{show(value)} is not a number")
    if not abs(number) <= (_LARGEST_SINGLE if single_precision else LARGEST):  # also true for NaN
        raise ValueError(
            f"{show(value)} is not a finite number {'in single precision' if single_precision else f'up to {LARGEST:g}'}"
        )
    # Double precision may change the whole part of a target, which is then neither it nor written like it.
    if not single_precision and abs(number) >= 2**53 and isinstance(value, Integral | Decimal | str):
        exact = int(value) if isinstance(value, Integral) else Decimal(value)
        if exact not in (number, Decimal(repr(number))):
            raise ValueError(
                f"{show(value)} has too many digits for double precision, where it is {int(number)}; subtract a constant "
                "from all targets, or round them"
            )
    return number

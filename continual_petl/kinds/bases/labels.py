"""What kinds with label names share: their loss, the weights of labels, one label per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from continual_petl.errors import about
from continual_petl.kind import IGNORED, OF_CLASSES, HowRead
from continual_petl.kinds.bases.calibrated import Calibrated
from continual_petl.kinds.bases.texts import OfTexts
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from continual_petl.heads.decision import Decision
    from continual_petl.heads.head import Head
    from continual_petl.heads.predictions import Prediction
    from continual_petl.streams.encoding.rows import TokenisedRows


class OfClasses(OfTexts):
    """A kind whose head gives a score to each label, of which exactly one applies to a row or word."""

    has_labels = True
    trains_with = frozenset({"label_smoothing", "class_weights", "head_dropout"})

    def head(self, width: int, num_outputs: int, *, targets: object, **settings: Any) -> Head:
        """Return a linear layer with softmax and cross-entropy."""
        from continual_petl.heads.linear import ClassHead

        return ClassHead(self.name, width, num_outputs, **settings)

    def row_weights(self, rows: TokenisedRows, class_weights: tuple[float, ...] | None) -> NDArray[np.float64]:
        """Return the number of labels of each row, each weighted by its class."""
        import numpy as np

        assert rows.labels is not None
        labels = rows.labels.astype(np.int64)
        if class_weights is None:
            label_weights = (labels != IGNORED).astype(np.float64)
        else:
            # The loss reads them in float32.
            weights = np.array(class_weights, dtype=np.float32).astype(np.float64)
            label_weights = np.where(labels == IGNORED, 0.0, weights[np.maximum(labels, 0)])
        return label_weights if rows.first_piece is None else rows.sums(label_weights)

    def balanced_weights(self, task: str, labels: tuple[str, ...], train: NDArray[np.generic]) -> tuple[float, ...]:
        """Return N / (C count) for each label, as scikit-learn."""
        import numpy as np

        from continual_petl.heads.weights import check_counts

        counts = np.bincount(train[train != IGNORED].astype(np.int64), minlength=len(labels))
        check_counts(task, labels, counts, "does not occur")
        return tuple((counts.sum() / (len(labels) * counts)).tolist())


class OneLabel(Calibrated, OfClasses):
    """A kind with one label for each row."""

    has_one_label = True
    metrics: tuple[str, ...] = OF_CLASSES

    def labels_in(self, task: TaskSpec, train: SplitRows, given: tuple[str, ...] | None) -> Iterable[str]:
        """Return the label of every training row."""
        from continual_petl.streams.preparation.labels import label_names

        return label_names(train.answers)

    def read_answers(
        self, task: TaskSpec, rows: SplitRows, inputs: Sequence[Any], how: HowRead
    ) -> tuple[NDArray[np.int64], list[str]]:
        """Return the index of each row's label, and the label."""
        from continual_petl.streams.preparation.labels import encode_labels, label_names

        labels = how.labels
        assert labels is not None
        named = label_names(rows.answers)
        with about("labels"):
            numbers = encode_labels(named, labels, positions=how.positions)
        return numbers, [labels[number] for number in numbers.tolist()]

    def strata(self, answers: Any, groups: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Return the most frequent label of each group."""
        import numpy as np

        from continual_petl.streams.preparation.stratified import most_frequent

        return most_frequent(groups, np.asarray(answers), int(groups.max()) + 1)

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: object, single_precision: bool
    ) -> dict[str, Any]:
        """Return accuracy, macro F1 and Matthews' correlation."""
        from continual_petl.heads.task_metrics import class_metrics

        return class_metrics(len(labels or ()))

    def in_words(
        self,
        labels: tuple[str, ...] | None,
        outputs_BC: Tensor,
        *,
        targets: object,
        rounding: float,
        decision: Decision | None = None,
    ) -> list[Prediction]:
        """Return the label with the highest probability, and all probabilities."""
        from continual_petl.heads.predictions import best

        assert labels is not None
        return [best(labels, row, rounding, decision) for row in outputs_BC]

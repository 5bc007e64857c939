"""Any number of labels for each text, or pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from continual_petl.errors import InputError, about, did_you_mean, known_names
from continual_petl.heads.decision import Decision, Share, tuned_thresholds
from continual_petl.kind import HowRead
from continual_petl.kinds.bases.calibrated import CalibrationSettings, temperature_of
from continual_petl.kinds.bases.texts import OfTexts
from continual_petl.streams.preparation.multi_hot import check_named, flags_of, names_by_column
from continual_petl.streams.schema.data_spec import AS_MAPPING, AS_NUMBER, AS_TEXT, Text
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.schema.training_spec import named_by_number
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from continual_petl.heads.head import Head
    from continual_petl.heads.predictions import Prediction


def _shape(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return AS_NUMBER
    return AS_TEXT if value == _TUNED else AS_MAPPING if isinstance(value, dict) else None


_HALF, _TUNED = 0.5, "tuned"
_Probability = Annotated[Share, Field(strict=True)]
_Thresholds: TypeAlias = Annotated[
    Annotated[Literal["tuned"], Tag(AS_TEXT)]
    | Annotated[_Probability, Tag(AS_NUMBER)]
    | Annotated[dict[Text, _Probability], Field(min_length=1), BeforeValidator(named_by_number), Tag(AS_MAPPING)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be tuned, a number above 0 and below 1, or a mapping from label to such a number",
    ),
]


class MultilabelSettings(CalibrationSettings):
    """How labels are read from their probabilities."""

    thresholds: _Thresholds = _HALF
    """The probability above which a label applies, for all labels or by label; a label that is left out has 0.5. tuned:
    found on the validation rows, for a high F1 of each label."""


class Multilabel(OfTexts):
    """The head has one output for each label, with a sigmoid and a binary cross-entropy for each."""

    name = "multilabel"
    own_settings = MultilabelSettings
    metrics: tuple[str, ...] = ("micro_f1", "macro_f1", "exact_match")
    has_labels = True
    labels_in_columns = True
    trains_with = frozenset({"class_weights", "head_dropout"})
    answer_type = "list"
    summary = "per label"
    auto_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"
    problem_type = "multi_label_classification"
    adapters_head = "multilabel_classification"

    def head(self, width: int, num_outputs: int, *, targets: object, **settings: Any) -> Head:
        """Return a linear layer with a sigmoid for each label."""
        from continual_petl.heads.linear import MultilabelHead

        return MultilabelHead(self.name, width, num_outputs, **settings)

    def balanced_weights(self, task: str, labels: tuple[str, ...], train: NDArray[np.generic]) -> tuple[float, ...]:
        """Return the number of negatives divided by the number of positives for each label."""
        import numpy as np

        from continual_petl.heads.weights import check_counts

        positives = train.astype(np.int64).sum(0)
        check_counts(task, labels, positives, "does not occur")
        check_counts(task, labels, len(train) - positives, "occurs in every row")
        return tuple(((len(train) - positives) / positives).tolist())

    def labels_in(self, task: TaskSpec, train: SplitRows, given: tuple[str, ...] | None) -> Iterable[str]:
        """Return all labels of the training rows, whether they name them or are multi-hot."""
        from continual_petl.streams.preparation.label_lists import label_names_of

        if isinstance(task.columns.label, tuple):
            return task.columns.label
        if train.class_names is None:
            check_named(train.answers, given)
        named = given if train.class_names is None else None
        return chain.from_iterable(label_names_of(train.answers, named))

    def read_answers(
        self, task: TaskSpec, rows: SplitRows, inputs: Sequence[Any], how: HowRead
    ) -> tuple[NDArray[np.float32], list[list[str]]]:
        """Return zeros and ones, ``(N, C)``, and the labels of each row."""
        import numpy as np

        from continual_petl.streams.preparation.label_lists import encode_multilabel, label_names_of

        labels = how.labels
        assert labels is not None
        if isinstance(task.columns.label, tuple):
            label_names = names_by_column(rows.answers, task.columns.label)
        else:
            label_names = label_names_of(rows.answers, labels if how.positions else None)
        with about("labels"):
            sets = encode_multilabel(label_names, labels, positions=how.positions)
        return sets, [[labels[number] for number in np.flatnonzero(row)] for row in sets]

    def check_splits(
        self, task: TaskSpec, splits: Mapping[Any, SplitRows], labels: tuple[str, ...] | None, *, positions: bool
    ) -> None:
        """Refuse multi-hot lists in one split, and names or positions of labels in another."""
        if not positions or labels is None:
            return
        forms = {name: flags_of(rows.answers, labels) is not None for name, rows in splits.items()}
        differing = next((name for name, form in forms.items() if form != forms["train"]), None)
        if differing is not None:
            first, second = (str(differing), "train") if forms[differing] else ("train", str(differing))
            raise InputError(
                f"task {task.name!r}: split {first} holds lists of {len(labels)} zeros and ones (multi-hot), but split "
                f"{second} names or positions of labels: write the labels of all splits in the same form.",
                key=("data",),
            )

    def label_counts(self, answers: Any, num_labels: int) -> NDArray[np.int64]:
        """Return the number of rows with each label."""
        import numpy as np

        return np.asarray(answers.sum(0), dtype=np.int64)

    def strata(self, answers: Any, groups: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Return the rarest label of each group, so that rare labels are held out too; -1 without labels.

        A simplified version of the label-by-label method of Sechidis et al. 2011.
        """
        import numpy as np

        holds = np.zeros((int(groups.max()) + 1, answers.shape[1]), dtype=np.bool_)
        np.logical_or.at(holds, groups, np.asarray(answers, dtype=np.bool_))
        rarest_first = np.argsort(holds.sum(0), kind="stable")
        first = np.argmax(holds[:, rarest_first], axis=1)
        return np.where(holds.any(1), rarest_first[first], -1)

    def decide(
        self,
        task: str,
        labels: tuple[str, ...] | None,
        settings: Mapping[str, Any] | None,
        outputs: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> Decision | None:
        """Return the threshold of each label, and the temperature; None if neither is asked for."""
        asked = (settings or {}).get("thresholds", _HALF)  # a kind that is based on this one may have other settings
        temperature = temperature_of(settings, outputs, answers, several=True)
        if (asked == _HALF and temperature is None) or labels is None:
            return None
        if isinstance(asked, dict):
            if unknown := [name for name in asked if name not in labels]:
                raise InputError(
                    f"task {task!r}: kind_settings.thresholds names {known_names([*map(repr, unknown)])}"
                    f"{did_you_mean(unknown[0], labels)}; the labels of its data are {known_names([*map(repr, labels)])}. "
                    "Write thresholds for these labels."
                )
            thresholds = tuple(asked.get(name, _HALF) for name in labels)
        elif isinstance(asked, float):
            thresholds = (asked,) * len(labels)
        elif outputs is None or answers is None:
            thresholds = (_HALF,) * len(labels)
        else:
            scaled_NC = Decision(temperature=temperature).scaled(outputs.double())
            thresholds = tuned_thresholds(scaled_NC.numpy(), answers.bool().numpy())
        return Decision(temperature=temperature, thresholds=thresholds)

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: object, single_precision: bool
    ) -> dict[str, Any]:
        """Return micro and macro F1, and the share of rows with exactly the right labels."""
        from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score

        num_labels = len(labels or ())
        return {
            "micro_f1": MultilabelF1Score(num_labels, average="micro"),
            "macro_f1": MultilabelF1Score(num_labels, average="macro"),
            "exact_match": MultilabelExactMatch(num_labels),
        }

    def in_names(
        self, answers: Tensor, references: Tensor, labels: Sequence[str] | None
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Return the labels of each row; see `Kind.in_names`."""
        assert labels is not None

        def present(row: Tensor) -> list[str]:
            return [labels[index] for index in row.nonzero().flatten().tolist()]

        return [*map(present, answers)], [*map(present, references)]

    def in_words(
        self,
        labels: tuple[str, ...] | None,
        outputs_BC: Tensor,
        *,
        targets: object,
        rounding: float,
        decision: Decision | None = None,
    ) -> list[Prediction]:
        """Return the labels with a probability above their threshold, by default one half, and all probabilities."""
        from continual_petl.heads.predictions import Prediction

        assert labels is not None
        above_BC = outputs_BC if decision is None else decision.above(outputs_BC)
        # Row by row, since a sigmoid's last bit depends on the size of its tensor.
        shares_BC = [row.sigmoid() if decision is None else decision.shares(row) for row in outputs_BC]
        return [
            Prediction(
                value=[name for name, excess in zip(labels, above, strict=True) if excess > 0],
                probabilities=dict(zip(labels, shares.tolist(), strict=True)),
                near_tie=bool((above.abs() <= rounding).any()),
            )
            for shares, above in zip(shares_BC, above_BC, strict=True)
        ]

"""Class weights follow scikit-learn's formula or are given by label name; undefined ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from continual_petl.errors import InputError
from continual_petl.heads.weights import resolve_class_weights

ABC = ("a", "b", "c")


def test_balanced_is_rows_by_classes_times_count() -> None:
    train = np.array([0, 0, 0, 1, 1, 2])
    weights = resolve_class_weights("t", "classification", "balanced", ABC, train)
    # sklearn.utils.class_weight.compute_class_weight("balanced", ...): n_samples / (n_classes * bincount).
    assert weights == (6 / 9, 6 / 6, 6 / 3)


def test_unlabelled_words_are_ignored_in_balanced_weights() -> None:
    train = np.array([-100, 0, 0, -100, 1, -100])
    assert resolve_class_weights("t", "token-classification", "balanced", ("a", "b"), train) == (0.75, 1.5)


def test_balanced_multilabel_positives_weigh_as_much_as_negatives() -> None:
    train = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], dtype=np.float32)
    weights = resolve_class_weights("t", "multilabel", "balanced", ("a", "b"), train)
    assert weights == (1 / 3, 3.0)
    # For each label, the ratio of the two weights that scikit-learn gives to its presence and absence.
    assert weights == pytest.approx(((4 / (2 * 3)) / (4 / (2 * 1)), (4 / (2 * 1)) / (4 / (2 * 3))))


def test_weights_are_given_by_label_name() -> None:
    assert resolve_class_weights("t", "classification", {"c": 3}, ABC, None) == (1.0, 1.0, 3.0)
    assert resolve_class_weights("t", "classification", None, ABC, None) is None


def test_unknown_label_name_is_an_error() -> None:
    with pytest.raises(InputError, match=r"task 't': training.class_weights names 'd'; the labels .* 'a', 'b', 'c'"):
        resolve_class_weights("t", "classification", {"a": 1.0, "d": 2.0}, ABC, None)


@pytest.mark.parametrize(
    ("kind", "train", "message"),
    [
        ("classification", np.array([0, 1, 1]), "label 'c': in the training split it does not occur"),
        ("multilabel", np.array([[1.0, 0, 1], [0, 0, 1]]), "label 'b': in the training split it does not occur"),
        ("multilabel", np.array([[1.0, 0, 1], [0, 1, 1]]), "label 'c': in the training split it occurs in every row"),
    ],
)
def test_undefined_weights_are_an_error(kind: Any, train: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_class_weights("t", kind, "balanced", ABC, train)

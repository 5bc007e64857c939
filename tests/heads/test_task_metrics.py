"""Scores are computed as their names promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from continual_petl.heads.metric_names import ERROR_NAMES, IF_CHOSEN
from continual_petl.heads.task_metrics import Rouge
from continual_petl.learner.metrics import make_metrics
from tests.kinds import GENERATIVE, METRICS

ABC = ("a", "b", "c")


def _values(kind: Any, labels: Sequence[str] | None, predictions: Any, targets: Any) -> dict[str, float]:
    scores = make_metrics(kind, labels)
    scores.update(predictions, targets)
    return {name: float(value) for name, value in scores.compute().items()}


def test_accuracy_is_over_rows_not_classes() -> None:
    # Three rows of one class, one of the other: micro-averaged 3/4, macro-averaged 1/2.
    values = _values("classification", "ab", torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    assert values["accuracy"] == 0.75
    assert values["macro_f1"] == pytest.approx((6 / 7 + 0) / 2)
    assert values["matthews"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_matthews_of_two_classes_is_pearsons_correlation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predictions, targets = (torch.randint(2, (30,), generator=generator) for _ in range(2))
    expected = np.corrcoef(predictions.numpy(), targets.numpy())[0, 1]
    assert _values("classification", "ab", predictions, targets)["matthews"] == pytest.approx(expected, abs=1e-6)


def test_matthews_of_three_classes() -> None:
    # By hand, with the formula of Gorodkin 2004: 4 of 6 are right; true counts (2, 2, 2), predicted (3, 2, 1).
    values = _values("classification", ABC, torch.tensor([0, 0, 1, 1, 2, 0]), torch.tensor([0, 1, 1, 2, 2, 0]))
    expected = (4 * 6 - (2 * 3 + 2 * 2 + 2 * 1)) / ((36 - 14) * (36 - 12)) ** 0.5
    assert values["matthews"] == pytest.approx(expected)


def test_multilabel_scores_match_a_manual_computation() -> None:
    predictions = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0]]).bool()
    targets = torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 1, 0]])
    # For each label, the numbers of correct, predicted and true rows: a 1, 2, 1; b 1, 1, 1; c 1, 1, 2.
    assert _values("multilabel", ABC, predictions, targets) == pytest.approx(
        {"micro_f1": 6 / 8, "macro_f1": (2 / 3 + 1 + 2 / 3) / 3, "exact_match": 1 / 3}
    )


def test_unlabelled_words_are_ignored_in_accuracy() -> None:
    predictions, targets = torch.tensor([[1, 1, 0], [0, 1, 1]]), torch.tensor([[-100, 1, 1], [0, -100, -100]])
    assert _values("token-classification", ("O", "B-A"), predictions, targets)["accuracy"] == pytest.approx(2 / 3)


def test_text_scores_match_a_manual_computation() -> None:
    # "a b c d" and "a b x d" share 3 of 4 words, 1 of 3 bigrams, and a subsequence of 3 words.
    values = _values("seq2seq", None, ["A b c d!"], ["a b x d"])
    assert values["rouge1"] == pytest.approx(0.75)
    assert values["rouge2"] == pytest.approx(1 / 3)
    assert values["rougeL"] == pytest.approx(0.75)
    assert values["bleu"] == 0
    assert _values("causal-lm", None, ["one two three four five"], ["one two three four five"]) == pytest.approx(
        dict.fromkeys(("rougeL", "rouge1", "rouge2", "bleu"), 1.0)
    )


def _chosen(metric: str, texts: list[str], references: list[str]) -> float:
    whole, parts = make_metrics("causal-lm", None, metric), make_metrics("causal-lm", None, metric)
    whole.update(texts, references)
    for text, reference in zip(texts, references, strict=True):
        parts.update([text], [reference])
    assert float(parts.compute()[metric]) == pytest.approx(float(whole.compute()[metric]))
    return float(whole.compute()[metric])


def test_exact_match_ignores_only_outer_space() -> None:
    assert _chosen("exact_match", ["A", " b ", "The end", ""], ["A", "b", "the end", "A"]) == 0.5


def test_token_f1_matches_squad() -> None:
    # Without articles, case and punctuation, row 1 has precision 2/2 and recall 2/3, row 2 has no word right, row 3 all.
    found = _chosen("token_f1", ["the Black cat!", "a dog", "x"], ["black cat sat", "cat", "X."])
    assert found == pytest.approx((0.8 + 0 + 1) / 3)


def test_chrf_matches_its_formula() -> None:
    text, reference = "abcdefghij", "abcdefghxj"
    f_scores = []
    for order in range(1, 7):
        one, other = (Counter(t[i : i + order] for i in range(len(t) - order + 1)) for t in (text, reference))
        precision = sum((one & other).values()) / sum(one.values())
        f_scores.append(precision)  # both have equally many n-grams, so precision, recall and F are equal
    assert _chosen("chrf", [text], [reference]) == pytest.approx(sum(f_scores) / 6, abs=1e-6)


def test_optional_metrics_are_computed_only_if_chosen() -> None:
    values = _values("seq2seq", None, ["a b"], ["a b"])
    assert set(values) == set(METRICS["seq2seq"]) - set(IF_CHOSEN)


def test_bleu_is_corpus_level_with_brevity_penalty() -> None:
    texts, references = ["the cat sat", "", "a b c d e f"], ["the cat sat on", "x y", "a b c d e g"]
    # The texts have 9 words, the references 12. Right n-grams: 8 of 9, 6 of 7, 4 of 5 (one in "the cat sat") and 2 of 3.
    precision = (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25
    bleu = float(np.exp(1 - (4 + 2 + 6) / 9) * precision)
    parts = make_metrics("seq2seq", None)
    for text, reference in zip(texts, references, strict=True):
        parts.update([text], [reference])
    assert float(parts.compute()["bleu"]) == pytest.approx(bleu)
    assert _values("seq2seq", None, texts, references)["bleu"] == pytest.approx(bleu)


@pytest.mark.parametrize("kind", METRICS)
def test_every_metric_of_the_schema_exists(kind: Any) -> None:
    chosen: list[str | None] = [metric for metric in METRICS[kind] if kind in GENERATIVE and metric in IF_CHOSEN]
    examples: dict[str, Any] = {
        "multilabel": (torch.eye(3).bool(), torch.eye(3)),
        "token-classification": (torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]])),
        "regression": (torch.tensor([1.0, 2, 4]), torch.tensor([1.0, 2, 4])),
        **dict.fromkeys(GENERATIVE, (["a b c d e f"], ["a b c d e f"])),
        "question-answering": (["a b"], [["a b"]]),
    }
    values: dict[str, Any] = {}
    for metric in chosen or [None]:
        scores = make_metrics(kind, None if kind in GENERATIVE else ABC, metric)
        scores.update(*examples.get(kind, (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))), sources=["g a b"])
        values |= scores.compute()
    assert set(values) - {*ERROR_NAMES} == {*METRICS[kind]}
    assert all(float(values[name]) == pytest.approx(1, abs=1e-5) for name in METRICS[kind])


def test_scores_do_not_depend_on_the_batch_size() -> None:
    predictions, targets = torch.randint(3, (37,)), torch.randint(3, (37,))
    whole, parts = make_metrics("classification", ABC), make_metrics("classification", ABC)
    whole.update(predictions, targets)
    for start in range(0, 37, 8):
        parts.update(predictions[start : start + 8], targets[start : start + 8])
    assert whole.compute() == parts.compute()


def test_rouge_joins_the_scores_of_processes_with_different_numbers_of_rows() -> None:
    texts = [["a b c"], ["a b d", "x y"]]
    parts = [Rouge() for _ in texts]
    for part, own in zip(parts, texts, strict=True):
        part.update(own, ["a b c"] * len(own))
    sent: list[list[torch.Tensor]] = [[], []]

    def alone(place: int, tensor: torch.Tensor, group: Any) -> list[torch.Tensor]:
        sent[place].append(tensor)
        return [tensor]

    for place, part in enumerate(parts):
        part._sync_dist(partial(alone, place))
    # Each of the nine lists is sent as one tensor, whatever its length.
    assert [len(each) for each in sent] == [9, 9]
    assert all(one.ndim == other.ndim == 1 for one, other in zip(*sent, strict=True))
    together = Rouge()
    together.update([text for own in texts for text in own], ["a b c"] * 3)
    means = [part.compute()["rougeL"] for part in parts]
    assert float(together.compute()["rougeL"]) == pytest.approx(float(means[0] + 2 * means[1]) / 3)

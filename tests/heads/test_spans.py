"""Exact match and F1 against the official scripts, and the choice of the best part of a context against trying all."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.text import SQuAD

from continual_petl.heads.spans import SpanHead, SpanScores, best_spans, compared, normalised
from continual_petl.heads.task_metrics import OwnMetric
from continual_petl.kind import IGNORED, NO_ANSWER
from continual_petl.kind_registry import find_kind
from continual_petl.learner.metrics import make_metrics


# The official scripts (evaluate-v1.1.py, evaluate-v2.0.py), written down again from their description: normalise, compare.
def official_words(text: str) -> list[str]:
    for mark in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~":
        text = text.lower().replace(mark, "")
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def official(found: str, golds: list[str], version: int) -> tuple[float, float]:
    """Return exact match and F1 of one row."""
    if version == 2:
        golds = [gold for gold in golds if official_words(gold)] or [""]
    best_exact = best_f1 = 0.0
    for gold in golds:
        ours, theirs = official_words(found), official_words(gold)
        shared = sum(min(ours.count(word), theirs.count(word)) for word in {*ours})
        if version == 2 and not (ours and theirs):
            f1 = float(ours == theirs)
        else:
            f1 = 0.0 if shared == 0 else 2 * shared / (len(ours) + len(theirs))
        best_exact, best_f1 = max(best_exact, float(ours == theirs)), max(best_f1, f1)
    return best_exact, best_f1


texts = st.lists(
    st.sampled_from(["the", "The", "a", "an", "U.S.", "x", "X", "x,", "-", "2", "cat's", "ÉTÉ", "the—x"]), max_size=5
).map(" ".join)
rows_v2 = st.lists(st.tuples(texts, st.lists(texts, max_size=3)), min_size=1, max_size=6)
rows_v1 = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6)


def scored(rows: list[tuple[str, list[str]]], *, none: bool) -> dict[str, float]:
    scores = SpanScores()
    for found, golds in rows:
        scores.update([found], [compared(golds, none=none)])
    return {name: float(value) for name, value in scores.compute().items()}


@given(rows_v2)
@example([("", []), ("x", []), ("", ["x"]), ("the", ["a"]), ("", ["the", "x"])])
def test_scores_are_those_of_version_2(rows: list[tuple[str, list[str]]]) -> None:
    each = [official(found, golds, 2) for found, golds in rows]
    exact, f1 = (sum(values) / len(rows) for values in zip(*each, strict=True))
    assert scored(rows, none=True) == {"f1": pytest.approx(f1), "exact_match": pytest.approx(exact)}


@given(rows_v1)
@example([("the", ["a"]), ("", ["the"]), ("x", ["the", "x 2"])])
def test_scores_are_those_of_version_1(rows: list[tuple[str, list[str]]]) -> None:
    each = [official(found, golds, 1) for found, golds in rows]
    exact, f1 = (sum(values) / len(rows) for values in zip(*each, strict=True))
    found = scored(rows, none=False)
    assert found == {"f1": pytest.approx(f1), "exact_match": pytest.approx(exact)}
    if not all(official_words(gold) for _, golds in rows for gold in golds):
        return  # torchmetrics counts an answer of articles as version 2 does
    oracle = SQuAD()
    for number, (text, golds) in enumerate(rows):
        answers: Any = {"text": golds, "answer_start": [0] * len(golds)}
        oracle.update([{"prediction_text": text, "id": str(number)}], [{"answers": answers, "id": str(number)}])
    theirs = {name: float(value) / 100 for name, value in oracle.compute().items()}
    assert found == {name: pytest.approx(value) for name, value in theirs.items()}


def test_words_are_normalised_as_in_the_scripts() -> None:
    assert normalised("An  answer, theatre -- The A-team's") == "answer theatre ateams"


def test_a_row_without_an_answer_counts_only_if_none_is_predicted() -> None:
    assert scored([("", []), ("x", [])], none=True) == {"f1": 0.5, "exact_match": 0.5}


def test_parts_of_a_split_add_up() -> None:
    whole, parts = make_metrics("question-answering", None), make_metrics("question-answering", None)
    found, right = ["x", "the x 2", "", "y"], [("x",), ("x",), (), ("z", "y 2")]
    whole.update(found, right)
    for text, golds in zip(found, right, strict=True):
        parts.update([text], [golds])
    assert {*whole.compute()} == {"f1", "exact_match"}
    assert whole.compute() == parts.compute()


def by_hand(outputs: Tensor, places: Tensor, longest: int, threshold: float | None) -> tuple[int, int, float, float]:
    """Return first and last token, its probability and that of no answer, by trying everything in one row."""
    parts: dict[tuple[int, int], float] = {}
    none = math.inf
    for window, own in zip(outputs.tolist(), places.tolist(), strict=True):
        for i, place in enumerate(own):
            if place == NO_ANSWER:
                none = min(none, window[i][0] + window[i][1])
            for j in range(i, min(i + longest, len(own))):
                if place >= 0 and own[j] >= 0:
                    score = window[i][0] + window[j][1]
                    parts[place, own[j]] = max(score, parts.get((place, own[j]), -math.inf))
    best = max(parts, key=parts.__getitem__)
    scores = [*parts.values(), *([] if threshold is None else [none])]
    total = math.log(sum(math.exp(score) for score in scores))
    share = 0.0 if threshold is None else math.exp(none - total)
    if threshold is not None and none - parts[best] > threshold:
        return -1, -1, share, share
    return *best, math.exp(parts[best] - total), share


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([None, 0.0, 1.0, -2.0]),
    st.integers(0, 2**31),
)
@example([1], 1, 0, None, 0)
@example([1], 30, 0, 0.0, 0)
def test_the_best_answer_is_that_of_trying_all(
    lengths: list[int], longest: int, overlap: int, threshold: float | None, seed: int
) -> None:
    """Rows of different numbers of windows, which overlap; the row alone and in a batch."""
    draw = torch.Generator().manual_seed(seed)
    room = 3 + overlap
    each = []
    for num_tokens in lengths:
        starts = [0, *range(3, num_tokens - room + 3, 3)] if num_tokens > room else [0]
        windows = [[NO_ANSWER, -1, *range(start, min(start + room, num_tokens)), -1] for start in starts]
        each.append(windows)
    num_windows, width = max(map(len, each)), max(len(window) for windows in each for window in windows)
    places = torch.full((len(each), num_windows, width), -1)
    outputs = torch.full((len(each), num_windows, width, 2), -math.inf)
    for row, windows in enumerate(each):
        for number, window in enumerate(windows):
            places[row, number, : len(window)] = torch.tensor(window)
            outputs[row, number, : len(window)] = 2 * torch.randn(len(window), 2, generator=draw)
    found = best_spans(outputs, places, longest, threshold)
    for row in range(len(each)):
        first, last, share, none = by_hand(outputs[row], places[row], longest, threshold)
        assert found[row, :4].tolist() == pytest.approx([first, last, share, none], abs=1e-5)
        alone = best_spans(outputs[row : row + 1], places[row : row + 1], longest, threshold)
        torch.testing.assert_close(alone[0], found[row])


def test_the_margin_is_the_distance_to_another_answer() -> None:
    places = torch.tensor([[[NO_ANSWER, 0, 1]]])
    outputs = torch.tensor([[[[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]]]])  # parts: 3, 4, 1; no answer: 0
    margins = {
        threshold: float(best_spans(outputs, places, 2, threshold)[0, 4]) for threshold in (None, 0.0, -4.5, -3.5)
    }
    assert margins == {None: 1.0, 0.0: 1.0, -4.5: 0.5, -3.5: 0.5}
    assert best_spans(outputs, places, 2, -4.5)[0, :2].tolist() == [-1.0, -1.0]


def test_loss_leaves_missing_windows_out() -> None:
    outputs = torch.randn(2, 3, 5, 2, requires_grad=True)
    labels = torch.tensor([[[0, 1], [4, 4], [IGNORED, IGNORED]], [[2, 3], [IGNORED, IGNORED], [IGNORED, IGNORED]]])
    masked = outputs.masked_fill((labels[..., :1] == IGNORED)[..., None], -math.inf)
    loss = SpanHead("question-answering", 4, 2, 0.0).loss(masked, labels)
    kept = labels[..., 0] != IGNORED
    first, last = (F.cross_entropy(outputs[kept][..., n], labels[kept][..., n]) for n in (0, 1))
    torch.testing.assert_close(loss, (first + last) / 2)
    (gradient,) = torch.autograd.grad(loss, [outputs])
    assert gradient.isfinite().all()
    assert (gradient[~kept] == 0).all()


def test_a_metric_of_ones_own_gets_texts_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    given_to: list[object] = []

    def metric(predictions: list[str], references: list[list[str]]) -> float:
        given_to.extend((predictions, references))
        return 1.0

    monkeypatch.setattr("continual_petl.heads.task_metrics.function_of", lambda name, code: metric)
    own = OwnMetric(find_kind("question-answering"), None, "m.f", "0")
    own.update(["x", ""], [("x", "y"), ()])
    own.compute()
    assert given_to == [["x", ""], [["x", "y"], []]]

"""The metrics of TRACE agree with reimplementations of the functions that its reference code calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.heads.trace_metrics import Sari
from continual_petl.learner.metrics import make_metrics

TEXTS = st.text("ab <>_:STRLI,.&", max_size=14)


def found(metric: str, texts: list[str], references: list[str], sources: list[str] | None = None) -> float:
    """Return a score, after checking that it is the same in one batch and in several."""
    whole, parts = make_metrics("causal-lm", None, metric), make_metrics("causal-lm", None, metric)
    whole.update(texts, references, sources=sources)
    for row, (text, reference) in enumerate(zip(texts, references, strict=True)):
        parts.update([text], [reference], sources=None if sources is None else [sources[row]])
    value = float(whole.compute()[metric])
    assert float(parts.compute()[metric]) == pytest.approx(value, abs=1e-6)
    return value


def matched(one: str, other: str) -> int:
    """Return the number of characters in matching blocks: the first of the longest, and recursively those beside it."""
    best = (0, 0, 0)
    for i in range(len(one)):
        for j in range(len(other)):
            size = 0
            while i + size < len(one) and j + size < len(other) and one[i + size] == other[j + size]:
                size += 1
            best = max(best, (size, -i, -j))
    size, i, j = best[0], -best[1], -best[2]
    return size and size + matched(one[:i], other[:j]) + matched(one[i + size :], other[j + size :])


@settings(max_examples=40)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_edit_similarity_is_the_ratio_of_matching_blocks(rows: list[tuple[str, str]]) -> None:
    plain = [(one, other) for one, other in rows if "_LIT" not in one + other]
    percent = [
        round(200 * matched(one, other) / (len(one) + len(other))) if one and other else 0 for one, other in plain
    ]
    if plain:
        texts, references = ([*each] for each in zip(*plain, strict=True))
        assert found("edit_similarity", texts, references) == pytest.approx(sum(percent) / 100 / len(plain), abs=1e-6)


def test_placeholders_of_literals_count_as_what_they_hold() -> None:
    text, reference = "f(<STR_LIT:utf-8>, <NUM_LIT>, <CHAR_LIT>)", "f(utf-8, 0, <STR_LIT>)"
    assert found("edit_similarity", [text, "", "abcd"], [reference, "", "abxd"]) == pytest.approx((1 + 0 + 0.75) / 3)


def test_only_the_first_character_of_a_choice_counts() -> None:
    texts = ["A\nBecause", " B", "b", "", "C"]
    assert found("choice_match", texts, ["A", "B Because", "B", "", " "]) == pytest.approx(2 / 5)


def sari(source: str, text: str, reference: str) -> float:
    """Return SARI computed as its authors define it, from n-grams of words separated by spaces."""
    parts = []
    for size in range(1, 5):
        three = map(words, (source, text, reference))
        s, o, r = (Counter(tuple(own[i : i + size]) for i in range(len(own) - size + 1)) for own in three)
        kept = {gram: min(s[gram], o[gram]) for gram in s if gram in o}
        keepable = {gram: min(s[gram], r[gram]) for gram in s if gram in r}
        good = {gram: min(count, r[gram]) for gram, count in kept.items() if gram in r}
        precision = sum(good[gram] / kept[gram] for gram in good) / len(kept) if kept else 1
        recall = sum(good.values()) / sum(keepable.values()) if keepable else 1
        keep = harmonic(precision, recall)
        deleted = {gram: s[gram] - o[gram] for gram in s if s[gram] > o[gram]}
        rightly = {gram: count - r[gram] for gram, count in deleted.items() if count > r[gram]}
        delete = sum(rightly[gram] / deleted[gram] for gram in rightly) / len(deleted) if deleted else 1
        added, wanted = {*o} - {*s}, {*r} - {*s}
        hit = len(added & wanted)
        add = harmonic(hit / len(added) if added else 1, hit / len(wanted) if wanted else 1)
        parts.append((keep + delete + add) / 3)
    return sum(parts) / 4


def words(text: str) -> list[str]:
    return text.lower().split() or [""]


def harmonic(one: float, other: float) -> float:
    return 2 / (1 / one + 1 / other) if one and other else 0


@pytest.mark.parametrize("seed", range(20))
def test_sari_agrees_with_its_definition(seed: int) -> None:
    draw = random.Random(seed)
    rows = [[" ".join(draw.choices("aBcd", k=draw.randrange(9))) for _ in range(3)] for _ in range(3)]
    sources, texts, references = ([*each] for each in zip(*rows, strict=True))
    expected = sum(sari(*row) for row in rows) / len(rows)
    assert found("sari", texts, references, sources) == pytest.approx(expected, abs=1e-6)


def test_sari_compares_lower_case_tokens_of_sacrebleu() -> None:
    source = "About 95 species are currently accepted &amp; known."
    assert found("sari", [source], [source], [source]) == 1
    expected = sari("about 95 species are currently accepted & known .", "about 95 , you now get in .", "95 are known")
    assert found("sari", ["About 95, you now get in."], ["95 are known"], [source]) == pytest.approx(expected, abs=1e-6)


def test_sari_needs_sources_and_adds_up_over_processes() -> None:
    with pytest.raises(TypeError, match="give sources="):
        Sari().update(["a"], ["a"])
    assert Sari()._reductions.keys() == {"total", "num_texts"}
    assert all(reduce(torch.tensor([1, 2])) == 3 for reduce in Sari()._reductions.values() if callable(reduce))

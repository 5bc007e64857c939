"""The metrics of TRACE (Wang et al. 2023) that torchmetrics does not have: edit similarity, SARI and choice match.

Each is a mean over rows, in [0, 1]. The reference code is ``metrics.py`` and ``evaluations/`` in
https://github.com/BeyonderXX/TRACE (commits 5026735, f0c95cf and f896365), where scores range from 0 to 100.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.text.sacre_bleu import _SacreBLEUTokenizer

_MOST = 4
"""Length of the longest n-grams of SARI."""
_NAMELESS = (("<NUM_LIT>", "0"), ("<STR_LIT>", ""), ("<CHAR_LIT>", ""))
_NAMED = re.compile("<(?:STR|NUM|CHAR)_LIT:(.*?)>", re.DOTALL)


class _MeanOverRows(Metric):
    """The mean of a score over rows."""

    total: Tensor
    num_texts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("num_texts", torch.tensor(0), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the mean, a float32 scalar in [0, 1]."""
        return self.total / self.num_texts


class _MeanOverTexts(_MeanOverRows):
    def update(self, preds: Sequence[str], target: Sequence[str]) -> None:
        """Score the texts of a batch, with one reference for each."""
        self.total += sum(self.score(text, reference) for text, reference in zip(preds, target, strict=True))
        self.num_texts += len(preds)

    @staticmethod
    @abstractmethod
    def score(text: str, reference: str) -> float:
        """Return the score of one text, in [0, 1]."""


class EditSimilarity(_MeanOverTexts):
    """Mean of fuzzywuzzy's ``ratio``, which TRACE reports for Py150: 2 M / T, rounded to whole percent.

    M is the number of characters in the matching blocks that `difflib.SequenceMatcher` finds, T the number in both texts. A
    row with an empty text scores 0. As in CodeXGLUE, placeholders (``<STR_LIT:utf-8>``) are replaced with their literals.

    fuzzywuzzy computes a different ratio if the package python-Levenshtein is installed, which TRACE does not require.
    """

    @staticmethod
    def score(text: str, reference: str) -> float:
        """Return the similarity of a text and its reference."""
        text, reference = _literals(text), _literals(reference)
        if not text or not reference:
            return 0.0
        return round(100 * SequenceMatcher(None, text, reference).ratio()) / 100


class ChoiceMatch(_MeanOverTexts):
    """Share of texts that begin with the same character as their reference, ignoring leading white space.

    Meant for references that start with the letter of a choice, followed by an explanation, as in TRACE's ScienceQA.
    """

    @staticmethod
    def score(text: str, reference: str) -> float:
        """Return 1 for an equal first character, otherwise 0; 0 if a text is blank."""
        first = reference.strip()[:1]
        return float(first != "" and text.strip()[:1] == first)


class Sari(_MeanOverRows):
    """SARI (Xu et al. 2016, https://aclanthology.org/Q16-1029): how well a text keeps, deletes and adds words of its source.

    The mean of the F1 of kept n-grams, the precision of deleted ones and the F1 of added ones, each a mean over n-grams of 1
    to 4 words, with 0 / 0 = 1. This is `sari` of Hugging Face's `evaluate` (metrics/sari/sari.py, commit 68a4b0d) with one
    reference, which TRACE reports for 20Minuten: lower case, and sacreBLEU's 13a tokens.
    """

    def update(self, preds: Sequence[str], target: Sequence[str], sources: Sequence[str] | None = None) -> None:
        """Score the texts of a batch, with one reference and one source for each.

        Raises:
            TypeError: without sources.
        """
        if sources is None:
            raise TypeError("sari compares texts with their sources, too: give sources=")
        self.total += sum(_sari(*row) for row in zip(sources, preds, target, strict=True))
        self.num_texts += len(preds)


def _literals(text: str) -> str:
    for placeholder, value in _NAMELESS:
        text = text.replace(placeholder, value)
    return _NAMED.sub(r"\1", text)


def _sari(source: str, text: str, reference: str) -> float:
    grams = [_grams(words) for words in (source, text, reference)]
    return sum(_sari_of_length(*(counts[length] for counts in grams)) for length in range(_MOST)) / _MOST


def _grams(text: str) -> list[Counter[tuple[str, ...]]]:
    """Return how often each n-gram occurs, by length."""
    # A text without words has one empty word, as in the reference code.
    words = _SacreBLEUTokenizer.tokenize(text.lower(), "13a") or [""]
    return [Counter(zip(*(words[first:] for first in range(size)), strict=False)) for size in range(1, _MOST + 1)]


def _sari_of_length(
    source: Counter[tuple[str, ...]], text: Counter[tuple[str, ...]], reference: Counter[tuple[str, ...]]
) -> float:
    kept, keepable, deleted = source & text, source & reference, source - text
    good = kept & reference
    # In the precisions, a kept or deleted n-gram counts once, however often it occurs; in this recall, it counts each time.
    keep = _f1(_share(good, kept), _ratio(good.total(), keepable.total()))
    added, addable = text.keys() - source.keys(), reference.keys() - source.keys()
    right = len(added & reference.keys())
    add = _f1(_ratio(right, len(added)), _ratio(right, len(addable)))
    return (keep + _share(deleted - reference, deleted) + add) / 3


def _share(good: Counter[tuple[str, ...]], all_of_them: Counter[tuple[str, ...]]) -> float:
    return _ratio(sum(count / all_of_them[gram] for gram, count in good.items()), len(all_of_them))


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 1.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision or recall else 0.0

"""A head that finds the part of a text that answers a question; how the best part is chosen, and scored as in SQuAD.

The scores are those of the official scripts: version 1.1 where every row has an answer (Rajpurkar et al. 2016), version 2.0
where rows may have none (Rajpurkar et al. 2018), in [0, 1].

Shape legend: B rows, K windows of the row with the most, W tokens of the longest window, T tokens of the longest context, L
tokens of the longest answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from continual_petl.heads.linear import LinearHead
from continual_petl.kind import IGNORED, NO_ANSWER


class SpanHead(LinearHead):
    """Gives each token a number as the start, and one as the end, of the answer.

    Shape:
        ``(S, W, D)`` to ``(S, W, 2)``; the outputs of rows are ``(B, K, W, 2)``, -inf for padding and missing windows.
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of the cross-entropies of starts and ends over all windows, as ``BertForQuestionAnswering``.

        Args:
            outputs: of rows.
            labels: the tokens where the answer starts and ends in each window, ``(B, K, 2)``; -100 for missing windows.
        """
        there_BK = labels[..., 0] != IGNORED
        starts_SW, ends_SW = outputs[there_BK].unbind(-1)
        starts_S, ends_S = labels[there_BK].unbind(-1)
        return (F.cross_entropy(starts_SW, starts_S) + F.cross_entropy(ends_SW, ends_S)) / 2

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the first and the last token of each answer ``(B, 2)`` from what `best_spans` returns; -1 for no answer."""
        return outputs[:, :2].long()


def best_spans(outputs: Tensor, places: Tensor, longest: int, threshold: float | None) -> Tensor:
    """Return the best answer to each row.

    The score of a part of the context is the sum of its start's and its end's number, in the window where that is largest.
    The score of no answer is the sum of both numbers of the `NO_ANSWER` token, in the window where that is smallest.

    Args:
        outputs: of rows, ``(B, K, W, 2)``.
        places: which token of the context each token is, ``(B, K, W)``; `NO_ANSWER`, or -1 for all others.
        longest: the most tokens of an answer.
        threshold: there is no answer if its score exceeds the best part's by more than this; None: there is always one.

    Returns:
        ``(B, 5)`` float32: first and last token of the answer in the context, -1 if there is none; its probability, which is
        the softmax of the scores of all parts and of no answer; the probability of no answer, 0 if there always is one; by
        how much the scores would have to differ for another answer.
    """
    starts_BKW, ends_BKW = outputs.detach().float().unbind(-1)
    num_tokens = int(places.max()) + 1
    longest = min(longest, num_tokens)
    inside_BKW, outside = places >= 0, -float("inf")
    ends_BKWL = F.pad(ends_BKW.masked_fill(~inside_BKW, outside), (0, longest - 1), value=outside).unfold(
        -1, longest, 1
    )
    scores_BKWL = starts_BKW.masked_fill(~inside_BKW, outside)[..., None] + ends_BKWL
    best_BTL = scores_BKWL.new_full((len(outputs), num_tokens, longest), outside)
    index = places.clamp(min=0).flatten(1)[..., None].expand(-1, -1, longest)
    best_BTL.scatter_reduce_(1, index, scores_BKWL.flatten(1, 2), "amax")
    parts = best_BTL.flatten(1)
    two = parts.topk(min(2, parts.shape[1]), dim=-1)
    best, place = two.values[:, 0], two.indices[:, 0]
    margin = best - two.values[:, 1] if two.values.shape[1] > 1 else torch.full_like(best, float("inf"))
    first = (place // longest).float()
    last = first + place % longest
    if threshold is None:
        share = (best - parts.logsumexp(-1)).exp()
        return torch.stack([first, last, share, torch.zeros_like(share), margin], dim=-1)
    none = (starts_BKW + ends_BKW).masked_fill(places != NO_ANSWER, float("inf")).amin((-2, -1))
    total = torch.logaddexp(parts.logsumexp(-1), none)
    excess = none - best - threshold
    is_none = excess > 0
    return torch.stack(
        [
            first.masked_fill(is_none, -1.0),
            last.masked_fill(is_none, -1.0),
            (torch.where(is_none, none, best) - total).exp(),
            (none - total).exp(),
            torch.where(is_none, excess, torch.minimum(-excess, margin)),
        ],
        dim=-1,
    )


class SpanScores(Metric):
    """Exact match and F1 of words, mean over rows; for a row with several right answers, the best score.

    A row without an answer scores 1 if none is predicted, and else 0.
    """

    rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, preds: Sequence[str], target: Sequence[Sequence[str]]) -> None:
        """Add the rows of a batch.

        Args:
            preds: the predicted texts; empty for no answer.
            target: the right answers to each row, from `compared`.
        """
        of_rows = []
        for predicted, right in zip(preds, target, strict=True):
            words = normalised(predicted).split()
            scores = [(float(words == own), _f1(words, own)) for own in (normalised(text).split() for text in right)]
            exact, f1 = zip(*scores, strict=True) if scores else ((float(not words),), (float(not words),))
            of_rows.append((max(exact), max(f1)))
        self.rows.append(torch.tensor(of_rows, device=self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return both means, float32 scalars."""
        exact, f1 = dim_zero_cat(self.rows).cpu().double().mean(0).float()
        return {"f1": f1, "exact_match": exact}


def _f1(found: list[str], right: list[str]) -> float:
    common = (Counter(found) & Counter(right)).total()
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)


def compared(texts: Sequence[str], *, none: bool) -> tuple[str, ...]:
    """Return the right answers that predictions are compared with.

    Args:
        texts: all right answers to a row.
        none: whether rows may have no answer; then, as in version 2.0, answers that consist of articles and punctuation do
            not count.
    """
    return tuple(text for text in texts if not none or normalised(text))


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and superfluous white space, as in the official scripts.

    Example:
        >>> normalised("The  U.S. -- an Answer")
        'us answer'
    """
    plain = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

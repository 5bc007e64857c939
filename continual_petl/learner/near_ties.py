"""Finds the generated texts that rounding could decide: at one of their tokens, the two best scores are nearly equal.

Shape suffixes: B rows, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor

from continual_petl.heads.predictions import ROUNDING
from continual_petl.learner.sampling import Sampler

Precision = Literal["fp32", "bf16"]
_PLACES: Mapping[Precision, int] = {"fp32": 21, "bf16": 8}
"""Binary places of a token's score; in float32, the last three are lost in the layers of a backbone."""


class NearTies(LogitsProcessor):
    """Notes at every step which rows could get another token: without beams, one after the other.

    Args:
        precision: precision of the backbone.
        penalty: the repetition penalty, by which scores were multiplied or divided.
        sampler: draws the token; None if it is the one with the highest score.
    """

    def __init__(self, precision: Precision, penalty: float, sampler: Sampler | None = None) -> None:
        self._precision, self._factor, self._sampler = precision, max(penalty, 1 / penalty), sampler
        self._near: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, or those of the sampler."""
        if self._sampler is None:
            self._near.append(nearly_tied(scores, self._precision, self._factor))
            return scores
        sampled = self._sampler(input_ids, scores)
        self._near.append(self._sampler.near(rounding(scores, self._precision, self._factor)))
        return sampled

    def of_rows(self, num_tokens: Sequence[int]) -> list[bool]:
        """Return for each row whether one of its first tokens was nearly another one.

        Args:
            num_tokens: how many tokens were chosen for each row; further ones only fill up the batch.
        """
        near_TB = torch.stack(self._near).cpu()
        return [bool(near_TB[:count, row].any()) for row, count in enumerate(num_tokens)]


def nearly_tied(scores_BV: Tensor, precision: Precision, factor: float = 1.0) -> Tensor:
    """Return for each row whether rounding could exchange the two tokens with the highest scores, bool ``(B,)``.

    Args:
        scores_BV: the scores, float32.
        precision: precision of the backbone.
        factor: by how much rounding is enlarged.

    Example:
        >>> nearly_tied(torch.tensor([[20.0, 19.75, 1.0], [20.0, 19.5, 1.0]]), "bf16")
        tensor([ True, False])
    """
    best_B, second_B = scores_BV.topk(2, dim=-1).values.unbind(-1)
    return best_B - second_B <= rounding(scores_BV, precision, factor)


def rounding(scores_BV: Tensor, precision: Precision, factor: float = 1.0) -> Tensor:
    """Return by how much rounding could change the difference of two scores of a row, ``(B,)``; see `nearly_tied`.

    The language-modelling head rounds each score to the precision of the backbone, so that each may be off by one unit in
    the last place, besides the differences of `ROUNDING`.
    """
    unit_B = (scores_BV.amax(-1).abs().frexp().exponent - _PLACES[precision]).exp2()
    return factor * (ROUNDING[precision] + 2 * unit_B)

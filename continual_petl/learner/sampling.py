"""Sampling and stop strings, such that the text of a row does not depend on the other rows of its batch.

Sampling from softmax(z) is the argmax of z + g, with Gumbel noise g (Gumbel 1954; Maddison et al. 2014,
https://arxiv.org/abs/1411.0030). So the sample is the token with the highest score after noise is added, and the noise of
each row comes from its own generator, seeded by the task's seed and the tokens of the row's source. transformers samples
with one generator for a whole batch.

Shape suffixes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from continual_petl.streams.schema.stream_spec import GenerationSpec

_BEYOND = 4
"""Number of tokens to decode for each character of the longest stop string, and for one more character: each may take four
byte-level tokens."""


class Sampler(LogitsProcessor):
    """Add noise to the scores, for each row on its own, after temperature, top-k (Fan et al. 2018) and top-p (Holtzman et
    al. 2020).

    Args:
        spec: provides temperature, top_k and top_p.
        seed: seed of the task.
        ids_BT: tokens of the sources.
        mask_BT: 0 at padding, which must not change the sample.
    """

    def __init__(self, spec: GenerationSpec, seed: int, ids_BT: Tensor, mask_BT: Tensor) -> None:
        self._spec, self._warpers = spec, list[LogitsProcessor]()
        if spec.temperature != 1.0:
            self._warpers.append(TemperatureLogitsWarper(spec.temperature))
        if spec.top_k:
            self._warpers.append(TopKLogitsWarper(spec.top_k))
        if spec.top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(spec.top_p))
        rows = [row[mask == 1].tolist() for row, mask in zip(ids_BT.cpu(), mask_BT.cpu(), strict=True)]
        self._generators = [torch.Generator().manual_seed(_seed_of(seed, row)) for row in rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with noise added; the argmax is the sample."""
        scores_BV = self._given = scores.float()
        for warper in self._warpers:
            scores_BV = warper(input_ids, scores_BV)
        width = scores_BV.shape[-1]
        noise_BV = torch.stack(
            [-torch.empty(width).exponential_(generator=generator).log() for generator in self._generators]
        )
        self._noise = noise_BV.to(scores_BV.device)
        return scores_BV + self._noise

    def near_ties(self, rounding_B: Tensor) -> Tensor:
        """Return for each row whether its last sample could be another token, bool ``(B,)``.

        Args:
            rounding_B: by how much rounding may change the difference of two scores.
        """
        scores_BV, rounding_B1 = self._given / self._spec.temperature, rounding_B[:, None] / self._spec.temperature
        surely_BV, perhaps_BV = kept(scores_BV, rounding_B1, self._spec.top_k, self._spec.top_p)
        noisy_BV = (scores_BV + self._noise).masked_fill(~perhaps_BV, -torch.inf)
        best_B2, token_B2 = noisy_BV.topk(2, dim=-1)
        return (best_B2[:, 0] - best_B2[:, 1] <= rounding_B1[:, 0]) | ~surely_BV.gather(1, token_B2[:, :1])[:, 0]


def kept(scores_BV: Tensor, rounding_B1: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the tokens that top-k and top-p keep however scores are rounded, and those that they keep in some case.

    If no difference of two scores changes by more than r, the odds of a set of tokens change by at most a factor exp(r).
    top-p keeps a token if the tokens with higher scores have a probability below p.

    Args:
        scores_BV: the scores, divided by the temperature.
        rounding_B1: by how much rounding may change the difference of two of them.
        top_k: 0 for no limit.
        top_p: 1 for no limit.

    Shape:
        bool ``(B, V)`` both.
    """
    sorted_BV, order_BV = scores_BV.double().sort(dim=-1, descending=True)
    surely_BV = perhaps_BV = sorted_BV > -torch.inf
    if 0 < top_k < sorted_BV.shape[1]:
        surely_BV = surely_BV & (sorted_BV > sorted_BV[:, top_k, None] + rounding_B1)
        perhaps_BV = perhaps_BV & (sorted_BV >= sorted_BV[:, top_k - 1, None] - rounding_B1)
    if top_p < 1:
        weight_BV = (sorted_BV - sorted_BV[:, :1]).exp()
        # Sums over the tokens before each place; a token's own place counts those that are higher even after rounding (few),
        # or may be (many).
        surely_BP, perhaps_BP = (
            torch.nn.functional.pad((weight_BV * mask_BV).cumsum(-1), (1, 0)) for mask_BV in (surely_BV, perhaps_BV)
        )
        few_BV = torch.searchsorted(-sorted_BV, -(sorted_BV + rounding_B1))
        many_BV = torch.searchsorted(-sorted_BV, -(sorted_BV - rounding_B1), right=True)
        least_BV, rest_BV = surely_BP.gather(1, few_BV), perhaps_BP[:, -1:] - perhaps_BP.gather(1, few_BV)
        most_BV = perhaps_BP.gather(1, many_BV) - weight_BV
        others_BV = (surely_BP[:, -1:] - surely_BP.gather(1, many_BV)).clamp(min=0) + weight_BV
        odds, factor_B1 = top_p / (1 - top_p), rounding_B1.exp()
        surely_BV = surely_BV & (most_BV * factor_B1 < odds * others_BV)
        perhaps_BV = perhaps_BV & (least_BV < odds * rest_BV * factor_B1)
    places_BV = order_BV.argsort(-1)
    return surely_BV.gather(1, places_BV), perhaps_BV.gather(1, places_BV)


def _seed_of(seed: int, ids: Sequence[int]) -> int:
    digest = hashlib.sha256(f"{seed}:{','.join(map(str, ids))}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Stops(StoppingCriteria):
    """End generation for a row when its text contains a stop string.

    Args:
        tokenizer: converts tokens to text.
        stop: the stop strings.
        given: number of tokens before the generated text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], given: int) -> None:
        self._tokenizer, self._stop, self._given = tokenizer, stop, given
        self._looked_at = _BEYOND * (max(map(len, stop)) + 1)

    def __call__(self, input_ids: Tensor, scores: Tensor, **more: object) -> Tensor:
        """Return whether each row has ended, bool ``(B,)``."""
        ended = [self._ends(row) for row in input_ids[:, self._given :].tolist()]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def cut(self, ids: list[int]) -> list[int]:
        """Return generated tokens up to the one that completes a stop string; a row continues until all rows have ended."""
        return next((ids[:number] for number in range(1, len(ids)) if self._ends(ids[:number])), ids)

    def _ends(self, ids: list[int]) -> bool:
        text = self._tokenizer.decode(ids[-self._looked_at :], skip_special_tokens=True)
        return any(string in text for string in self._stop)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the part of a text before the first stop string.

    Example:
        >>> before_stop("42. Because", [".", "Because"])
        '42'
    """
    return text[: min((position for string in stop if (position := text.find(string)) >= 0), default=len(text))]

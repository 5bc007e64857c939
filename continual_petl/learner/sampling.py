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
        self._warpers: list[LogitsProcessor] = []
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
        scores_BV = scores.float()
        for warper in self._warpers:
            scores_BV = warper(input_ids, scores_BV)
        width = scores_BV.shape[-1]
        noise_BV = torch.stack([-torch.empty(width).exponential_(generator=each).log() for each in self._generators])
        return scores_BV + noise_BV.to(scores_BV.device)


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
        return any(each in text for each in self._stop)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the part of a text before the first stop string.

    Example:
        >>> before_stop("42. Because", [".", "Because"])
        '42'
    """
    return text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]

"""Drawing tokens, and ending at a text, so that a row has the same answer whatever rows are beside it.

To draw from softmax(z) is to take the largest of z + g, with Gumbel noise g (Gumbel 1954; Maddison et al. 2014,
https://arxiv.org/abs/1411.0030). So what is drawn is the likeliest token after noise was added, and the noise of a row comes
from a generator of its own: its seed is made of the task's seed and the tokens of the row's source. The sampling of
transformers takes one generator for a whole batch.

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
    TopPLogitsWarper,
)

from continual_petl.streams.schema.stream_spec import GenerationSpec

_BEYOND = 4
"""Tokens looked at for each character of a stop text, and in addition: a byte-level tokenizer may need four for one."""


class Sampler(LogitsProcessor):
    """Add each row's noise to its scores, after temperature and nucleus (Holtzman et al. 2020).

    Args:
        spec: says both.
        seed: of the task.
        ids_BT: tokens of the sources.
        mask_BT: 0 where a row is filled up, which must not change what is drawn for it.
    """

    def __init__(self, spec: GenerationSpec, seed: int, ids_BT: Tensor, mask_BT: Tensor) -> None:
        self._warpers: list[LogitsProcessor] = []
        if spec.temperature != 1.0:
            self._warpers.append(TemperatureLogitsWarper(spec.temperature))
        if spec.top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(spec.top_p))
        rows = [row[mask == 1].tolist() for row, mask in zip(ids_BT.cpu(), mask_BT.cpu(), strict=True)]
        self._generators = [torch.Generator().manual_seed(_seed_of(seed, row)) for row in rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with noise added; the token with the largest one is the sample."""
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
    """End a row's answer when its text has one of some texts.

    Args:
        tokenizer: turns tokens into the text.
        stop: the texts.
        given: tokens before the answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], given: int) -> None:
        self._tokenizer, self._stop, self._given = tokenizer, stop, given
        self._looked_at = _BEYOND * (max(map(len, stop)) + 1)

    def __call__(self, input_ids: Tensor, scores: Tensor, **more: object) -> Tensor:
        """Return which rows have ended, ``(B,)``."""
        ended = [self._ends(row) for row in input_ids[:, self._given :].tolist()]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def cut(self, ids: list[int]) -> list[int]:
        """Return an answer's tokens up to the one that completes a stop text: other rows of its batch may have gone on."""
        return next((ids[:number] for number in range(1, len(ids)) if self._ends(ids[:number])), ids)

    def _ends(self, ids: list[int]) -> bool:
        text = self._tokenizer.decode(ids[-self._looked_at :], skip_special_tokens=True)
        return any(each in text for each in self._stop)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return what a text says before the first of some texts.

    Example:
        >>> before_stop("42. Because", [".", "Because"])
        '42'
    """
    return text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]

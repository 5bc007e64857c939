"""Generates token ids with a bank attached to the backbone, and decodes them to text.

`NearTies` finds the texts that rounding could decide: at one of their tokens, the two best scores are nearly equal.

Shape suffixes: B rows, T steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
)

from continual_petl.banks import attach
from continual_petl.heads.predictions import ROUNDING
from continual_petl.learner.sampling import Sampler, Stops, before_stop
from continual_petl.learner.streaming import Pieces, Put
from continual_petl.learner.task_bank import TaskBank, backbone_inputs, start_token
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.schema.stream_spec import GenerationSpec

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
        self._near.append(self._sampler.near_ties(rounding(scores, self._precision, self._factor)))
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


_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("do_sample", "return_dict_in_generate", "renormalize_logits", "remove_invalid_values"), False),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")),
    **dict.fromkeys(("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens", "guidance_scale")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("max_time", "stop_strings", "watermarking_config", "penalty_alpha", "prompt_lookup_num_tokens")),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), 1.0),
    "num_return_sequences": 1,
    "encoder_no_repeat_ngram_size": 0,
    "use_cache": True,
}
"""Neutral values for settings that a checkpoint's generation_config.json may contain for its original task (a summariser's
minimum length, a forced first token, sampling). A bank generates with the settings of its task only: `load_backbone` ignores
the file, and these values override anything set on the model later, which transformers would use as defaults."""

_SEARCH = {"num_beams", "max_new_tokens", "min_new_tokens", "no_repeat_ngram_size", "length_penalty", "early_stopping"}


class Ends(NamedTuple):
    """The tokens of a tokenizer that generation needs."""

    end: int | None
    """Token that ends a text."""
    pad: int
    """Token that pads short rows."""


def ends_of(tokenizer: PreTrainedTokenizerBase, chat: ResolvedChat | None = None) -> Ends:
    """Return the end token of a task's texts and the padding token; a chat template has its own end token."""
    return Ends(tokenizer.eos_token_id if chat is None else chat.end, padding_id(tokenizer))


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How texts are generated, beside the task's own settings."""

    tokenizer: PreTrainedTokenizerBase | Ends | None
    """Has the end token; only tasks that generate text need it, and stop strings and pieces need a full tokenizer."""
    put: Put | None = None
    """Receives the text of a single row in pieces while it is generated, without beams; see `Pieces`."""
    near_ties: list[bool] | None = None
    """If given, it is filled for every row with whether its text was nearly another one; see `NearTies`. With
    beams every text counts in bf16, since beams are compared by sums of scores, in which rounding adds up."""


@torch.no_grad()
def generate(own: TaskBank, batch: dict[str, Tensor], decoding: Decoding) -> list[list[int]]:
    """Return the generated token ids of every row, without the prompt. A row ends before the end token, or with the token
    that completes a stop string; `decode` then removes the stop string.

    Args:
        own: a task that generates text, and its bank, in eval mode.
        batch: sources; left-padded for causal-lm.
        decoding: see `Decoding`.
    """
    backbone, spec, continues = own.backbone, own.plan.generation, own.kind.continues
    tokenizer, near_ties = decoding.tokenizer, decoding.near_ties
    assert spec is not None
    assert tokenizer is not None
    end, pad = tokenizer if isinstance(tokenizer, Ends) else ends_of(tokenizer, own.plan.chat)
    settings = {**_NEUTRAL, **spec.model_dump(include=_SEARCH), "eos_token_id": end, "pad_token_id": pad}
    if spec.min_new_tokens == 0:
        # transformers warns if both are set.
        settings |= {"min_new_tokens": None, "min_length": 0}
    if not continues:
        settings["decoder_start_token_id"] = start_token(backbone)
    # The output starts with the decoder's input: the start token, or the whole source.
    prompt_length = batch["input_ids"].shape[1] if continues else 1
    processors = _processors(spec, prompt_length)
    sampler = Sampler(spec, own.plan.seed, batch["input_ids"], batch["attention_mask"]) if spec.do_sample else None
    ties: NearTies | None = None
    if near_ties is not None and spec.num_beams == 1:
        ties = NearTies(backbone.precision, spec.repetition_penalty, sampler)
    last = ties or sampler
    if processors or last:
        settings |= {"logits_processor": [*processors, last] if last else processors, "no_repeat_ngram_size": 0}
    stops: Stops | None = None
    if spec.stop:
        assert not isinstance(tokenizer, Ends), "stop strings need a full tokenizer"
        stops = Stops(tokenizer, spec.stop, prompt_length)
        settings["stopping_criteria"] = [stops]
    pieces: Pieces | None = None
    if decoding.put is not None:
        assert not isinstance(tokenizer, Ends), "pieces of text need a full tokenizer"
        settings["streamer"] = pieces = Pieces(tokenizer, end, spec.stop, decoding.put)
    ids_BW: Tensor = attach.generate(backbone.model, own.bank, backbone_inputs(backbone, batch), settings)
    generated = ids_BW[:, prompt_length:].tolist()
    rows = [_up_to(row, end) for row in generated]
    if stops is not None:
        rows = [stops.cut(row) for row in rows]
    if near_ties is not None and ties is None:
        near_ties += [backbone.precision == "bf16"] * len(rows)
    if ties is not None and near_ties is not None:
        # The end token is also chosen.
        near_ties += ties.of_rows([min(len(row) + 1, len(whole)) for row, whole in zip(rows, generated, strict=True)])
    if pieces is not None:
        assert not isinstance(tokenizer, Ends)
        pieces.finish(*decode(tokenizer, rows, spec.stop))
    return rows


def _processors(spec: GenerationSpec, prompt_length: int) -> list[LogitsProcessor]:
    """Return the processors of repetitions; ``prompt_length`` is the number of tokens before the generated text."""
    processors: list[LogitsProcessor] = []
    if spec.repetition_penalty != 1.0:
        processors.append(_OfGenerated(RepetitionPenaltyLogitsProcessor(spec.repetition_penalty), prompt_length))
    if spec.no_repeat_ngram_size:
        processors.append(_OfGenerated(NoRepeatNGramLogitsProcessor(spec.no_repeat_ngram_size), prompt_length))
    return processors


def decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], stop: Sequence[str] = ()) -> list[str]:
    """Return the text of each row of token ids, without special tokens, up to the first stop string, and without
    leading or trailing spaces.
    """
    texts = (str(tokenizer.decode(list(row), skip_special_tokens=True)) for row in rows)
    return [before_stop(text, stop).strip() for text in texts]


class _OfGenerated(LogitsProcessor):
    """Apply a processor to the generated tokens only.

    Without this wrapper, transformers applies it to the decoder's input too: a causal-lm could then not repeat words of its
    source, and a start or padding token that is also the end token would keep the generated text from ending.
    """

    def __init__(self, processor: LogitsProcessor, given: int) -> None:
        self._processor = processor
        self._given = given

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores as changed by the processor."""
        changed: Tensor = self._processor(input_ids[:, self._given :], scores)
        return changed


def _up_to(row: list[int], end: int | None) -> list[int]:
    return row[: row.index(end)] if end in row else row

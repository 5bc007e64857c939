"""Generates token ids with a bank attached to the backbone, and decodes them to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
)

from continual_petl.banks import attach
from continual_petl.learner.near_ties import NearTies
from continual_petl.learner.sampling import Sampler, Stops, before_stop
from continual_petl.learner.streaming import Pieces, Put
from continual_petl.learner.task_bank import TaskBank, backbone_inputs, start_token
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.schema.stream_spec import GenerationSpec

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

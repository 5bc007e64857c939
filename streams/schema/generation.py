"""Generation settings of a task that answers with texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from continual_petl._frozen import FrozenModel
from continual_petl.streams.schema.training_spec import Bool, Count, Float, Int

StopText = Annotated[str, Field(strict=True, min_length=1, max_length=100)]


class GenerationSpec(FrozenModel):
    """How answers are generated (seq2seq, causal-lm): searched for, or drawn with ``do_sample``."""

    num_beams: Annotated[Int, Field(ge=1, le=1000)] = 1
    """Number of beams; 1 means greedy search."""
    max_new_tokens: Count = 64
    """Tokens after which an answer is cut."""
    min_new_tokens: Annotated[Int, Field(ge=0)] = 0
    """Tokens before which no answer ends."""
    no_repeat_ngram_size: Annotated[Int, Field(ge=0)] = 0
    """Runs of this many tokens occur at most once in an answer; 0 means no limit."""
    length_penalty: Float = 1.0
    """Exponent of the length by which the score of a beam is divided; above 0 favours longer answers."""
    early_stopping: Bool = False
    """Stop as soon as there are num_beams complete answers, without looking for better ones."""
    do_sample: Bool = False
    """Sample tokens by their probability instead of taking the likeliest. The samples depend on the task's seed and on the
    row's tokens: the same row has the same answer each time, whatever batch it is in."""
    temperature: Annotated[Float, Field(gt=0)] = 1.0
    """For do_sample: logits are divided by it; below 1 favours likely tokens."""
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    """For do_sample: only the likeliest tokens whose probabilities add up to this are drawn."""
    stop: Annotated[tuple[StopText, ...], Field(max_length=16)] = ()
    """Texts that end an answer; neither they nor anything after them is part of it."""

    @model_validator(mode="after")
    def _consistent(self) -> GenerationSpec:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}: make the first "
                "the smaller one"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample draws one answer, and num_beams is {self.num_beams}: remove one of the two")
        for key in () if self.do_sample else ("temperature", "top_p"):
            if getattr(self, key) != 1.0:
                raise ValueError(f"{key} has no effect without do_sample: remove it, or write do_sample: true")
        if self.num_beams == 1:
            for key, idle in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, key) != idle:
                    raise ValueError(f"{key} has no effect with num_beams 1: remove it, or use more beams")
        return self

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Certificates from before these keys existed stay unchanged, byte for byte.
        defaults = {key: type(self).model_fields[key].default for key in ("do_sample", "temperature", "top_p", "stop")}
        return {
            key: value
            for key, value in handler(self).items()
            if key not in defaults or getattr(self, key) != defaults[key]
        }

"""Generation settings of tasks that generate text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.training_spec import Bool, Count, Float, Int

StopText = Annotated[str, Field(strict=True, min_length=1, max_length=100)]


class GenerationSpec(UserSpec):
    """How text is generated (seq2seq, causal-lm): by greedy or beam search, or by sampling with ``do_sample``."""

    num_beams: Annotated[Int, Field(ge=1, le=1000)] = 1
    """Number of beams; 1 means greedy search."""
    max_new_tokens: Count = 64
    """Maximum number of generated tokens."""
    min_new_tokens: Annotated[Int, Field(ge=0)] = 0
    """Minimum number of generated tokens."""
    no_repeat_ngram_size: Annotated[Int, Field(ge=0)] = 0
    """N-grams of this many tokens are generated at most once; 0 means no limit."""
    length_penalty: Float = 1.0
    """A beam's score is divided by its length to this power; above 0 favours longer texts."""
    early_stopping: Bool = False
    """Stop as soon as there are num_beams complete texts, without searching for better ones."""
    do_sample: Bool = False
    """Sample tokens by their probability instead of taking the most likely. The samples depend on the task's seed and on the
    row's tokens: the same row always gets the same text, whatever batch it is in."""
    temperature: Annotated[Float, Field(gt=0)] = 1.0
    """For do_sample: divides the logits; below 1 favours likely tokens."""
    top_p: Annotated[Float, Field(gt=0, le=1)] = 1.0
    """For do_sample: only the most likely tokens whose probabilities add up to this value are sampled."""
    top_k: Annotated[Int, Field(ge=0)] = 0
    """For do_sample: only this many of the most likely tokens are sampled; 0 means no limit."""
    repetition_penalty: Annotated[Float, Field(gt=0)] = 1.0
    """Above 1, makes tokens that the generated text already has less likely; tokens of the source do not count."""
    stop: Annotated[tuple[StopText, ...], Field(max_length=16)] = ()
    """Texts that end the generated text; they are removed, together with anything after them."""

    @model_validator(mode="after")
    def _consistent(self) -> GenerationSpec:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}: the first must not be "
                "larger"
            )
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample samples one text, and num_beams is {self.num_beams}: remove one of the two")
        for key in () if self.do_sample else ("temperature", "top_p", "top_k"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} has no effect without do_sample: remove it, or write do_sample: true")
        if self.num_beams == 1:
            for key, idle in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, key) != idle:
                    raise ValueError(f"{key} has no effect with num_beams 1: remove it, or use more beams")
        return self

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Certificates written before these keys existed must stay unchanged, byte for byte.
        new = ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "stop")
        defaults = {key: type(self).model_fields[key].default for key in new}
        return {
            key: value
            for key, value in handler(self).items()
            if key not in defaults or getattr(self, key) != defaults[key]
        }

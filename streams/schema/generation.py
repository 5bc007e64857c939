"""How a task that answers in texts makes them: what its bank's answers are decoded with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from continual_petl._frozen import FrozenModel
from continual_petl.streams.schema.training_spec import Bool, Count, Float, Int


class GenerationSpec(FrozenModel):
    """How answers are generated (seq2seq, causal-lm); nothing is drawn by chance."""

    num_beams: Annotated[Int, Field(ge=1, le=1000)] = 1
    """Beams of the search; 1 takes the likeliest token each time."""
    max_new_tokens: Count = 64
    """Tokens after which an answer is cut."""
    min_new_tokens: Annotated[Int, Field(ge=0)] = 0
    """Tokens before which no answer ends."""
    no_repeat_ngram_size: Annotated[Int, Field(ge=0)] = 0
    """Runs of so many tokens occur at most once in an answer; 0 allows them."""
    length_penalty: Float = 1.0
    """Exponent of the length by which the score of a beam is divided; above 0 favours longer answers."""
    early_stopping: Bool = False
    """Stop as soon as there are num_beams whole answers, without looking for better ones."""

    @model_validator(mode="after")
    def _consistent(self) -> GenerationSpec:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}: make the first "
                "the smaller one"
            )
        if self.num_beams == 1:
            for key, idle in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, key) != idle:
                    raise ValueError(f"{key} has no effect with num_beams 1: remove it, or use more beams")
        return self

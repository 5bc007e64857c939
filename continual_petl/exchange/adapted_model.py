"""A model with an adapter, as another library computes it with the adapter's files.

What differs between the libraries is how a pass runs with the adapter attached, and which states a class with a head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from continual_petl.backbones.backbone import pool
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import reading_inputs


@dataclass(frozen=True, kw_only=True)
class AdaptedModel:
    """A model with an adapter.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        run: returns the output of the base model, or of the language model of a generative task, for named inputs.
        head: the head's tensors, weight and bias; empty for a generative task.
        reads: returns the states that the head of the model's class reads, from the output of the base model and the model's
            inputs; None if the head is in a file of its own, which is applied to the states that the bank's pooling gives.
        skipped: number of virtual tokens whose states precede those of the text.
    """

    subject: Subject
    run: Callable[[dict[str, Any]], Any]
    head: Mapping[str, Tensor]
    reads: Callable[[Any, Mapping[str, Tensor]], Tensor] | None = None
    skipped: int = 0

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits, without the positions of virtual tokens."""
        if not kind_of(self.subject.plan).generates:
            return self._headed(inputs)[1]
        logits: Tensor = self.run(dict(inputs)).logits
        return logits[:, self.skipped :]

    def output(self, **inputs: Tensor) -> Any:
        """Return the output of the model as the library returns it: with logits, if the model's class has the head."""
        if self.reads is None:
            return self.run(dict(inputs))
        output, logits = self._headed(inputs)
        output.logits = logits
        return output

    def _headed(self, inputs: Mapping[str, Tensor]) -> tuple[Any, Tensor]:
        output = self.run(reading_inputs(self.subject.backbone, dict(inputs)))
        states = SimpleNamespace(**output)
        states.last_hidden_state = output.last_hidden_state[:, self.skipped :]
        read = pooled(self.subject, states, inputs) if self.reads is None else self.reads(states, inputs)
        return output, F.linear(read, self.head["weight"], self.head.get("bias"))


def pooled(subject: Subject, states: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the states that a bank's head reads: those of all tokens, or those that its pooling gives.

    Args:
        subject: the task.
        states: the output of the base model.
        inputs: the inputs of the model, with the attention mask if they are texts.
    """
    if kind_of(subject.plan).per_word:
        states_BWD: Tensor = states.last_hidden_state
        return states_BWD
    return pool(states, inputs.get("attention_mask"), subject.plan.pooling)

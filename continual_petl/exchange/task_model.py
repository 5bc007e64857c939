"""A learned task as a plain `nn.Module`, for a notebook or code that expects one.

Shape suffixes: B rows, W tokens, C outputs, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import INPUTS
from continual_petl.store.bank_cache import CachedBank


class TaskModel(nn.Module):
    """Backbone and bank of one task: tokenised inputs in, logits out. It is frozen and always in eval mode.

    It shares backbone and bank with the run that made it: moving it to another device moves both, and its weights must not be
    changed.

    Args:
        held: a learned bank with its backbone.

    Shape:
        ``(B, C)``; token-classification ``(B, W, C)``; generative tasks ``(B, W, V)``; regression ``(B, 1)`` float64, the
        predicted numbers.

    Example::

        model = run.model("agnews")
        model(**tokenizer(["some text"], return_tensors="pt")).softmax(-1)
    """

    def __init__(self, held: CachedBank) -> None:
        super().__init__()
        self.plan = held.plan
        self._held = held
        self.backbone, self.bank = held.backbone.model, held.bank
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> TaskModel:
        """Stay in eval mode, whatever ``mode`` is: with dropout the outputs would not be the task's."""
        super().train(False)
        return self

    def forward(self, **inputs: Any) -> Tensor:
        """Return the logits, float32, or for regression the predicted numbers, float64.

        Args:
            inputs: what the backbone's tokenizer returns for some rows, padded on the right, or ``pixel_values``. A seq2seq
                task also needs ``labels``, the target ids (B, V), whose logits are returned.

        Raises:
            InputError: if an input is missing or not used, or a row is padded on the left.
        """
        kind = kind_of(self.plan)
        needed = {"pixel_values" if kind.reads_images else "input_ids"}
        needed |= {"labels"} if kind.decodes else set()
        allowed = {*INPUTS, *needed} - ({"input_ids"} if kind.reads_images else {"pixel_values"})
        allowed -= {"position_ids"}  # only for packed rows, which occur only in training
        if not needed <= inputs.keys() <= allowed:
            raise InputError(
                f"inputs of task {self.plan.name!r} ({kind.name}): got {', '.join(inputs) or 'none'}; needed: "
                f"{', '.join(sorted(needed))}; allowed: {', '.join(sorted(allowed))}. Call the model with what the "
                f"backbone's {'image processor' if kind.reads_images else 'tokenizer'} returns."
            )
        mask = inputs.get("attention_mask")
        if mask is not None and bool((mask[..., 1:] > mask[..., :-1]).any()):
            raise InputError(
                f"inputs of task {self.plan.name!r}: attention_mask has a 0 before a 1, as if rows were padded on the left, "
                "where a bank would read padding as text. Pad on the right: tokenizer.padding_side = 'right'."
            )
        with self._held.attending():
            (outputs,) = respond([self._held], inputs)
        return outputs if self.plan.targets is None else self.plan.targets.restored(outputs)

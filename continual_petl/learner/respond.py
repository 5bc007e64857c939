"""What a bank says to a batch, in the form that scores, certificates of scores and predictions take it from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.learner.answer import answer, head_of
from continual_petl.learner.generate import decode, generate
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.encoding.tokenise import TokenisedRows

if TYPE_CHECKING:
    from torchmetrics import MetricCollection  # a second and more to import, and nothing of it is needed to answer

Outputs = Tensor | list[list[int]]
"""Outputs (B, C); for token-classification a tag number for every token (B, W), padding included; for generative tasks the
generated token ids of each row, without the end token."""


def respond(
    backbone: Backbone, bank: Bank, plan: TaskPlan, batch: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase | None
) -> Outputs:
    """Return what a bank says to the rows of a batch.

    Args:
        backbone: what the bank acts on.
        bank: of the task; in eval mode.
        plan: the task.
        batch: an evaluation batch.
        tokenizer: the backbone's; only generative tasks need it.
    """
    if plan.generation is not None:
        assert tokenizer is not None
        return generate(backbone, bank, plan.generation, batch, tokenizer, seed=plan.seed)
    outputs = answer(backbone, bank, plan.pooling, batch)
    return head_of(bank).predictions(outputs) if plan.kind == "token-classification" else outputs


def count(
    scores: MetricCollection,
    bank: Bank,
    said: Outputs,
    labels: Tensor | None,
    references: Sequence[str] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    stop: Sequence[str] = (),
) -> None:
    """Count what a bank said into the scores of its kind of task.

    Args:
        scores: of `make_scores`.
        bank: who said it.
        said: to some rows.
        labels: of these rows; none for generative tasks.
        references: for generative tasks the whole target texts of these rows.
        tokenizer: for generative tasks the backbone's.
        stop: for generative tasks the texts that end an answer.
    """
    if isinstance(said, list):
        assert tokenizer is not None
        assert references is not None
        scores.update(decode(tokenizer, said, stop), list(references))
    elif head_of(bank).kind == "token-classification":
        scores.update(said, labels)
    else:
        scores.update(head_of(bank).predictions(said), labels)


def references_of(plan: TaskPlan, loader: Any, index_B: Tensor) -> list[str]:
    """Return the whole target texts of a batch's rows, which its labels may have cut.

    Args:
        plan: the task.
        loader: what the batch came from; those of `TaskDataModule` know their rows.
        index_B: the numbers of its rows.

    Raises:
        TypeError: if the loader does not know them.
    """
    references = getattr(getattr(loader, "rows", None), "references", None)
    if references is None:
        raise TypeError(
            f"task {plan.name!r}: texts are scored against the references of the rows, which this loader "
            f"({type(loader).__name__}) does not carry: give the loaders of TaskDataModule."
        )
    return [references[row] for row in index_B.tolist()]


def places_of_words(rows: TokenisedRows, number: int) -> Tensor:
    """Return at which tokens of a row its words begin; it is there that a word's tag is read."""
    assert rows.first_piece is not None
    return torch.tensor(rows.first_piece[rows.offsets[number] : rows.offsets[number + 1]]).nonzero().squeeze(-1)

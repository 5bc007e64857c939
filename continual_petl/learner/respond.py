"""Computes a bank's outputs for a batch, in the format used by scores, certificates and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.kind import kind_of
from continual_petl.learner.answer import answer, head_of
from continual_petl.learner.generate import decode, generate
from continual_petl.learner.options import option_scores
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.encoding.rows import Texts
from continual_petl.streams.encoding.tokenise import TokenisedRows

if TYPE_CHECKING:
    from torchmetrics import MetricCollection  # takes over a second to import, and is not needed for predictions

Outputs = Tensor | list[list[int]]
"""Outputs (B, C); for token-classification a tag index for every token (B, W), padding included; for generative tasks the
generated token ids of each row, without the end token; for tasks with options, the scores of the options (B, K); for kinds
that extract, what `Kind.kept` returns."""


def respond(
    backbone: Backbone,
    bank: Bank,
    plan: TaskPlan,
    batch: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    tags: bool = True,
    near_ties: list[bool] | None = None,
) -> Outputs:
    """Return a bank's outputs for the rows of a batch.

    Args:
        backbone: the backbone that the bank acts on.
        bank: the task's bank, in eval mode.
        plan: the task.
        batch: an evaluation batch.
        tokenizer: the backbone's tokenizer; only generative tasks need it.
        tags: whether token-classification returns tag indices; if not, it returns the outputs of every token (B, W, C).
        near_ties: for generated texts, see `generate`.
    """
    if plan.generation is not None:
        assert tokenizer is not None
        return generate(
            backbone, bank, plan.generation, batch, tokenizer, seed=plan.seed, chat=plan.chat, near_ties=near_ties
        )
    if plan.normalise is not None:
        return option_scores(backbone, bank, plan, batch)
    outputs = kind_of(plan).kept(answer(backbone, bank, plan.pooling, batch), batch, plan.kind_settings)
    return head_of(bank).predictions(outputs) if tags and kind_of(plan).per_word else outputs


def count(
    scores: MetricCollection,
    bank: Bank,
    outputs: Outputs,
    labels: Tensor | None,
    texts: Texts | None,
    tokenizer: PreTrainedTokenizerBase | None,
    stop: Sequence[str] = (),
) -> None:
    """Update the scores of a task with a bank's outputs.

    Args:
        scores: from `make_scores`.
        bank: the bank.
        outputs: its outputs for some rows.
        labels: labels of these rows; None for texts.
        texts: for generated and extracted texts, their references and sources.
        tokenizer: for generative tasks, the backbone's tokenizer.
        stop: for generative tasks, the stop strings.
    """
    if isinstance(outputs, list):
        assert tokenizer is not None
        assert texts is not None
        scores.update(decode(tokenizer, outputs, stop), list(texts.references), sources=texts.sources)
    elif texts is not None:
        scores.update(kind_of(head_of(bank)).extracted(outputs.cpu(), texts), list(texts.references))
    elif kind_of(head_of(bank)).per_word:
        scores.update(outputs, labels)
    else:
        scores.update(head_of(bank).predictions(outputs), labels)


def texts_of(plan: TaskPlan, loader: Any, index_B: Tensor) -> Texts:
    """Return the full texts of a batch's rows; the batch itself may contain truncated ones.

    Args:
        plan: the task.
        loader: the loader of the batch; its ``rows`` must hold the texts, as with the loaders of `TaskDataModule`.
        index_B: indices of the rows.

    Raises:
        TypeError: if the loader has no such texts.
    """
    texts = getattr(getattr(loader, "rows", None), "texts", None)
    if texts is None:
        raise TypeError(
            f"task {plan.name!r}: texts are scored against the references of the rows, which this loader "
            f"({type(loader).__name__}) does not have: use the loaders of TaskDataModule."
        )
    assert isinstance(texts, Texts)
    return texts.take(index_B.tolist())


def places_of_words(rows: TokenisedRows, number: int) -> Tensor:
    """Return the token positions where the words of a row start; a word's tag is read there."""
    assert rows.first_piece is not None
    return torch.tensor(rows.first_piece[rows.offsets[number] : rows.offsets[number + 1]]).nonzero().squeeze(-1)

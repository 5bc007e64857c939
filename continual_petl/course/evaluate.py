"""Scores of one bank on one split: every row answered once, scores and their digest made from the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from continual_petl.course.trainers import answering_trainer, quiet
from continual_petl.digests import tensor_digest
from continual_petl.heads.scores import make_scores
from continual_petl.learner import ContinualLearner
from continual_petl.learner.answer import head_of
from continual_petl.store.manifest import SplitScores
from continual_petl.streams.loaders import EvaluationLoader
from continual_petl.streams.tokenise import TokenisedRows


def outputs_of(
    learner: ContinualLearner, rows: TokenisedRows, pad_token_id: int, arguments: Mapping[str, Any], folder: str
) -> Tensor:
    """Return the active bank's outputs, (B, C) float32, in the order of the rows."""
    training = learner.plan.training
    batch_size = training.eval_batch_size or training.batch_size
    loader = EvaluationLoader(rows, batch_size, pad_token_id)
    with quiet():
        trainer = answering_trainer(arguments, folder)
        batches = trainer.predict(learner, dataloaders=loader)
    pairs = cast(list[tuple[Tensor, Tensor]], batches)
    outputs_BC = torch.cat([outputs.cpu() for outputs, _ in pairs])
    order_B = torch.cat([index.cpu() for _, index in pairs])
    return torch.empty_like(outputs_BC).index_copy_(0, order_B, outputs_BC)


def evaluate(
    learner: ContinualLearner, rows: TokenisedRows, pad_token_id: int, arguments: Mapping[str, Any], folder: str
) -> SplitScores:
    """Score the active bank on a split.

    Args:
        learner: with the bank to score active.
        rows: the split.
        pad_token_id: of the backbone's tokenizer.
        arguments: what the stream says under ``trainer``.
        folder: where Lightning may write; it does not.
    """
    outputs_BC = outputs_of(learner, rows, pad_token_id, arguments, folder)
    predictions_B = head_of(learner.active_bank).predictions(outputs_BC)
    scores = make_scores(learner.plan.kind, learner.plan.num_outputs)
    scores.update(predictions_B, torch.tensor(rows.labels))
    values = {name: float(value) for name, value in scores.compute().items()}
    return SplitScores(
        num_examples=len(rows),
        # A correlation of constant predictions is not defined; JSON and the schema know no NaN.
        scores={name: value for name, value in values.items() if value == value},
        predictions=tensor_digest(predictions_B),
    )

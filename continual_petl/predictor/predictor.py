"""Answers from learned banks: texts of one task in, labels or numbers out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from continual_petl.errors import InputError
from continual_petl.heads.head import Answer, answers
from continual_petl.learner.answer import answer
from continual_petl.store.residents import Residents
from continual_petl.streams.loaders import EvaluationLoader
from continual_petl.streams.tokenise import tokenise

Row = str | tuple[str, str]
"""A text, or a pair of texts."""


class Predictor:
    """Answer texts with the banks of a run.

    Args:
        residents: the run's backbone and banks.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    @torch.no_grad()
    def predict(self, rows: Sequence[Row], task: str, *, batch_size: int = 32) -> list[Answer]:
        """Return one answer per row, in order.

        Args:
            rows: texts, or pairs of texts for a task that was learned on pairs.
            task: the learned task that answers.
            batch_size: rows at a time.

        Raises:
            InputError: if the task is not learned, or a row is not what it expects.
        """
        store = self._residents.store
        if task not in store.tasks:
            known = ", ".join(store.tasks) or "none"
            raise InputError(f"task {task!r} is not learned in {store.folder}; learned are: {known}")
        pair = store.manifest(task).pair
        for number, row in enumerate(rows, 1):
            if isinstance(row, tuple) != pair:
                wanted = "a pair of texts" if pair else "one text"
                raise InputError(f"task {task!r}: row {number} is {row!r}; this task was learned on rows of {wanted}")
        if not rows:
            return []
        learner = self._residents.resident(task)
        manifest = store.manifest(task)
        learner.eval()
        # The very way from text to tensors that the task was learned and measured in, padding included.
        texts = [row[0] if isinstance(row, tuple) else row for row in rows]
        pairs = [row[1] for row in rows if isinstance(row, tuple)] if pair else None
        tokenised = tokenise(texts, pairs, None, self._residents.tokenizer, manifest.max_length)
        found: dict[int, Answer] = {}
        for batch in EvaluationLoader(tokenised, batch_size, self._residents.pad_token_id):
            inputs = {name: tensor.to(learner.model.device) for name, tensor in batch.items()}
            outputs_BC = answer(learner.backbone, learner.active_bank, manifest.pooling, inputs)
            words = answers(manifest.kind, manifest.labels, outputs_BC.cpu())
            found |= zip(batch["index"].tolist(), words, strict=True)
        return [found[number] for number in range(len(rows))]

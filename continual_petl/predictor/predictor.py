"""Answers from learned banks: texts of one task in, labels or numbers out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from continual_petl.errors import InputError
from continual_petl.heads.head import Answer, answers
from continual_petl.learner.answer import answer
from continual_petl.store.residents import Residents

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
        learner = self._residents.resident(task)
        tokenizer, manifest = self._residents.tokenizer, store.manifest(task)
        learner.eval()
        found: list[Answer] = []
        for start in range(0, len(rows), batch_size):
            chunk = rows[start : start + batch_size]
            batch = tokenizer(
                list(chunk),
                padding=True,
                truncation="longest_first",
                max_length=manifest.max_length,
                return_tensors="pt",
            ).to(learner.model.device)
            outputs = answer(learner.backbone, learner.active_bank, manifest.pooling, dict(batch))
            found += answers(manifest.kind, manifest.labels, outputs.cpu())
        return found

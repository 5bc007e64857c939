"""Keeps the states below the banks from the router's pass, from which the banks' own passes start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from continual_petl.learner.respond import STATES
from continual_petl.predictor.task_finder import Encoding, TaskFinder
from continual_petl.router.row_states import StatesBelow
from continual_petl.store.model_cache import ModelCache

MAX_BYTES = 2**29
"""Maximum size of the kept states in bytes; if they would take more, none are kept, and passes start at the embeddings."""


def kept_states(models: ModelCache, finder: TaskFinder, num_rows: int) -> dict[Encoding, StatesBelow] | None:
    """Return, for each encoding, an object that can hold the rows' states; None if no bank could start from them.

    Args:
        models: the run's backbone and banks.
        finder: finds the task of the rows.
        num_rows: number of rows.
    """
    layer, backbone = finder.lowest_layer(models), models.backbone_of(next(iter(finder.certificates)))
    num_tokens = backbone.max_length or 1024  # images have no maximum length; few models have more patches
    fits = num_rows * num_tokens * backbone.hidden_size * 4 <= MAX_BYTES
    return {encoding: StatesBelow(layer=layer) for encoding in finder.groups} if layer and fits else None


def chosen_states(
    finder: TaskFinder, kept: Mapping[Encoding, StatesBelow] | None, tasks: Mapping[int, str]
) -> StatesBelow | None:
    """Return the kept states of rows, each encoded as its task encodes it.

    Args:
        finder: the finder that found the tasks.
        kept: the kept states, by encoding; None if there are none.
        tasks: the task of each row, by row index.
    """
    if not kept:
        return None
    encodings = {task: encoding for encoding, (_, names) in finder.groups.items() for task in names}
    states = {index: kept[encodings[task]].states[index] for index, task in tasks.items()}
    return StatesBelow(layer=next(iter(kept.values())).layer, states=states)


def with_states(batch: dict[str, Tensor], below: StatesBelow | None, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return a batch with the states from which its pass can start, if there are any.

    Args:
        batch: an evaluation batch, padded on the right.
        below: the states, by row; None if there are none.
        rows: the row index, as in ``below``, of each row of the batch.
    """
    if below is None:
        return batch
    states = [below.states[row] for row in rows]
    if "attention_mask" in batch and batch["attention_mask"].sum(1).tolist() != list(map(len, states)):
        return (
            batch  # of a task that generates, or one that was replaced in the meantime and encodes its rows differently
        )
    width = batch["input_ids"].shape[1] if "input_ids" in batch else len(states[0])
    return {**batch, STATES: torch.stack([pad(each_TH, (0, 0, 0, width - len(each_TH))) for each_TH in states])}

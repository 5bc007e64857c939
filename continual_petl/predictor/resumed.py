"""Resumes a batch of rows at the layer where their banks begin, from states that the router's pass has computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import pad

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.layer_cut import lowest_layer, resumed_at
from continual_petl.kind import kind_of
from continual_petl.learner.to_all import can_cut
from continual_petl.predictor.task_finder import Encoding, TaskFinder
from continual_petl.router.row_states import Below
from continual_petl.store.bank_cache import CachedBank
from continual_petl.store.model_cache import ModelCache

MAX_BYTES = 2**29
"""Maximum size of the kept states in bytes; if they would take more, none are kept, and passes start at the embeddings."""


def below_banks(models: ModelCache, finder: TaskFinder, num_rows: int) -> dict[Encoding, Below] | None:
    """Return, for each encoding, an object that can hold the rows' states; None if no bank could resume from them.

    Args:
        models: the run's backbone and banks.
        finder: finds the task of the rows.
        num_rows: number of rows.
    """
    cut, backbone = finder.cut(models), models.backbone_of(next(iter(finder.manifests)))
    num_tokens = backbone.max_length or 1024  # images have no maximum length; few models have more patches
    fits = num_rows * num_tokens * backbone.hidden_size * 4 <= MAX_BYTES
    return {encoding: Below(layer=cut) for encoding in finder.groups} if cut and fits else None


def chosen_states(finder: TaskFinder, kept: Mapping[Encoding, Below] | None, tasks: Mapping[int, str]) -> Below | None:
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
    return Below(layer=next(iter(kept.values())).layer, states=states)


def resumed(
    backbone: Backbone, held: Sequence[CachedBank], batch: dict[str, Tensor], below: Below | None, rows: Sequence[int]
) -> AbstractContextManager[None]:
    """Return a context in which a pass of the batch resumes from the states of its rows, or starts at the embeddings if
    there are no states that all banks can resume from.

    Args:
        backbone: the backbone.
        held: the banks.
        batch: an evaluation batch, padded on the right.
        below: the states, by row; None if there are none.
        rows: the row index, as in ``below``, of each row of the batch.
    """
    if (
        below is None
        or any(not kind_of(each.plan).shares_passes or lowest_layer(each.bank) < below.layer for each in held)
        or not can_cut(backbone, below.layer, batch)
    ):
        return nullcontext()
    states = [below.states[row] for row in rows]
    if "attention_mask" in batch and batch["attention_mask"].sum(1).tolist() != list(map(len, states)):
        return nullcontext()  # a task was replaced in the meantime, and now encodes its rows differently
    width = batch["input_ids"].shape[1] if "input_ids" in batch else len(states[0])
    states_BTH = torch.stack([pad(each_TH, (0, 0, 0, width - len(each_TH))) for each_TH in states])
    return resumed_at(backbone.model, backbone.sites, below.layer, states_BTH)

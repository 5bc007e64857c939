"""The files of a task's state cache, whose states are computed in one pass over the rows or reused from an earlier attempt.

States are computed in fixed batches in a fixed order, before anything is learned: a row's states depend neither on the epoch
nor on where a run was interrupted. As a result, a training step differs by rounding (about 1e-7) from one that computes the
states of its own batch, so the cache is among the settings that determine a bank.

The files are in the folder of the half-learned task, and are deleted with it.

Shape suffixes: B rows of a batch, T tokens, D width of the states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continual_petl.backbones.attention_switch import attending
from continual_petl.banks.layer_cut import states_below
from continual_petl.digests import combined_digest
from continual_petl.engine.checks.state_cache import KeptSplit, StateCache, trainer_device
from continual_petl.engine.task_run import TaskRun
from continual_petl.learner.answer import backbone_inputs
from continual_petl.learner.memory import oom_reported
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.files.states_file import StatesFile, Write
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.datamodule import Split

FOLDER = "states"


@contextmanager
def open_state_cache(run: TaskRun, cache: StateCache | None) -> Iterator[None]:
    """Make the states available inside the ``with`` block; see `fill_state_cache`."""
    try:
        if cache is not None:
            fill_state_cache(run, cache)
        yield
    finally:
        if cache is not None:
            cache.close()


def fill_state_cache(run: TaskRun, cache: StateCache) -> None:
    """Open the files of a task's states, after computing the states that are not on disk yet.

    Raises:
        Interrupted: if a stop was requested in the meantime.
        StoreError: if they cannot be written.
    """
    device, model = trainer_device(run.session), run.backbone.model
    torch.nn.Module.to(model, device)
    for name, split in cache.splits.items():
        path = run.folder / FOLDER / f"{name}.states"
        file = StatesFile(path, split.lengths, cache.width, model.dtype, _inputs_digest(run, cache, name, device))
        if not file.open():
            with attending(run.backbone, _attention(run, name)):
                file.fill(partial(_compute, run, split, cache.layer))
        cache.files[name] = file


@torch.no_grad()
def _compute(run: TaskRun, split: KeptSplit, layer: int, write: Write) -> None:
    backbone, pad, plan = run.backbone, run.session.models.pad_token_id, run.plan
    for index_B in split.batches:
        run.request.stop_here(
            f"while the frozen states of task {plan.name!r} were being computed; the computation starts over next time"
        )
        batch = collate(split.rows, index_B, pad, plan.kind, split.train)
        with oom_reported(plan.name, batch, "training.batch_size, or write training.prefix_cache: off"):
            given = {name: t.to(backbone.model.device) for name, t in backbone_inputs(backbone, batch).items()}
            states_BTD = states_below(backbone.model, backbone.sites, given, layer)
        write(index_B, states_BTD)


def _inputs_digest(run: TaskRun, cache: StateCache, name: Split, device: torch.device) -> str:
    """Return the digest of everything that determines the states of a split."""
    backbone, models, split = run.backbone, run.session.models, cache.splits[name]
    rows = split.rows
    arrays: dict[str, NDArray[Any] | None] = {
        "ids": rows.ids,
        "offsets": rows.offsets,
        "types": rows.token_types,
        "targets": rows.target_ids,
    }
    environment = current_environment(device, backbone.precision, _attention(run, name))
    return combined_digest(
        {
            "split": name,
            "data": run.data.digests[name],
            **{key: None if array is None else _digest(array) for key, array in arrays.items()},
            "preparation": models.preparation,
            "padding": models.pad_token_id,
            "kind": run.plan.kind,
            "backbone": backbone.digest,
            "configuration": combined_digest(backbone.config_facts),
            "environment": environment.model_dump(mode="json", exclude={"python", "continual_petl"}),
            "layer": cache.layer,
            "batches": [len(batch) for batch in split.batches],
            "rows of batches": _digest(np.concatenate(split.batches)),
        }
    )


def _attention(run: TaskRun, name: Split) -> str:
    """Return the attention implementation of the forward passes that read a split's states."""
    return run.training_attention if name == "train" else run.backbone.attention


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()

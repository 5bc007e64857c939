"""The state cache of a task: the hidden states below its bank are computed once, kept on disk, and read in every epoch.

Settings and data alone decide which states are cached. States are computed in fixed batches in a fixed order, before anything
is learned: a row's states depend neither on the epoch nor on where a run was interrupted. As a result, a training step
differs by rounding (about 1e-7) from one that computes the states of its own batch, so the cache is among the settings that
determine a bank. Validation batches have the same rows in every epoch, so their outputs are the same bit for bit. Final
scores and certificates never read the cache. The files are in the folder of the half-learned task, and are deleted with it.

Shape suffixes: N rows of the split, B rows of a batch, T tokens, D width of the states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continual_petl.backbones.attention_switch import attending
from continual_petl.banks.bank import Bank
from continual_petl.banks.states_below import lowest_layer, states_below, why_not_start
from continual_petl.digests import combined_digest
from continual_petl.engine.session import Session
from continual_petl.engine.task.resume import deciding
from continual_petl.engine.task_run import TaskRun
from continual_petl.engine.trainers import predicting_trainer, quiet
from continual_petl.kind_registry import find_kind, kind_of
from continual_petl.learner import TaskPlan
from continual_petl.learner.memory import oom_reported
from continual_petl.learner.prefix_cache import cannot_cache_error, num_uses, why_not_kept
from continual_petl.learner.respond import STATES
from continual_petl.learner.task_bank import backbone_inputs
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.files.states_file import StatesFile, Write, num_bytes
from continual_petl.streams.batches.batching import Batch, evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.datamodule import Split
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData

_LEAST_USES = 2
"""The cache is only worthwhile if training reads each row at least this often on average, since filling it costs about as
much as one epoch of the layers below the bank."""
_PAYS_ON = ("cpu",)
"""Devices on which reading states is known to be faster than computing them. Measured on a CPU (AVX2, MiniLM in fp32,
batches of 32 x 64): reading took 1.7 ms of processor time, computing three layers 400 ms. A GPU computes states
about as fast as a disk reads them, so there the cache is only used if ``training.prefix_cache`` is ``on``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptSplit:
    """One split whose states are cached."""

    rows: TokenisedRows
    lengths: NDArray[np.int64]
    """Number of positions that each row takes in a batch, ``(N,)``."""
    batches: list[Batch]
    """Row indices of the batches in which states are computed; every row is in exactly one batch."""
    train: bool
    """Whether the batches are training batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateCache:
    """The states to cache for a task, decided from its settings and data alone; nothing is on disk yet."""

    layer: int
    """The lowest layer that the bank modifies; the cached states are its input."""
    width: int
    splits: Mapping[Split, KeptSplit]
    num_bytes: int
    in_words: str
    """Which states are cached, as it is saved with a half-learned task."""
    files: dict[Split, StatesFile] = field(default_factory=dict)

    def __call__(self, batch: dict[str, Tensor], split: Split) -> dict[str, Tensor]:
        """Add the states of a batch's rows to it, if its split is cached."""
        if split not in self.files:
            return batch
        index_B, lengths = batch["index"].numpy(), self.splits[split].lengths
        mask_BT = batch.get("attention_mask")
        lengths_B = lengths[index_B]
        if mask_BT is not None and mask_BT.sum(1).tolist() != lengths_B.tolist():
            raise ValueError(f"a batch of the {split} split has rows other than those whose states are cached")
        width = int(lengths_B.max()) if mask_BT is None else mask_BT.shape[1]
        return {**batch, STATES: self.files[split].read(index_B, width)}

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
        self.files.clear()


def decide_state_cache(
    session: Session, data: TaskData, plan: TaskPlan, bank: Bank, *, num_processes: int = 1
) -> tuple[StateCache | None, tuple[str, ...]]:
    """Return the states to cache for a task, or None, and at most one notice for the user.

    Args:
        session: the stream and its run folder.
        data: the task's rows.
        plan: the task's plan.
        bank: a fresh bank for it.
        num_processes: number of processes that share the fit; states are cached only if there is one.

    Raises:
        InputError: if the task asks for the cache but it cannot be used.
    """
    backbone, training = session.backbone(data.task), plan.training
    if training.prefix_cache == "off":
        return None, ()
    asked = training.prefix_cache == "on"
    layer, why = lowest_layer(bank), why_not_kept(plan, bank)
    if why is None and num_processes > 1:
        why = f"{num_processes} processes share its fit (trainer.devices)"
    if why is None and not asked and not _is_worthwhile(session, data, plan):
        return None, ()
    num_places = width = 0
    if why is None:
        row = collate(data.train, [0], session.models.pad_token_id, plan.kind)
        inputs = {name: t.to(backbone.model.device) for name, t in backbone_inputs(backbone, row).items()}
        why = why_not_start(backbone.model, backbone.sites, inputs, layer)
        if why is None:
            _, num_places, width = states_below(backbone.model, backbone.sites, inputs, layer).shape
    if why is not None:
        if asked:
            raise cannot_cache_error(plan, why)
        return None, ()
    kept, needed = _within_budget(_splits(data, plan, num_places), width, plan, backbone.model.dtype)
    if "train" in kept:
        sizes = {split: needed[split] for split in kept}
        # Tasks that generate text never read states of validation rows.
        only = "" if kind_of(plan).generates or "validation" in kept else ", for training rows"
        words, total = f"below layer {layer}{only}", sum(sizes.values())
        cache = StateCache(layer=layer, width=width, splits=kept, num_bytes=total, in_words=words)
        return cache, (_notice(plan, layer, sizes),)
    why = f"they take {needed['train']:,} bytes, but training.prefix_cache_bytes allows {training.prefix_cache_bytes:,}"
    if asked:
        raise cannot_cache_error(plan, why)
    return None, (f"task {plan.name!r}: the states below layer {layer} are recomputed in every epoch: {why}.",)


def trainer_device(session: Session) -> torch.device:
    """Return the device of the stream's Trainer."""
    with quiet():
        device: torch.device = predicting_trainer(session.spec.trainer, session.folder).strategy.root_device
    return device


def _is_worthwhile(session: Session, data: TaskData, plan: TaskPlan) -> bool:
    training = plan.training
    uses = num_uses(training, session.spec.trainer, session.loaders(data, training).num_batches)
    return uses >= _LEAST_USES and trainer_device(session).type in _PAYS_ON


def _splits(data: TaskData, plan: TaskPlan, num_places: int) -> dict[Split, KeptSplit]:
    """Return the splits for which a fit uses cached states; for generative kinds, only the training split."""
    training = plan.training
    ways: dict[Split, tuple[TokenisedRows, int, int | None]] = {
        "train": (data.train, training.batch_size, training.max_tokens)
    }
    if not kind_of(plan).generates:
        ways["validation"] = (data.validation, *training.evaluation)
    kept_splits: dict[Split, KeptSplit] = {}
    for name, (rows, batch_size, max_tokens) in ways.items():
        train = name == "train"
        lengths = _lengths(rows, plan.kind, num_places) + (rows.target_lengths if train else 0)
        batches = evaluation_batches(lengths, batch_size, max_tokens)
        kept_splits[name] = KeptSplit(rows=rows, lengths=lengths, batches=batches, train=train)
    return kept_splits


def _lengths(rows: TokenisedRows, kind: str, num_places: int) -> NDArray[np.int64]:
    return np.full(len(rows), num_places, dtype=np.int64) if find_kind(kind).reads_images else rows.lengths


def _within_budget(
    splits: Mapping[Split, KeptSplit], width: int, plan: TaskPlan, dtype: torch.dtype
) -> tuple[dict[Split, KeptSplit], dict[Split, int]]:
    """Return the splits that fit completely into the budget, and the bytes that each split needs."""
    left, kept, needed = plan.training.prefix_cache_bytes, {}, {}
    for name, split in splits.items():
        needed[name] = num_bytes(int(split.lengths.sum()), width, dtype)
        if needed[name] <= left:
            kept[name], left = split, left - needed[name]
    return kept, needed


def _notice(plan: TaskPlan, layer: int, sizes: Mapping[Split, int]) -> str:
    summary = " and ".join(f"{size / 1e6:.1f} MB for the {split} split" for split, size in sizes.items())
    return (
        f"task {plan.name!r}: states below layer {layer} are computed once and cached on disk while it is learned: {summary} "
        "(training.prefix_cache)."
    )


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
            inputs = {name: t.to(backbone.model.device) for name, t in backbone_inputs(backbone, batch).items()}
            states_BTD = states_below(backbone.model, backbone.sites, inputs, layer)
        write(index_B, states_BTD)


def _inputs_digest(run: TaskRun, cache: StateCache, name: Split, device: torch.device) -> str:
    """Return the digest of everything that determines the states of a split: what decides the bank, and this environment."""
    environment = current_environment(device, run.backbone.precision, _attention(run, name))
    beside = {"split": name, "environment": environment.model_dump(mode="json", exclude={"python", "continual_petl"})}
    return combined_digest({**deciding(run, cache.in_words), **beside})


def _attention(run: TaskRun, name: Split) -> str:
    """Return the attention implementation of the forward passes that read a split's states."""
    return run.training_attention if name == "train" else run.backbone.attention

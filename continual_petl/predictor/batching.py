"""Group tasks whose rows can share batches, and divide the rows into batches.

Tasks share a group if their certificates name the same attention implementation, their backbones have the same precision
and their banks can share a forward pass (`banks.mixed.sharing`). Each task whose rows cannot share a pass (it generates, or
reads a row once with each of its options), and each task whose bank cannot share a pass with any other, forms a group of its
own. Within a group, kinds, poolings and lengths may differ.

Shape suffixes: N rows of all tasks of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.mixed.compatible import pass_key
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.row_checks import encoding_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.tensor_file import num_bytes
from continual_petl.streams.batches.batching import evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.encoding.rows import TokenisedRows, offsets_of


def groups(
    certificates: Mapping[str, Certificate],
    backbone_of: Callable[[str], Backbone],
    max_bytes: int,
    *,
    same_rows: bool = False,
) -> list[list[str]]:
    """Return the tasks of each group; a group whose banks exceed ``max_bytes`` bytes is divided.

    Args:
        certificates: certificates by task.
        backbone_of: returns the backbone in the precision in which a task predicts.
        max_bytes: maximum size, in bytes, of the banks in memory at once.
        same_rows: whether all tasks predict the same rows. Their banks need not be able to share a pass then, but the tasks
            have to encode a row in the same way.
    """
    seen: dict[tuple[BankSpec, str], Hashable | None] = {}
    by_key: dict[Hashable, list[str]] = {}
    for task, certificate in certificates.items():
        backbone, kind = backbone_of(task), kind_of(certificate)
        shared: Hashable | None = encoding_of(certificate)
        if not same_rows:
            spec = (certificate.bank, backbone.precision)
            if spec not in seen:
                seen[spec] = pass_key(certificate.bank, backbone.model, backbone.sites)
            shared = seen[spec]
        alone = shared is None or not kind.shares_passes
        key = task if alone else (backbone.precision, certificate.environment.attention, shared)
        by_key.setdefault(key, []).append(task)
    return [part for group in by_key.values() for part in _parts(group, certificates, max_bytes)]


def _parts(group: Sequence[str], certificates: Mapping[str, Certificate], max_bytes: int) -> Iterator[list[str]]:
    part: list[str] = []
    total = 0
    for task in group:
        size = num_bytes(certificates[task].tensors)
        if part and total + size > max_bytes:
            yield part
            part, total = [], 0
        part.append(task)
        total += size
    yield part


Batches = Iterator[tuple[dict[str, Tensor], list[tuple[int, list[int]]]]]
"""Batches, each with the indices of its tasks, and of the rows of each task among all rows of this task."""


def same_batches(rows: TokenisedRows, num_tasks: int, batch_size: int, pad_token_id: int, kind: str) -> Batches:
    """Yield batches of rows that are the same for all tasks."""
    for batch in EvaluationLoader(rows, batch_size, pad_token_id, kind=kind):
        yield batch, [(task, batch["index"].tolist()) for task in range(num_tasks)]


def mixed_batches(
    parts: Sequence[TokenisedRows], banks: Sequence[Hashable], batch_size: int, pad_token_id: int, kind: str
) -> Batches:
    """Yield batches of the rows of several tasks, in the order that is fastest for `run_mixed`: those of a task together.

    Rows of similar length share a batch, regardless of their tasks.

    Args:
        parts: the rows of each task.
        banks: equal for tasks whose banks are computed by one matrix product.
        batch_size: rows per batch.
        pad_token_id: fills rows up to the length of their batch.
        kind: the kind of one of the tasks.
    """
    mixed = _joined(parts)
    lengths = [len(part) for part in parts]
    task_N, row_N = np.repeat(np.arange(len(parts)), lengths), np.concatenate([np.arange(length) for length in lengths])
    first_of = {bank: task for task, bank in reversed(list(enumerate(banks)))}
    for rows in evaluation_batches(mixed.lengths, batch_size):
        counts = Counter(task_N[rows].tolist())
        order = sorted(counts, key=lambda task: (first_of[banks[task]], counts[task], task))
        whose = [(task, rows[task_N[rows] == task]) for task in order]
        batch = collate(mixed, np.concatenate([own for _, own in whose]), pad_token_id, kind=kind, train=False)
        yield batch, [(task, row_N[own].tolist()) for task, own in whose]


def _joined(parts: Sequence[TokenisedRows]) -> TokenisedRows:
    """Concatenate the rows of several tasks, without labels."""
    types = [part.token_types for part in parts if part.token_types is not None]
    pixels = [part.pixels for part in parts if part.pixels is not None]
    assert len(types) in (0, len(parts)), "all rows were encoded by one tokenizer"
    lengths = np.concatenate([part.lengths for part in parts])
    return replace(
        parts[0],
        ids=np.concatenate([part.ids for part in parts]),
        offsets=offsets_of(lengths.tolist()),
        token_types=np.concatenate(types) if types else None,
        pixels=np.concatenate(pixels) if pixels else None,
        labels=None,
        first_piece=None,
    )

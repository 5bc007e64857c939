"""The routing statistics of all tasks of a run: the total of their covariances, and every mean.

Opening a run with many tasks would take long if each task's covariance were read. Their total is therefore kept in a hidden
file, which is rewritten whenever a sixteenth of the tasks are missing from it, so that the cost of a commit does not grow
with the number of tasks. The file is only a cache: it names the certificate of each task that it covers, and if one has
changed, or the file is missing or damaged, the certified statistics are read instead. The total consists of integers, so it
is the same either way, bit for bit.

Shape suffixes: F features per row, U = F * (F + 1) / 2, M means of all tasks, T tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from continual_petl.errors import InputError, StoreError
from continual_petl.router.clusters import in_range
from continual_petl.router.sums import Array, TaskSums
from continual_petl.store.certificate.certificate import ROUTER
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.files.atomic import replacing
from continual_petl.store.files.reading import read_file
from continual_petl.store.store import Store

MAX_BYTES = 2**31
MIN_NEW = 16
"""The file is not rewritten for fewer new tasks than this."""
_COUNT_BYTES, _DIGEST_BYTES = 8, 32
"""The file begins with the number of tasks, which can be read alone, and a digest of that number and the rest of the file."""
_DTYPES = {
    "total_U": np.int64,
    "num_rows": np.int64,
    "layers_K": np.int64,
    "counts_M": np.int64,
    "means_MF": np.float64,
    "num_means_T": np.int64,
    "first_format": np.uint8,
    "tasks": np.uint8,
}


class Totals:
    """The total of the routing statistics of several tasks; tasks can be added in any order."""

    def __init__(self) -> None:
        self.seals: dict[str, str] = {}
        """Seal of the certificate of each task, including tasks without routing statistics."""
        self.layers: tuple[int, ...] = ()
        self.total_U: NDArray[np.int64] | None = None
        """Sum over tasks of the number of rows times the fixed-point covariance; None if no task has statistics."""
        self.num_rows = 0
        self.first_format = False
        """Whether an earlier release wrote the statistics of the tasks."""
        self.means: dict[str, tuple[NDArray[np.int64], Array]] = {}
        """Row counts and means of each task with routing statistics."""

    def add(self, task: str, seal: str, sums: TaskSums | None) -> None:
        """Add a task.

        Args:
            task: its name.
            seal: seal of its certificate.
            sums: its routing statistics; None if it stored none.

        Raises:
            InputError: if its statistics come from other layers than the statistics of earlier tasks, are of another size,
                or of another release.
        """
        self.seals[task] = seal
        if sums is None:
            return
        if self.total_U is None:
            self.layers, self.first_format = sums.layers, sums.first_format
            self.total_U = np.zeros(sums.width * (sums.width + 1) // 2, dtype=np.int64)
        width = int(np.sqrt(2 * len(self.total_U)))
        if (self.layers, self.first_format, width) != (sums.layers, sums.first_format, sums.width):
            found = {next(iter(self.means)): (self.layers, width, self.first_format)}
            found[task] = sums.layers, sums.width, sums.first_format
            raise InputError(
                "task: none was named, and the tasks were learned with different settings of routing (layers read: "
                + "; ".join(
                    f"{name} {list(layers)}, {width} values{', of an earlier release' if first else ''}"
                    for name, (layers, width, first) in found.items()
                )
                + "): name the task, or learn the tasks again with the same setting."
            )
        self.total_U += np.int64(sums.count) * sums.covariance.upper_U
        self.num_rows += sums.count
        self.means[task] = (sums.counts_C, sums.means_CF)

    def to_bytes(self) -> bytes:
        """Return everything as one byte string, with a digest."""
        tasks = sorted(self.seals)
        with_sums = [task for task in tasks if task in self.means]
        width = self.means[with_sums[0]][1].shape[1] if with_sums else 0
        values = {
            "total_U": np.zeros(0) if self.total_U is None else self.total_U,
            "num_rows": [self.num_rows],
            "layers_K": self.layers,
            "counts_M": np.concatenate([np.zeros(0), *(self.means[task][0] for task in with_sums)]),
            "means_MF": np.concatenate([np.zeros((0, width)), *(self.means[task][1] for task in with_sums)]),
            "num_means_T": [len(self.means[task][0]) if task in self.means else 0 for task in tasks],
            "first_format": [self.first_format],
            "tasks": np.frombuffer(json.dumps([[task, self.seals[task]] for task in tasks]).encode(), np.uint8),
        }
        content: bytes = save({name: np.asarray(value, dtype=_DTYPES[name]) for name, value in values.items()})
        count = len(tasks).to_bytes(_COUNT_BYTES, "big")
        return count + hashlib.sha256(count + content).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Totals:
        """Restore the totals from the result of `to_bytes`.

        Raises:
            ValueError: if the content is damaged.
        """
        count, digest = content[:_COUNT_BYTES], content[_COUNT_BYTES : _COUNT_BYTES + _DIGEST_BYTES]
        content = content[_COUNT_BYTES + _DIGEST_BYTES :]
        if hashlib.sha256(count + content).digest() != digest:
            raise ValueError("the digest does not match")
        try:
            arrays: Mapping[str, NDArray[Any]] = load(content)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        except (KeyError, TypeError) as error:  # a dtype that numpy does not have
            raise ValueError(f"one of its arrays cannot be read: {error}") from error
        if {name: array.dtype for name, array in arrays.items()} != {
            name: np.dtype(own) for name, own in _DTYPES.items()
        }:
            raise ValueError("its arrays are not the ones that this release writes")
        _check(arrays)
        totals, ends_T = cls(), np.cumsum(arrays["num_means_T"])
        tasks = json.loads(arrays["tasks"].tobytes())
        if not isinstance(tasks, list) or not all(isinstance(own, list) and len(own) == 2 for own in tasks):
            raise ValueError("the tasks are not pairs of a name and a seal")
        for (task, seal), end, num in zip(tasks, ends_T.tolist(), arrays["num_means_T"].tolist(), strict=True):
            totals.seals[str(task)] = str(seal)
            if num:
                own = slice(end - num, end)
                totals.means[task] = arrays["counts_M"][own], arrays["means_MF"][own]
        totals.layers = tuple(arrays["layers_K"].tolist())
        totals.num_rows = int(arrays["num_rows"][0])
        totals.first_format = bool(arrays["first_format"][0])
        totals.total_U = np.array(arrays["total_U"], dtype=np.int64) if totals.means else None
        return totals


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise `ValueError` unless the shapes of the arrays match and their values are in range."""
    numbers_T, means_MF = arrays["num_means_T"], arrays["means_MF"]
    ones = {arrays[name].shape for name in ("num_rows", "first_format")}
    if numbers_T.ndim != 1 or means_MF.ndim != 2 or ones != {(1,)} or arrays["layers_K"].ndim != 1:
        raise ValueError("an array has a different number of dimensions than this release writes")
    num_means, width = means_MF.shape
    fits = arrays["counts_M"].shape == (num_means,) and arrays["total_U"].shape == (width * (width + 1) // 2,)
    if not fits or (numbers_T < 0).any() or numbers_T.sum() != num_means:
        raise ValueError("the shapes of the arrays do not match")
    if num_means and not ((arrays["counts_M"] > 0).all() and (arrays["num_rows"] > 0).all() and in_range(means_MF)):
        raise ValueError("a number is out of range")


def read_sums(store: Store, task: str) -> TaskSums | None:
    """Return a task's certified routing statistics; None if it stored none.

    Raises:
        StoreError: if they do not match the certificate, or this release cannot read them.
    """
    stored = store.router_sums(task)
    if stored is None:
        return None
    try:
        return TaskSums.from_arrays({name: tensor.numpy() for name, tensor in as_tensors(stored).items()})
    except ValueError as error:
        raise StoreError(f"task {task!r}: {ROUTER} cannot be read by this release: {error}") from error


def has_first_format(store: Store) -> bool:
    """Return whether an earlier release wrote the routing statistics of a run's tasks; False if there are none."""
    sums = next((sums for task in store.tasks if (sums := read_sums(store, task)) is not None), None)
    return sums is not None and sums.first_format


def totals_of(store: Store, known: Totals | None = None) -> Totals:
    """Return the totals of all learned tasks.

    Args:
        store: the run.
        known: earlier totals of this run, to which only new tasks are added.

    Raises:
        InputError: if tasks stored statistics from different layers.
        StoreError: if statistics that are read are not the certified ones.
    """
    seals = {commit.task: commit.seal for commit in store.commits()}
    totals = known if known is not None and known.seals.items() <= seals.items() else _kept(store, seals)
    for task, seal in sorted(seals.items()):
        if task not in totals.seals:
            totals.add(task, seal, read_sums(store, task))
    return totals


def keep_totals(store: Store) -> None:
    """Write the totals to the run folder if the file there lacks many tasks; a failed write is harmless.

    Args:
        store: the run, whose lock the caller holds.
    """
    with suppress(InputError, StoreError, OSError):  # the file is only a cache
        seals = {commit.task: commit.seal for commit in store.commits()}
        path = _file(store)
        if len(seals) - _num_kept(path) < max(MIN_NEW, len(seals) // 16):
            return
        content = totals_of(store).to_bytes()
        for stale in path.parent.glob(f".{path.name}.*.new"):
            stale.unlink(missing_ok=True)
        with replacing(path) as beside:
            _write(beside, content)


def _num_kept(path: Path) -> int:
    """Return the number of tasks that the file claims to cover, without reading the rest, since every commit needs it."""
    if path.is_symlink() or not path.is_file():
        return 0
    with suppress(OSError), path.open("rb") as file:
        return int.from_bytes(file.read(_COUNT_BYTES), "big")
    return 0


def _kept(store: Store, seals: Mapping[str, str]) -> Totals:
    """Return the totals in the file; empty totals if the file cannot be used or covers a task that has left the run."""
    with suppress(OSError, StoreError, ValueError):
        totals = Totals.from_bytes(read_file(_file(store), MAX_BYTES))
        if totals.seals.items() <= seals.items():
            return totals
    return Totals()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _file(store: Store) -> Path:
    return store.folder / ".router.index"

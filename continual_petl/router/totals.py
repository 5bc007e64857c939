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
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from continual_petl.errors import InputError, StoreError
from continual_petl.router.clusters import Array, Means, in_range, values_of
from continual_petl.router.sums import TaskSums
from continual_petl.store.certificate.certificate import ROUTER
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.files.atomic import replacing
from continual_petl.store.files.reading import read_file
from continual_petl.store.store import Store

MAX_BYTES = 2**31
MIN_NEW = 16
"""The file is not rewritten for fewer new tasks than this."""
_HEAD, _HEAD_BYTES, _DIGEST_BYTES = b"routing2", 16, 32
"""The file begins with these bytes and the number of tasks, which can be read alone, and a digest of both and of the rest."""
_DTYPES = {
    "total_U": np.int64,
    "num_rows": np.int64,
    "layers_K": np.int64,
    "counts_M": np.int64,
    "num_means_T": np.int64,
    "tasks": np.uint8,
}
_FIRST = {**_DTYPES, "means_MF": np.float64}
_SECOND = {**_DTYPES, "centres_TF": np.float16, "means_MF": np.int8, "powers_M": np.int8}


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
        self.means: dict[str, tuple[NDArray[np.int64], Means | Array]] = {}
        """Row counts and means of each task with routing statistics, as it stored them."""

    @property
    def width(self) -> int:
        """Number of features that the router reads per row; 0 if no task has statistics."""
        return 0 if self.total_U is None else int(np.sqrt(2 * len(self.total_U)))

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
        if (self.layers, self.first_format, self.width) != (sums.layers, sums.first_format, sums.width):
            found = {next(iter(self.means)): (self.layers, self.width, self.first_format)}
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
        self.means[task] = (sums.counts_C, sums.means)

    def copied(self) -> Totals:
        """Return equal totals, to which tasks can be added without a change of these, which other threads may read."""
        again = copy(self)
        again.seals, again.means = dict(self.seals), dict(self.means)
        again.total_U = None if self.total_U is None else self.total_U.copy()
        return again

    def stacked(self) -> tuple[NDArray[np.int64], Array, NDArray[np.intp]]:
        """Return the row counts and the means of all tasks in the order of their names, and where each task's begin."""
        found = [self.means[task] for task in sorted(self.means)]
        counts_M = np.concatenate([counts_C for counts_C, _ in found])
        first_T = np.cumsum([0, *(len(counts_C) for counts_C, _ in found[:-1])])
        means_MF = np.empty((len(counts_M), self.width))
        for first, (counts_C, means) in zip(first_T.tolist(), found, strict=True):
            means_MF[first : first + len(counts_C)] = values_of(means)
        return counts_M, means_MF, first_T

    def to_bytes(self) -> bytes:
        """Return everything as one byte string, with a digest."""
        tasks = sorted(self.seals)
        found = [self.means[task] for task in tasks if task in self.means]
        values: dict[str, Any] = {
            "total_U": np.zeros(0) if self.total_U is None else self.total_U,
            "num_rows": [self.num_rows],
            "layers_K": self.layers,
            "counts_M": np.concatenate([np.zeros(0), *(counts_C for counts_C, _ in found)]),
            "num_means_T": [len(self.means[task][0]) if task in self.means else 0 for task in tasks],
            "tasks": np.frombuffer(json.dumps([[task, self.seals[task]] for task in tasks]).encode(), np.uint8),
        }
        if self.first_format:
            values |= {"means_MF": np.concatenate([values_of(means) for _, means in found])}
        else:
            whole = [means for _, means in found if isinstance(means, Means)]
            values |= {
                "centres_TF": np.concatenate([np.zeros((0, self.width)), *(means.centre_F[None] for means in whole)]),
                "means_MF": np.concatenate([np.zeros((0, self.width)), *(means.whole_CF for means in whole)]),
                "powers_M": np.concatenate([np.zeros(0), *(means.powers_C for means in whole)]),
            }
        dtypes = _FIRST if self.first_format else _SECOND
        content: bytes = save({name: np.asarray(value, dtype=dtypes[name]) for name, value in values.items()})
        head = _HEAD + len(tasks).to_bytes(_HEAD_BYTES - len(_HEAD), "big")
        return head + hashlib.sha256(head + content).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Totals:
        """Restore the totals from the result of `to_bytes`.

        Raises:
            ValueError: if the content is damaged.
        """
        head, digest = content[:_HEAD_BYTES], content[_HEAD_BYTES : _HEAD_BYTES + _DIGEST_BYTES]
        content = content[_HEAD_BYTES + _DIGEST_BYTES :]
        if hashlib.sha256(head + content).digest() != digest:
            raise ValueError("the digest does not match")
        try:
            arrays: Mapping[str, NDArray[Any]] = load(content)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        except (KeyError, TypeError) as error:  # a dtype that numpy does not have
            raise ValueError(f"one of its arrays cannot be read: {error}") from error
        found = {name: array.dtype for name, array in arrays.items()}
        first_format = found.get("means_MF") == _FIRST["means_MF"]
        if found != {name: np.dtype(own) for name, own in (_FIRST if first_format else _SECOND).items()}:
            raise ValueError("its arrays are not the ones that this release writes")
        _check(arrays)
        totals, ends_T = cls(), np.cumsum(arrays["num_means_T"])
        tasks = json.loads(arrays["tasks"].tobytes())
        if not isinstance(tasks, list) or not all(isinstance(own, list) and len(own) == 2 for own in tasks):
            raise ValueError("the tasks are not pairs of a name and a seal")
        for (task, seal), end, num in zip(tasks, ends_T.tolist(), arrays["num_means_T"].tolist(), strict=True):
            totals.seals[str(task)] = str(seal)
            if num:
                own: Any = slice(end - num, end)
                means_CF: Any = arrays["means_MF"][own]
                if not first_format:
                    centre_F, powers_C = arrays["centres_TF"][len(totals.means)], arrays["powers_M"][own]
                    means_CF = Means.from_arrays({"centre_F": centre_F, "means_CF": means_CF, "powers_C": powers_C})
                totals.means[task] = arrays["counts_M"][own], means_CF
        totals.layers = tuple(arrays["layers_K"].tolist())
        totals.num_rows = int(arrays["num_rows"][0])
        totals.first_format = first_format and bool(totals.means)
        totals.total_U = np.array(arrays["total_U"], dtype=np.int64) if totals.means else None
        return totals


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise `ValueError` unless the shapes of the arrays match and their values are in range."""
    numbers_T, means_MF = arrays["num_means_T"], arrays["means_MF"]
    if (numbers_T.ndim, means_MF.ndim, arrays["layers_K"].ndim) != (1, 2, 1):
        raise ValueError("an array has a different number of dimensions than this release writes")
    num_means, width = means_MF.shape
    shapes = {
        "total_U": (width * (width + 1) // 2,),
        "num_rows": (1,),
        "counts_M": (num_means,),
        "centres_TF": (np.count_nonzero(numbers_T), width),
        "powers_M": (num_means,),
    }
    if any(arrays[name].shape != shape for name, shape in shapes.items() if name in arrays):
        raise ValueError("the shapes of the arrays do not match")
    if (numbers_T < 0).any() or numbers_T.sum() != num_means:
        raise ValueError("the numbers of means do not match the means")
    if num_means and not (
        (arrays["counts_M"] > 0).all() and (arrays["num_rows"] > 0).all() and in_range(_limits(arrays))
    ):
        raise ValueError("a number is out of range")


def _limits(arrays: Mapping[str, NDArray[Any]]) -> Array:
    """Return the means, or, of those in 8 bits, a number that none of them exceeds: their values are not needed yet."""
    if "powers_M" not in arrays:
        return np.asarray(arrays["means_MF"], dtype=np.float64)
    # A damaged exponent beyond float64's becomes infinite.
    largest = float(np.abs(arrays["centres_TF"]).max(initial=0.0))
    limits: Array = largest + 128 * np.exp2(arrays["powers_M"].astype(np.float64))
    return limits


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


def stored_routing(store: Store, task: str) -> dict[str, Any]:
    """Return the settings of ``routing`` that a task was learned with, as far as its files say, without reading statistics.

    Returns:
        ``statistics``, all values that store what the task did; ``reject``, None if the task rejects no row; and
        ``by_label``, whether the frozen states have a say in its labels. Of a task of an earlier release, whose statistics
        hold no settings, and of a damaged file, nothing.
    """
    if ROUTER not in store.certificate(task).files:
        return {"statistics": ("off",)}
    try:
        with safe_open(store.bank_folder(task) / ROUTER, "np") as file:
            names = {*file.keys()}
            if "settings" not in names:
                return {}
            reject, label_weight = file.get_tensor("settings").tolist()
            layers = file.get_tensor("layers_K").tolist()
    except (OSError, ValueError, SafetensorError):  # whoever needs the statistics says what is wrong with the file
        return {}
    # The first layer is the last one of one part only if there is no other: three layers are then the same as one.
    fewer = ("small", "compact") if layers == [1] else ("small",) if len(layers) == 1 else ("compact",)
    statistics = ("full",) if "covariance_U" in names else fewer
    return {"statistics": statistics, "reject": reject or None, "by_label": label_weight > 0}


def has_first_format(store: Store) -> bool:
    """Return whether an earlier release wrote the routing statistics of a run's tasks; False if there are none."""
    sums = next((sums for task in store.tasks if (sums := read_sums(store, task)) is not None), None)
    return sums is not None and sums.first_format


def totals_of(store: Store, known: Totals | None = None) -> Totals:
    """Return the totals of all learned tasks.

    Args:
        store: the run.
        known: earlier totals of this run, which stay as they are: only tasks that they lack are read.

    Raises:
        InputError: if tasks stored statistics from different layers.
        StoreError: if statistics that are read are not the certified ones.
    """
    seals = {commit.task: commit.seal for commit in store.commits()}
    usable = known is not None and known.seals.items() <= seals.items()
    totals = known.copied() if known is not None and usable else _kept(store, seals)
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
        head = file.read(_HEAD_BYTES)
        return int.from_bytes(head[len(_HEAD) :], "big") if head.startswith(_HEAD) else 0
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

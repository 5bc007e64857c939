"""A task's routing statistics: the mean state of each label's rows in the frozen backbone, and the covariance around it.

A task without labels, with too few rows of any one label, or with too many labels for the bytes it may take, stores the
mean of all its rows instead. The statistics of a task depend on its own rows and its bank alone and never change.

To tell whether a row is one of its own, a task also stores the same of the vectors that its bank gives to its head, and
how far away its validation rows are. A row's distance is the weighted mean of both, each standardised on validation rows:
what the bank sees tells similar rows apart, what the frozen backbone sees foreign ones (compare Lee et al. 2018, A Simple
Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, section 2).

Runs of earlier releases stored everything in float64 and nothing about their banks: `TaskSums.first_format`.

Shape suffixes: N rows, K layers read, F features that the router reads per row, D width of the bank's vectors, C means,
B means of the bank's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from continual_petl.router.clusters import ONE as ONE
from continual_petl.router.clusters import Array as Array
from continual_petl.router.clusters import (
    Arrays,
    Compact,
    Distances,
    Exact,
    Means,
    exact_covariance,
    in_range,
    values_of,
)
from continual_petl.router.clusters import shrunk as shrunk
from continual_petl.router.clusters import square as square
from continual_petl.router.known import QUANTILES, Moments, Quantiles
from continual_petl.streams.schema.routing_spec import REJECT

OWN_SHRINKAGE = 0.2
"""Weight of the scaled identity in the covariance of a task's states."""
FEATURE_SHRINKAGE = 0.1
"""Weight of the scaled identity in the covariance of the vectors that a bank gives to its head."""
STATES_WEIGHT = 3.0
"""Weight of the frozen states' distance, where that of the bank's vectors is one; chosen on five development streams."""
MIN_ROWS_PER_LABEL = 10
"""Minimum number of rows per label: the mean of fewer would reveal too much about single rows and represent the label
poorly."""
MAX_BYTES = 100_000
"""Maximum size of compact statistics."""
LEAST_COLUMNS, MOST_COLUMNS, FEATURE_COLUMNS = 32, 160, 32
"""Columns of the factor of a compact covariance: of the states, and of the bank's vectors."""
MOST_POWER = 200
"""Largest exponent of the power of two that divides a bank's vectors: any number in float32 is below 2^128."""
LABEL_WEIGHT = 0.2
"""Weight of the frozen states' log-probabilities of labels beside the bank's, in streams with ``protocol: class``."""

_STANDARD = Moments(mean=0.0, deviation=1.0, skewness=1.0)
"""Stands for the moments of validation rows until their distances are known."""

Form = Literal["compact", "full"]
_FIRST = {
    "layers_K": np.int64,
    "counts_C": np.int64,
    "means_CF": np.float64,
    "covariance_U": np.int32,
    "distances_Q": np.float64,
}
_MEANS = {"centre_F": np.float16, "means_CF": np.int8, "powers_C": np.int8}
_COMPACT = {"factor_FR": np.uint8, "powers_R": np.int8, "diagonal_F": np.int32}
_SETTINGS = {"states_known": np.float64, "known": np.float64, "settings": np.float64}
_SECOND = {"layers_K": np.int64, "counts_C": np.int64, **_MEANS, **_SETTINGS}
_FEATURES = {f"features_{name}": dtype for name, dtype in {**_MEANS, **_COMPACT}.items()} | {
    "features_known": np.float64,
    "features_power": np.int64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """What a task stores of the vectors that its bank gives to its head, divided by a power of two."""

    means: Means
    covariance: Compact
    power: int
    moments: Moments
    """Of the validation rows' distances."""

    @cached_property
    def _distances(self) -> Distances:
        return self.covariance.distances(FEATURE_SHRINKAGE)

    def distances(self, features_ND: Array) -> Array:
        """Return the Mahalanobis distances of vectors from the nearest mean, ``(N,)``."""
        squared_NB = self._distances(features_ND / 2.0**self.power, self.means.values_CF)
        nearest_N: Array = np.sqrt(np.maximum(squared_NB.min(1), 0.0))
        return nearest_N

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the values as named arrays, as they are stored."""
        arrays = {**self.means.to_arrays(), **self.covariance.to_arrays(), "known": self.moments.to_array()}
        return {f"features_{name}": array for name, array in arrays.items()} | {
            "features_power": np.asarray(self.power, dtype=np.int64)
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Features:
        """Restore the values from the result of `to_arrays`.

        Raises:
            ValueError: if shapes do not match, or a number is out of range.
        """
        own = {name.removeprefix("features_"): array for name, array in arrays.items()}
        means, covariance = Means.from_arrays(own), Compact.from_arrays(own)
        if own["power"].shape != () or abs(power := int(own["power"])) > MOST_POWER or not len(means.powers_C):
            raise ValueError("the power or the means of the features are out of range")
        if covariance.width != len(means.centre_F):
            raise ValueError(f"features: {covariance.width} variances, means of {len(means.centre_F)} values")
        return cls(means=means, covariance=covariance, power=power, moments=Moments.from_array(own["known"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSums:
    """The routing statistics of one task."""

    layers: tuple[int, ...]
    """1-based indices of the layers that were read."""
    counts_C: NDArray[np.int64]
    """Number of rows behind each mean."""
    means: Means | Array
    """One mean for each label, or a single mean of all rows."""
    covariance: Exact | Compact
    """Covariance of the rows around their means."""
    known: Quantiles | Moments
    """Of the validation rows' distances; see `distances`."""
    states: Moments | None = None
    """Of the validation rows' distances in the frozen states alone; None in the first format."""
    features: Features | None = None
    """None in the first format, and for tasks whose heads do not read one vector per row."""
    reject: float = REJECT
    """A row is unknown if a smaller share of the task's own rows is as far away, unless whoever asks gives another limit."""
    label_weight: float = 0.0
    """Weight of the frozen states' log-probabilities of labels beside the bank's."""

    def __post_init__(self) -> None:
        num_means, width = self.means_CF.shape
        if not self.layers or width % len(self.layers) or not num_means or (self.counts_C < 1).any():
            raise ValueError(f"{num_means} means of {width} values, {len(self.layers)} layers, counts {self.counts_C}")
        if self.covariance.width != width or (
            isinstance(self.known, Quantiles) and self.known.distances_Q.shape != QUANTILES.shape
        ):
            raise ValueError(
                f"wrong shapes: covariance of {self.covariance.width} features, means of {width}, or quantiles"
            )
        if self.counts_C.shape != (num_means,):
            raise ValueError(f"got {num_means} means, but row counts for {len(self.counts_C)} means")
        if not (
            in_range(self.means_CF) and (isinstance(self.known, Moments) or np.isfinite(self.known.distances_Q).all())
        ):
            raise ValueError("a value is out of range")
        if not 0 <= self.reject < 1 or not 0 <= self.label_weight <= 1:
            raise ValueError(f"settings out of range: reject {self.reject}, weight of labels {self.label_weight}")

    @property
    def first_format(self) -> bool:
        """Whether an earlier release wrote them."""
        return isinstance(self.known, Quantiles)

    @cached_property
    def means_CF(self) -> Array:
        """The means, in float64."""
        return values_of(self.means)

    @property
    def width(self) -> int:
        """Number of features that the router reads per row."""
        return self.covariance.width

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.counts_C.sum())

    @cached_property
    def _distances(self) -> Distances:
        return self.covariance.distances(OWN_SHRINKAGE)

    def squared_distances(self, states_NF: Array) -> Array:
        """Return the squared Mahalanobis distances of rows from the nearest mean, ``(N,)``."""
        nearest_N: Array = np.maximum(self._distances(states_NF, self.means_CF).min(1), 0.0)
        return nearest_N

    def distances(
        self, states_NF: Array, features_ND: Array | None = None, rounding: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Array, Array]:
        """Return how far rows are from the task, and how much that can depend on the other rows of a batch.

        Args:
            states_NF: what the router reads of the rows.
            features_ND: the vectors that the task's bank gives to its head; needed if the task stored `features`.
            rounding: how much a distance can depend on the other rows, as a share of itself: that of the states, and that of
                the bank's vectors.
        """
        squared_N = self.squared_distances(states_NF)
        if self.states is None:
            return squared_N, rounding[0] * squared_N
        own_N = np.sqrt(squared_N)
        far_N, slack_N = self.states.standardised(own_N), rounding[0] * own_N / self.states.deviation
        if self.features is not None:
            assert features_ND is not None
            seen_N, moments = self.features.distances(features_ND), self.features.moments
            far_N = (STATES_WEIGHT * far_N + moments.standardised(seen_N)) / (STATES_WEIGHT + 1)
            slack_N = (STATES_WEIGHT * slack_N + rounding[1] * seen_N / moments.deviation) / (STATES_WEIGHT + 1)
        return far_N, slack_N

    def shares(
        self, states_NF: Array, features_ND: Array | None, rounding: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Array, Array, Array]:
        """Return the share of the task's own rows that are at least as far away as each row, and its limits under rounding.

        Args:
            states_NF: as in `distances`.
            features_ND: as in `distances`.
            rounding: as in `distances`.

        Returns:
            The shares, the least and the greatest that they could be in another batch.
        """
        far_N, slack_N = self.distances(states_NF, features_ND, rounding)
        own_N, least_N, most_N = (self.known.share(far_N + step * slack_N) for step in (0.0, 1.0, -1.0))
        return own_N, least_N, most_N

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the statistics as named arrays, as they are stored."""
        arrays: dict[str, NDArray[np.generic]] = {
            "layers_K": np.asarray(self.layers, dtype=np.int64),
            "counts_C": self.counts_C,
            **self.covariance.to_arrays(),
        }
        if isinstance(self.known, Quantiles):
            return arrays | {"means_CF": self.means_CF, "distances_Q": self.known.distances_Q}
        assert isinstance(self.means, Means)
        assert self.states is not None
        return {
            **arrays,
            **self.means.to_arrays(),
            "states_known": self.states.to_array(),
            "known": self.known.to_array(),
            "settings": np.array([self.reject, self.label_weight]),
            **({} if self.features is None else self.features.to_arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> TaskSums:
        """Restore the statistics from the result of `to_arrays`.

        Raises:
            ValueError: if the names, dtypes or shapes are not those that `to_arrays` returns.
        """
        found = {name: array.dtype for name, array in arrays.items()}
        first, features = "distances_Q" in found, "features_known" in found
        covariance = {"covariance_U": np.int32} if first or "covariance_U" in found else _COMPACT
        expected = _FIRST if first else {**_SECOND, **covariance, **(_FEATURES if features else {})}
        if found != {name: np.dtype(own) for name, own in expected.items()}:
            raise ValueError(f"expected the arrays {', '.join(expected)} with their dtypes, got {', '.join(arrays)}")
        if arrays["layers_K"].ndim != 1 or arrays["means_CF"].ndim != 2 or arrays["counts_C"].ndim != 1:
            raise ValueError("layers_K, means_CF or counts_C has the wrong number of dimensions")
        layers, counts_C = tuple(arrays["layers_K"].tolist()), arrays["counts_C"].astype(np.int64)
        exact = Exact(covariance_U=arrays["covariance_U"].astype(np.int32)) if "covariance_U" in arrays else None
        if exact is not None and len(exact.covariance_U) != exact.width * (exact.width + 1) // 2:
            raise ValueError(f"wrong shapes: covariance {exact.covariance_U.shape}")
        if first:
            assert exact is not None
            known = Quantiles(distances_Q=arrays["distances_Q"].astype(np.float64))
            return cls(
                layers=layers,
                counts_C=counts_C,
                means=arrays["means_CF"].astype(np.float64),
                covariance=exact,
                known=known,
            )
        if arrays["settings"].shape != (2,):
            raise ValueError(f"settings: got {arrays['settings']}")
        own_features = {name: array for name, array in arrays.items() if name.startswith("features_")}
        return cls(
            layers=layers,
            counts_C=counts_C,
            means=Means.from_arrays(arrays),
            covariance=exact or Compact.from_arrays(arrays),
            known=Moments.from_array(arrays["known"]),
            states=Moments.from_array(arrays["states_known"]),
            features=Features.from_arrays(own_features) if features else None,
            reject=float(arrays["settings"][0]),
            label_weight=float(arrays["settings"][1]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsRead:
    """What the router reads of a task's rows in the frozen backbone."""

    layers: tuple[int, ...]
    """1-based indices of the layers."""
    train_NF: Array
    validation_NF: Array
    labels_N: NDArray[np.int64] | None
    """The label of each training row; None for a task that does not have one label per row."""

    def which(self, max_means: int | None = None) -> NDArray[np.intp]:
        """Return, for each training row, the index of the mean that it belongs to."""
        if self.labels_N is not None:
            _, which_N = np.unique(self.labels_N, return_inverse=True)
            counts_C = np.bincount(which_N)
            if counts_C.min() >= MIN_ROWS_PER_LABEL and (max_means is None or len(counts_C) <= max_means):
                return which_N
        return np.zeros(len(self.train_NF), dtype=np.intp)


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorsRead:
    """The vectors that a task's bank gives to its head."""

    train: NDArray[np.intp]
    """The indices, in `RowsRead`, of the training rows."""
    train_ND: Array
    validation_ND: Array


def sums_of(
    rows: RowsRead,
    form: Form = "compact",
    vectors: VectorsRead | None = None,
    *,
    reject: float = REJECT,
    label_weight: float = 0.0,
) -> TaskSums:
    """Return the routing statistics of a task.

    Args:
        rows: what the router reads of its rows.
        form: whether the covariance is kept exactly, or in `MAX_BYTES`.
        vectors: what its bank reads of them; None for tasks whose heads do not read one vector per row.
        reject: a row is unknown if a smaller share of the task's own rows is as far away.
        label_weight: see `TaskSums`.
    """
    width, depth = rows.train_NF.shape[1], 0 if vectors is None else vectors.train_ND.shape[1]
    fixed = 2_500 + 6 * width + depth * (6 + FEATURE_COLUMNS // 2)
    each, column = width + depth + 10, width // 2 + 1
    max_means = None if form == "full" else max(1, (MAX_BYTES - fixed - LEAST_COLUMNS * column) // each)
    which_N = rows.which(max_means)
    counts_C, centred_NF, means_CF = around(rows.train_NF, which_N)
    left = max(LEAST_COLUMNS * column, MAX_BYTES - fixed - len(counts_C) * each)
    num_columns = min(MOST_COLUMNS, left // column, max(2, len(which_N) - len(counts_C))) // 2 * 2
    sums = TaskSums(
        layers=rows.layers,
        counts_C=counts_C,
        means=Means.of(means_CF),
        covariance=exact_covariance(centred_NF) if form == "full" else Compact.of(centred_NF, num_columns),
        known=_STANDARD,
        states=_STANDARD,
        reject=reject,
        label_weight=label_weight,
    )
    sums = replace(sums, states=Moments.of(np.sqrt(sums.squared_distances(rows.validation_NF))))
    if vectors is not None:
        sums = replace(sums, features=_features_of(vectors, which_N[vectors.train]))
    far_N, _ = sums.distances(rows.validation_NF, None if vectors is None else vectors.validation_ND)
    # Of a mean of distances that are standardised; they are not independent.
    return replace(sums, known=Moments.of(far_N, usual=1.0))


def _features_of(vectors: VectorsRead, which_N: NDArray[np.intp]) -> Features | None:
    largest = float(np.abs(np.concatenate([vectors.train_ND, vectors.validation_ND])).max())
    if not largest < 2.0 ** (MOST_POWER - 1):  # or not a number
        return None
    power = int(np.ceil(np.log2(max(largest, 2.0**-60)))) + 1
    _, which_N = np.unique(which_N, return_inverse=True)
    if np.bincount(which_N).min() < MIN_ROWS_PER_LABEL:  # of the rows that were drawn
        which_N = np.zeros_like(which_N)
    _, centred_ND, means_BD = around(vectors.train_ND / 2.0**power, which_N)
    found = Features(
        means=Means.of(means_BD),
        covariance=Compact.of(centred_ND, FEATURE_COLUMNS),
        power=power,
        moments=_STANDARD,
    )
    return replace(found, moments=Moments.of(found.distances(vectors.validation_ND)))


def first_sums_of(rows: RowsRead) -> TaskSums:
    """Return the routing statistics of a task in the first format, for runs whose tasks have them."""
    counts_C, centred_NF, means_CF = around(rows.train_NF, rows.which())
    known = Quantiles(distances_Q=np.zeros(QUANTILES.shape))
    sums = TaskSums(
        layers=rows.layers, counts_C=counts_C, means=means_CF, covariance=exact_covariance(centred_NF), known=known
    )
    distances_N = sums.squared_distances(rows.validation_NF)
    return replace(sums, known=Quantiles(distances_Q=np.quantile(distances_N, QUANTILES)))


def around(rows_NF: Array, which_N: NDArray[np.intp]) -> tuple[NDArray[np.int64], Array, Array]:
    """Return the number of rows of each mean, the rows minus their means, and the means."""
    counts_C = np.bincount(which_N)
    means_CF = np.stack([rows_NF[which_N == mean].mean(0) for mean in range(len(counts_C))])
    return counts_C, rows_NF - means_CF[which_N], means_CF

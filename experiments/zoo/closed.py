"""Classifiers in closed form: they read the states of rows in a frozen backbone, and keep sums over all rows so far.

No row is kept and nothing is trained by gradients. `ClosedForm.add` takes the rows of a task, in one call or in several, and
`ClosedForm.solve` returns a function that gives a score for each label seen so far. What is kept are sums, so labels may come
in any order, with exceptions that the classes name. Formulas are the papers', with the settings of their authors' code;
differences are named.

* nearest class mean, also known as SimpleCIL without training (Zhou et al. 2023, https://arxiv.org/abs/2303.07338)
* SLDA: Hayes and Kanan 2020, https://arxiv.org/abs/1909.01520
* RanPAC: McDonnell et al. 2023, https://arxiv.org/abs/2307.02251, code RanPAC/RanPAC, phase 2 (no training in the first task)
* KLDA: Momeni et al. 2025, https://arxiv.org/abs/2412.15571, code SalehMomeni/KLDA
* FeCAM: Goswami et al. 2023, https://arxiv.org/abs/2309.14062, code dipamgoswami/FeCAM
* AnaCP: Momeni et al. 2025, https://arxiv.org/abs/2511.13880, code SalehMomeni/AnaCP, without training in the first task

Shape suffixes: N rows, F values of a row's state, M features made of them, C labels seen so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from continual_petl.router.sums import shrunk
from experiments.routing.classifiers import fourier
from experiments.routing.read import Array, Numbers

BYTES = 4
"""Bytes of a value that is kept, as for a bank's parameters; computations are in float64."""


Scores = Callable[[Array], Array]


class ClosedForm(ABC):
    """Counts, sums and, unless `outer` is off, the sum of the outer products of all rows so far."""

    outer = True

    def __init__(self, width: int) -> None:
        self.width = width
        self.labels: list[int] = []
        """The label of each column of the scores, in the order in which they were seen."""
        self.counts_C = np.zeros(0)
        self.sums_CM = np.zeros((0, width))
        self.outer_MM = np.zeros((width, width) if self.outer else (0, 0))

    def add(self, states_NF: Array, label_N: Numbers) -> None:
        """Learn rows; they may have labels that were seen before."""
        rows_NM = self.features(states_NF)
        places_N = self._places(label_N)
        np.add.at(self.counts_C, places_N, 1)
        np.add.at(self.sums_CM, places_N, rows_NM)
        if self.outer:
            self.outer_MM += rows_NM.T @ rows_NM

    def features(self, states_NF: Array) -> Array:
        """Return the features that are summed, ``(N, M)``."""
        return states_NF

    @abstractmethod
    def solve(self) -> Scores:
        """Return the function from states ``(N, F)`` to a score for each of `labels`, ``(N, C)``; the highest one counts."""

    @property
    def kept(self) -> int:
        """Number of values that are kept to go on learning; symmetric matrices count once, random ones can be drawn again."""
        return self.counts_C.size + self.sums_CM.size + triangle(len(self.outer_MM))

    @property
    def trained(self) -> int:
        """Number of values that predictions need: here one weight for each label and feature, and one bias for each label."""
        return self.sums_CM.size + len(self.labels)

    @property
    def means_CM(self) -> Array:
        """The mean of each label's rows."""
        means_CM: Array = self.sums_CM / self.counts_C[:, None]
        return means_CM

    @property
    def covariance_MM(self) -> Array:
        """The covariance around the labels' means, ``(sum of x x' - sum of n_c m_c m_c') / N``."""
        within_MM: Array = (self.outer_MM - self.sums_CM.T @ self.means_CM) / self.counts_C.sum()
        return within_MM

    def _discriminant(self, covariance_MM: Array) -> Scores:
        """Return the scores ``h'W - diag(M W) / 2`` with ``W = S^-1 M'`` for the labels' means M."""
        weight_MC = _ridge(covariance_MM, self.means_CM.T, 0.0)
        bias_C = 0.5 * (self.means_CM.T * weight_MC).sum(0)
        return lambda states_NF: self.features(states_NF) @ weight_MC - bias_C

    def _places(self, label_N: Numbers) -> Numbers:
        """Return the column of each row's label; new labels get a column first."""
        new = [label for label in np.unique(label_N).tolist() if label not in self.labels]
        self.labels += new
        self.counts_C = np.append(self.counts_C, np.zeros(len(new)))
        self.sums_CM = np.vstack([self.sums_CM, np.zeros((len(new), self.sums_CM.shape[1]))])
        return np.array([self.labels.index(label) for label in label_N.tolist()], dtype=np.int64)


class NearestMean(ClosedForm):
    """The label whose mean has the largest cosine with the row."""

    outer = False

    def solve(self) -> Scores:
        unit_CF = _unit(self.means_CM)
        return lambda states_NF: _unit(states_NF) @ unit_CF.T


class StreamingLDA(ClosedForm):
    """A linear discriminant that reads one row after another.

    ``S_t+1 = (t S_t + t / (t + 1) (x - m)(x - m)') / (t + 1)`` with the mean m of the row's label before this row, 0 if it is
    the first one; the covariance is ``(1 - e) S + e I``. S depends on the order of the rows.
    """

    def __init__(self, width: int, *, shrinkage: float = 1e-4) -> None:
        super().__init__(width)
        self.shrinkage = shrinkage

    def add(self, states_NF: Array, label_N: Numbers) -> None:
        places_N = self._places(label_N)
        seen_N = self.counts_C.sum() + np.arange(len(states_NF))
        residuals_NF = np.empty_like(states_NF)
        for place in np.unique(places_N):
            own = places_N == place
            before_NF = self.sums_CM[place] + np.cumsum(states_NF[own], axis=0) - states_NF[own]
            counts_N = self.counts_C[place] + np.arange(own.sum())
            residuals_NF[own] = states_NF[own] - before_NF / np.maximum(counts_N, 1)[:, None]
        residuals_NF *= np.sqrt(seen_N / (seen_N + 1))[:, None]
        self.outer_MM += residuals_NF.T @ residuals_NF
        np.add.at(self.counts_C, places_N, 1)
        np.add.at(self.sums_CM, places_N, states_NF)

    @property
    def covariance_MM(self) -> Array:
        streamed_MM: Array = self.outer_MM / self.counts_C.sum()
        return streamed_MM

    def solve(self) -> Scores:
        return self._discriminant((1 - self.shrinkage) * self.covariance_MM + self.shrinkage * np.eye(self.width))


class RanPAC(ClosedForm):
    """Ridge regression on random features: ``H = relu(X R)``, ``scores = h'(G + r I)^-1 H'Y`` with ``G = H'H`` and one-hot Y.

    After each task, the ridge r is the one of `RIDGES` with the least squared error on a fifth of the task's rows, where the
    other rows are those that are fitted; so the scores depend on which task was the last one.
    """

    RIDGES = 10.0 ** np.arange(-8, 9)

    def __init__(self, width: int, *, features: int = 10_000, seed: int = 0) -> None:
        super().__init__(features)
        self.project_FM, self.seed = np.random.default_rng(seed).standard_normal((width, features)), seed
        self.ridge = float("nan")

    def features(self, states_NF: Array) -> Array:
        return np.maximum(states_NF @ self.project_FM, 0.0)

    def add(self, states_NF: Array, label_N: Numbers) -> None:
        super().add(states_NF, label_N)
        drawn_N = np.random.default_rng(self.seed).permutation(len(label_N))
        fitted, held_out = np.split(drawn_N, [int(0.8 * len(drawn_N))])
        rows_NM, targets_NC = self.features(states_NF), np.eye(len(self.labels))[self._places(label_N)]
        # With H H' = V D V', the predictions for rows h of a ridge r are h H' V (D + r)^-1 V' Y.
        values_N, vectors_NN = np.linalg.eigh(rows_NM[fitted] @ rows_NM[fitted].T)
        left_VN, right_NC = rows_NM[held_out] @ rows_NM[fitted].T @ vectors_NN, vectors_NN.T @ targets_NC[fitted]
        errors = [
            float(
                ((left_VN @ (right_NC / (np.maximum(values_N, 0) + ridge)[:, None]) - targets_NC[held_out]) ** 2).mean()
            )
            for ridge in self.RIDGES
        ]
        self.ridge = float(self.RIDGES[int(np.argmin(errors))])

    def solve(self) -> Scores:
        weight_MC = _ridge(self.outer_MM, self.sums_CM.T, self.ridge)
        return lambda states_NF: self.features(states_NF) @ weight_MC

    @property
    def trained(self) -> int:
        return self.sums_CM.size


class KLDA(ClosedForm):
    """A linear discriminant on random Fourier features of the kernel ``exp(-gamma |x - y|^2)``.

    The covariance is mixed with the identity; the authors' code uses the pseudo-inverse of the sum.
    """

    def __init__(
        self, width: int, *, features: int = 5000, gamma: float = 0.1, shrinkage: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__(2 * (features // 2))
        drawn_FM = np.random.default_rng(seed).standard_normal((width, features // 2))
        self.directions_FM, self.shrinkage = drawn_FM * np.sqrt(2 * gamma), shrinkage

    def features(self, states_NF: Array) -> Array:
        return fourier(states_NF, self.directions_FM)

    def solve(self) -> Scores:
        return self._discriminant(shrunk(self.covariance_MM, self.shrinkage))


class FeCAM(ClosedForm):
    """The label with the least Mahalanobis distance, with a covariance for each label.

    ``S = S_c + a v I`` with the mean v of the variances, divided by the deviations: ``S_ij / sqrt(S_ii S_jj)``. Rows have
    length one. These are the settings of the authors' code for transformers: no Tukey transformation, which needs values that
    are not negative, and nothing added off the diagonal. The sum over all labels is not needed, but one for each label.
    """

    outer = False

    def __init__(self, width: int, *, shrinkage: float = 1.0) -> None:
        super().__init__(width)
        self.shrinkage = shrinkage
        self.outer_of: dict[int, Array] = {}

    def features(self, states_NF: Array) -> Array:
        return _unit(states_NF)

    def add(self, states_NF: Array, label_N: Numbers) -> None:
        super().add(states_NF, label_N)
        rows_NF = self.features(states_NF)
        for label in np.unique(label_N).tolist():
            own_NF = rows_NF[label_N == label]
            self.outer_of[label] = self.outer_of.get(label, 0.0) + own_NF.T @ own_NF

    def solve(self) -> Scores:
        # In float32, like what is kept: one matrix for each label takes memory.
        precisions = [self._precision(label, place).astype(np.float32) for place, label in enumerate(self.labels)]
        means_CF = self.means_CM

        def scores(states_NF: Array) -> Array:
            columns = []
            for mean_F, precision_FF in zip(means_CF, precisions, strict=True):
                from_mean_NF = self.features(states_NF) - mean_F
                columns.append(-(from_mean_NF @ precision_FF.astype(np.float64) * from_mean_NF).sum(1))
            return np.stack(columns, axis=1)

        return scores

    def _precision(self, label: int, place: int) -> Array:
        count, mean_F = self.counts_C[place], self.means_CM[place]
        covariance_FF = (self.outer_of[label] - count * np.outer(mean_F, mean_F)) / max(count - 1, 1)
        covariance_FF += self.shrinkage * covariance_FF.trace() / self.width * np.eye(self.width)
        deviation_F = np.sqrt(covariance_FF.diagonal())
        return _ridge(covariance_FF / np.outer(deviation_F, deviation_F), np.eye(self.width), 0.0)

    @property
    def kept(self) -> int:
        return super().kept + len(self.labels) * triangle(self.width)

    @property
    def trained(self) -> int:
        return self.sums_CM.size + len(self.labels) * triangle(self.width)


class AnaCP(ClosedForm):
    """Ridge regressions to means that are pushed apart, then one to the labels, on rows drawn from the labels' means.

    * rows have length one; S is their covariance around the labels' means m_c, plus ``1e-4 I``
    * ``U diag(s) V' = m S^-1/2``; targets ``p = U diag(s + a) V' S^1/2``, of length one
    * for each head, ``Z = gelu(X R)`` and ``W = (Z'Z + r I)^-1 sum of n_c z_c p_c'``; u is the mean over heads of ``z'W``,
      each of length one
    * ``replayed`` rows of each label drawn from N(m_c, S); ridge regression from ``gelu(u R')`` to their labels

    All singular values grow, as in the authors' code; in the paper some may shrink. Where the two differ otherwise, this is
    the paper: the code multiplies by ``S^-1/2`` where equation 16 has ``S^1/2``, and centres the means, after which the
    direction of the last singular value is arbitrary. Rows of a label are drawn with the label's own seed.
    """

    def __init__(
        self,
        width: int,
        *,
        features: int = 5000,
        heads: int = 3,
        ridge: float = 100.0,
        spread: float = 1.0,
        replayed: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(width)
        self.ridge, self.spread, self.replayed, self.seed = ridge, spread, replayed, seed
        drawn = np.random.default_rng(seed)
        self.heads = [_Head(width, drawn.standard_normal((width, features))) for _ in range(heads)]
        self.last_FM = drawn.standard_normal((width, features))

    def features(self, states_NF: Array) -> Array:
        return _unit(states_NF)

    def add(self, states_NF: Array, label_N: Numbers) -> None:
        super().add(states_NF, label_N)
        for head in self.heads:
            head.add(self.features(states_NF), label_N)

    def solve(self) -> Scores:
        covariance_FF = self.covariance_MM + 1e-4 * np.eye(self.width)
        targets_CF, root_FF = self._targets(covariance_FF), np.linalg.cholesky(covariance_FF)
        weights = [_ridge(head.outer_MM, head.sums_CM.T @ targets_CF, self.ridge) for head in self.heads]
        drawn = [np.random.default_rng([self.seed, label]) for label in self.labels]
        noise_CRF = np.stack([own.standard_normal((self.replayed, self.width)) @ root_FF.T for own in drawn])
        replayed_NM = self._projected((self.means_CM[:, None] + noise_CRF).reshape(-1, self.width), weights)
        label_NC = np.eye(len(self.labels)).repeat(self.replayed, axis=0)
        weight_MC = _ridge(replayed_NM.T @ replayed_NM, replayed_NM.T @ label_NC, self.ridge)
        return lambda states_NF: self._projected(self.features(states_NF), weights) @ weight_MC

    def _targets(self, covariance_FF: Array) -> Array:
        values_F, vectors_FF = np.linalg.eigh(covariance_FF)
        whitened_CF = self.means_CM @ vectors_FF / np.sqrt(values_F)
        left_CC, singular_C, right_CF = np.linalg.svd(whitened_CF, full_matrices=False)
        spread_CF = left_CC * (singular_C + self.spread) @ right_CF
        return _unit(spread_CF * np.sqrt(values_F) @ vectors_FF.T)

    def _projected(self, rows_NF: Array, weights: Collection[Array]) -> Array:
        heads = zip(self.heads, weights, strict=True)
        mean_NF = np.mean([_unit(head.features(rows_NF) @ weight_MF) for head, weight_MF in heads], axis=0)
        return _gelu(mean_NF @ self.last_FM)

    @property
    def kept(self) -> int:
        return super().kept + sum(head.kept for head in self.heads)

    @property
    def trained(self) -> int:
        features = len(self.last_FM.T)
        return len(self.heads) * features * self.width + features * len(self.labels)


class _Head(ClosedForm):
    """The sums of one head of AnaCP."""

    def __init__(self, width: int, project_FM: Array) -> None:
        super().__init__(project_FM.shape[1])
        self.project_FM = project_FM

    def features(self, states_NF: Array) -> Array:
        return _gelu(states_NF @ self.project_FM)

    def solve(self) -> Scores:
        raise NotImplementedError


CLOSED: dict[str, Callable[[int, float, int], ClosedForm]] = {
    "ncm": lambda width, strength, seed: NearestMean(width),
    "slda_layers": lambda width, strength, seed: StreamingLDA(width, shrinkage=strength),
    "ranpac": lambda width, strength, seed: RanPAC(width, seed=seed),
    "klda": lambda width, strength, seed: KLDA(width, gamma=strength, seed=seed),
    "fecam": lambda width, strength, seed: FeCAM(width, shrinkage=strength),
    "anacp": lambda width, strength, seed: AnaCP(width, ridge=strength, seed=seed),
}
"""Makes a classifier from the width of the states, the setting named in the method's title, and a seed."""


def predicted(labels: Sequence[int], scores_NC: Array, allowed: Collection[int] | None = None) -> Numbers:
    """Return the predicted label of each row, among the allowed ones; -1 if none of them was seen.

    Args:
        labels: the label of each column.
        scores_NC: the scores of the rows.
        allowed: the labels of the rows' task, if it is known; None allows all.
    """
    columns = [place for place, label in enumerate(labels) if allowed is None or label in allowed]
    if not columns:
        return np.full(len(scores_NC), -1, dtype=np.int64)
    best_N: Numbers = np.array(labels, dtype=np.int64)[columns][scores_NC[:, columns].argmax(1)]
    return best_N


def triangle(size: int) -> int:
    """Return the number of different values of a symmetric matrix."""
    return size * (size + 1) // 2


def _ridge(matrix_MM: Array, right_MC: Array, ridge: float) -> Array:
    """Return ``(matrix + ridge I)^-1 right``."""
    left_MM = torch.from_numpy(matrix_MM + ridge * np.eye(len(matrix_MM)))
    right = torch.from_numpy(np.ascontiguousarray(right_MC))
    factor_MM, failed = torch.linalg.cholesky_ex(left_MM)
    # Singular up to rounding, with fewer rows than features and a tiny ridge.
    solved = torch.linalg.solve(left_MM, right) if failed else torch.cholesky_solve(right, factor_MM)
    found_MC: Array = solved.numpy()
    return found_MC


def _unit(rows_NF: Array) -> Array:
    unit_NF: Array = rows_NF / np.maximum(np.linalg.norm(rows_NF, axis=1, keepdims=True), 1e-12)
    return unit_NF


def _gelu(rows_NM: Array) -> Array:
    found_NM: Array = torch.nn.functional.gelu(torch.from_numpy(rows_NM)).numpy()
    return found_NM

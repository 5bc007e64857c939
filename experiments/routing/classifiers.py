"""Other classifiers on the same frozen states; each yields the scores of held-out rows for every setting that is tried.

* nearest class mean, by cosine
* RanPAC (McDonnell et al. 2023): ridge regression on a random projection followed by a ReLU. With fewer rows N than features
  M, ``H' (H H' + a I)^-1 Y`` equals the usual ``(H' H + a I)^-1 H' Y`` and costs N^3 instead of M^3.
* KLDA (Momeni et al. 2025): random Fourier features of an RBF kernel (Rahimi and Recht 2007), then a linear discriminant with
  one covariance for all classes
* joint linear probe: logistic regression on all classes at once, which is not possible if tasks are seen one at a time

Shape suffixes: N training rows, V other rows, F features per row, M random features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from continual_petl.router.sums import shrunk
from experiments.routing.read import Array, Numbers

Setting = dict[str, float]
Scored = Iterator[tuple[Setting, list[Array]]]
"""A setting, and the scores ``(V, C)`` for each group of other rows."""

RIDGES = (1e-7, 1e-5, 1e-3, 1e-2, 1e-1)
GAMMAS = (0.03, 0.1, 0.3)
SHRINKAGES = (1e-2, 3e-2, 1e-1)
DECAYS = tuple(10.0**power for power in range(-4, 0))
STEPS = 300
"""Maximum number of LBFGS steps."""


def nearest_mean(train_NF: Array, label_N: Numbers, others: Sequence[Array], size: int) -> Scored:
    """Score rows by their cosine similarity to the mean of each class."""
    means_CF = _means(train_NF, label_N)
    means_CF /= np.linalg.norm(means_CF, axis=1, keepdims=True)
    yield {}, [rows_VF @ means_CF.T for rows_VF in others]


def ranpac(train_NF: Array, label_N: Numbers, others: Sequence[Array], size: int) -> Scored:
    """Score rows by ridge regression on ``size`` random features, with raw and with standardised states."""
    for standard in (False, True):
        own_NF, *rest = _scaled(train_NF, others, standard)
        project_FM = np.random.default_rng(0).standard_normal((own_NF.shape[1], size))
        own_NM = np.maximum(own_NF @ project_FM, 0.0)
        kernel_NN = own_NM @ own_NM.T
        kernels = [np.maximum(rows_VF @ project_FM, 0.0) @ own_NM.T for rows_VF in rest]
        unit = np.trace(kernel_NN) / len(kernel_NN)
        targets_NC = np.eye(int(label_N.max()) + 1)[label_N]
        for ridge in RIDGES:
            weight_NC = np.linalg.solve(kernel_NN + ridge * unit * np.eye(len(kernel_NN)), targets_NC)
            yield {"standardised": float(standard), "ridge": ridge}, [kernel_VN @ weight_NC for kernel_VN in kernels]


def klda(train_NF: Array, label_N: Numbers, others: Sequence[Array], size: int) -> Scored:
    """Score rows by a linear discriminant on ``size`` random Fourier features.

    ``gamma`` is relative to the median squared distance between two training rows.
    """
    drawn = np.random.default_rng(0)
    pairs_2N = drawn.integers(len(train_NF), size=(2, 2000))
    median = float(np.median(((train_NF[pairs_2N[0]] - train_NF[pairs_2N[1]]) ** 2).sum(1)))
    directions_FM = drawn.standard_normal((train_NF.shape[1], size // 2))
    for gamma in GAMMAS:
        own_NM, *rest = [fourier(rows, directions_FM * np.sqrt(2 * gamma / median)) for rows in (train_NF, *others)]
        means_CM = _means(own_NM, label_N)
        centred_NM = own_NM - means_CM[label_N]
        covariance_MM = centred_NM.T @ centred_NM / len(own_NM)
        for shrinkage in SHRINKAGES:
            weight_MC = np.linalg.solve(shrunk(covariance_MM, shrinkage), means_CM.T)
            bias_C = -0.5 * (means_CM.T * weight_MC).sum(0)
            yield {"gamma": gamma, "shrinkage": shrinkage}, [rows_VM @ weight_MC + bias_C for rows_VM in rest]


def linear_probe(train_NF: Array, label_N: Numbers, others: Sequence[Array], size: int) -> Scored:
    """Score rows by logistic regression on standardised states, with several weight decays."""
    own_NF, *rest = [torch.from_numpy(rows) for rows in _scaled(train_NF, others, True)]
    target_N = torch.from_numpy(label_N)
    weight_FC = torch.zeros(own_NF.shape[1], int(label_N.max()) + 1, dtype=torch.float64, requires_grad=True)
    bias_C = torch.zeros(weight_FC.shape[1], dtype=torch.float64, requires_grad=True)
    # From the largest decay to the smallest, each fit starting from the solution of the previous one.
    for decay in reversed(DECAYS):
        _fit(own_NF, target_N, weight_FC, bias_C, decay)
        with torch.no_grad():
            yield {"decay": decay}, [(rows_VF @ weight_FC + bias_C).numpy() for rows_VF in rest]


def _fit(own_NF: Tensor, target_N: Tensor, weight_FC: Tensor, bias_C: Tensor, decay: float) -> None:
    solver: Any = torch.optim.LBFGS([weight_FC, bias_C], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        found = cross_entropy(own_NF @ weight_FC + bias_C, target_N) + 0.5 * decay * (weight_FC**2).sum()
        torch.autograd.backward(found)
        return found

    solver.step(loss)


CLASSIFIERS = {"ncm": nearest_mean, "ranpac": ranpac, "klda": klda, "probe": linear_probe}


def _means(rows_NF: Array, label_N: Numbers) -> Array:
    return np.stack([rows_NF[label_N == label].mean(0) for label in range(int(label_N.max()) + 1)])


def _scaled(train_NF: Array, others: Sequence[Array], standard: bool) -> list[Array]:
    if not standard:
        return [train_NF, *others]
    mean_F, deviation_F = train_NF.mean(0), train_NF.std(0) + 1e-12
    return [(rows - mean_F) / deviation_F for rows in (train_NF, *others)]


def fourier(rows_NF: Array, directions_FM: Array) -> Array:
    """Return random Fourier features (Rahimi and Recht 2007): a cosine and a sine for each direction, ``(N, 2 M)``."""
    angles_NM = rows_NF @ directions_FM
    found: Array = np.concatenate([np.cos(angles_NM), np.sin(angles_NM)], axis=1) / np.sqrt(directions_FM.shape[1])
    return found

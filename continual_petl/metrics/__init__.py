"""Metrics of continual learning, as pure functions of the result matrix.

``R_TT[i, j]`` is the score on task j after learning task i, a float64 tensor or numpy array with NaN where nothing was
measured; the result has the type of the arguments, and its value is the same for both types.
Every published variant has its own name; no variant replaces a missing score with a number.
"""

from continual_petl.metrics.accuracy import (
    acc,
    average_accuracy_tri,
    average_incremental_accuracy,
    learning_accuracy,
)
from continual_petl.metrics.backward import (
    bwt_gem,
    bwt_gem_code,
    bwt_plus,
    bwt_tri,
    forgetting_first,
    forgetting_max,
    forgetting_max_all_rows,
    rem,
)
from continual_petl.metrics.cost import ce, cl_score, cl_stability, ms, sss
from continual_petl.metrics.forward import (
    fwt_gem,
    fwt_gem_code,
    fwt_plasticity,
    fwt_tri,
    intransigence,
    intransigence_mean,
)
from continual_petl.metrics.registry import registered

MATRIX_METRICS, REFERENCE_METRICS = registered()
"""The metrics of this package by name: those that need only the result matrix, and those that compare it with one reference
score per task."""

__all__ = [
    "MATRIX_METRICS",
    "REFERENCE_METRICS",
    "acc",
    "average_accuracy_tri",
    "average_incremental_accuracy",
    "bwt_gem",
    "bwt_gem_code",
    "bwt_plus",
    "bwt_tri",
    "ce",
    "cl_score",
    "cl_stability",
    "forgetting_first",
    "forgetting_max",
    "forgetting_max_all_rows",
    "fwt_gem",
    "fwt_gem_code",
    "fwt_plasticity",
    "fwt_tri",
    "intransigence",
    "intransigence_mean",
    "learning_accuracy",
    "ms",
    "rem",
    "sss",
]

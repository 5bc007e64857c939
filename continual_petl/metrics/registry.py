"""The metrics that are computed for every run, found by their names.

Each file in this folder registers its metrics with `matrix_metric` or `reference_metric`; no other code lists them. A metric
of the matrix appears in `Results.matrix_metrics`, in JSON and on the page of a run. An installed package adds one by an entry
point of the group ``continual_petl.matrix_metrics`` that names the function; it needs no decorator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from continual_petl.added import added, files_of, load_added
from continual_petl.errors import InputError
from continual_petl.metrics.arrays import Array, Scores


class MatrixMetric(Protocol):
    """A metric of the result matrix alone."""

    def __call__(self, R_TT: Scores, /) -> Scores: ...


class ReferenceMetric(Protocol):
    """A metric of the result matrix and one reference score per task."""

    def __call__(self, R_TT: Scores, reference_T: Scores, /) -> Scores: ...


_matrix: dict[str, MatrixMetric] = {}
_reference: dict[str, ReferenceMetric] = {}
Metric = TypeVar("Metric", bound=Callable[..., Any])


def matrix_metric(function: Metric) -> Metric:
    """Register a function of the result matrix under its name."""
    _matrix[function.__name__] = function
    return function


def reference_metric(function: Metric) -> Metric:
    """Register a function of the result matrix and one reference score per task under its name."""
    _reference[function.__name__] = function
    return function


def registered() -> tuple[Mapping[str, MatrixMetric], Mapping[str, ReferenceMetric]]:
    """Return the metrics of this package: those of the matrix alone, and those with references."""
    files_of("continual_petl.metrics")
    return MappingProxyType(_matrix), MappingProxyType(_reference)


def of_matrix(R_TT: Array) -> dict[str, float]:
    """Return every metric of a result matrix by name, also those of installed packages; NaN if a cell that it needs is NaN.

    Raises:
        InputError: if a metric of an installed package cannot be loaded, or fails.
    """
    found = {name: float(metric(R_TT)) for name, metric in registered()[0].items()}
    for name in added("matrix_metrics"):
        metric, code = load_added("matrix_metrics", name), added("matrix_metrics")[name].value
        try:
            found[name] = float(metric(R_TT))
        except Exception as error:  # the package can raise anything
            raise InputError(
                f"matrix_metric {name!r}: {code} fails: {type(error).__name__}: {error}. It has to return one number for a "
                "float64 array (T, T)."
            ) from error
    return found


def meaning(name: str) -> str:
    """Return what a metric is: the first line of its docstring, as plain text."""
    metric = registered()[0].get(name) or load_added("matrix_metrics", name)
    return (metric.__doc__ or "").strip().partition("\n")[0].replace("`", "")

"""Parameters trained per task, parameters kept for all tasks, and training time of a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.continual.measures import Measures
from experiments.continual.methods import Method


@dataclass(frozen=True)
class Size:
    """Means over the trials of a method."""

    trained: float
    """Trained parameters, heads included, as a mean over tasks."""
    kept: float
    """Parameters needed for predictions on all tasks, excluding the backbone."""
    share: float
    """``kept`` divided by the number of backbone parameters."""
    num_bytes: float
    """Bytes of the stored parameters and of the rows in the memory."""
    seconds: float
    """Training time for all tasks together."""


def size_of(measures: Measures, method: Method) -> Size | None:
    """Return the sizes of a method; None if none of its trials was run."""
    found = [_size(method, outcome, trial.tasks) for trial, outcome in measures.outcomes(method)]
    if not found:
        return None
    return Size(
        *(sum(values) / len(found) for values in zip(*(tuple(vars(size).values()) for size in found), strict=True))
    )


def _size(method: Method, outcome: dict[str, Any], tasks: tuple[str, ...]) -> Size:
    each = [outcome["tasks"][task] for task in tasks]
    heads = [task["parameters"]["head"] for task in each]
    bodies = [task["parameters"]["modifications"] + task["parameters"]["own"] for task in each]
    # A shared body is kept once; heads are a small part of the files, with the same size per parameter.
    kept = sum(heads) + (bodies[-1] if method.keeps == "one" else sum(bodies))
    of_files = sum(task["bytes"] for task in each)
    stored = of_files * kept / (sum(heads) + sum(bodies))
    return Size(
        trained=(sum(heads) + sum(bodies)) / len(each),
        kept=kept,
        share=kept / outcome["backbone_parameters"],
        num_bytes=stored + outcome.get("memory", {}).get("bytes", 0),
        seconds=sum(task["seconds"].get("train", 0) for task in each),
    )

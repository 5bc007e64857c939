"""Predictions of a kind from a head's outputs, as `continual_petl.predictor.row_checks` makes them."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from continual_petl.heads.predictions import ROUNDING, Prediction
from continual_petl.heads.targets import Targets
from continual_petl.kind_registry import find_kind


def predictions(
    kind: str,
    labels: tuple[str, ...] | None,
    outputs_BC: Tensor,
    targets: Targets | None = None,
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    texts: Any = None,
) -> list[Prediction]:
    """Return the prediction of each row of outputs, without the name of its task."""
    found: list[Prediction] = find_kind(kind).in_words(
        labels,
        outputs_BC.detach().float(),
        targets=targets,
        rounding=ROUNDING[precision],
        **({} if texts is None else {"texts": texts}),
    )
    return found

"""A score computed by a user-defined function, which is given all predictions and references of a split at once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from continual_petl.errors import InputError
from continual_petl.heads.metric_code import FORM, function_of
from continual_petl.kind import Kind


class OwnMetric(Metric):
    """Calls a function with two lists, predictions and references.

    Both are in the form in which `Run.predict` returns predictions.

    Args:
        kind: kind of the task.
        labels: names in the order of the head's outputs, or the options of a generative task; None for tasks without either.
        name: the dotted name of the function.
        code: the digest of its module's file.

    Raises:
        InputError: if the user has not allowed the code.
    """

    rows: list[Tensor]

    def __init__(self, kind: Kind, labels: Sequence[str] | None, name: str, code: str) -> None:
        super().__init__()
        self.kind, self.labels, self.name = kind, labels, name
        self.function = function_of(name, code)
        # Distributed processes can only exchange tensors, so rows are kept as JSON lines in byte tensors.
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, preds: Any, target: Any) -> None:
        """Add the rows of a batch: texts, or the result of `Head.predictions` and the labels."""
        pairs = zip(*self._in_words(preds, target), strict=True)
        lines = "".join(f"{json.dumps(pair)}\n" for pair in pairs).encode("ascii")
        self.rows.append(torch.frombuffer(bytearray(lines), dtype=torch.uint8).to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the score, a float64 scalar, keyed by its name.

        Raises:
            InputError: if the function fails, or returns no finite number.
        """
        lines = dim_zero_cat(self.rows).cpu().numpy().tobytes().splitlines()
        predictions, references = ([*column] for column in zip(*map(json.loads, lines), strict=True))
        num_rows = len(predictions)
        try:
            value = self.function(predictions, references)
            value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            number = float(value) if isinstance(value, Real) else math.nan
            shown = repr(value)[:80]
        except (Exception, SystemExit) as error:  # it can raise anything
            raise InputError(
                f"metric {self.name!r}: it failed on {num_rows} rows: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(number):
            raise InputError(
                f"metric {self.name!r}: it returned {shown} for {num_rows} rows, which is not a finite number; "
                f"a metric is {FORM}, and higher is better."
            )
        return {self.name: torch.tensor(number, dtype=torch.float64)}

    def _in_words(self, preds: Any, target: Any) -> tuple[list[Any], list[Any]]:
        if not isinstance(preds, Tensor):
            return list(preds), list(target)
        return self.kind.in_names(preds, target, self.labels)

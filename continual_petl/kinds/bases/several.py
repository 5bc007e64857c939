"""What kinds share whose rows are read as several sequences: with each option, or window after window.

Shape legend: B rows, K sequences of the row with the most, S sequences of all rows, W tokens of the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl.kinds.bases.texts import OfTexts

if TYPE_CHECKING:
    from torch import Tensor


class OfSeveral(OfTexts):
    """A kind that reads a row several times, on rows that have `TokenisedRows.sequences`."""

    def sequences(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the sequences of all rows, ``(S, W)``, without those that only fill up the batch."""
        there_BK = there(batch)
        return {name: tensor[there_BK] if tensor.ndim == 3 else tensor for name, tensor in batch.items()}

    def as_probe(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return four rows of two sequences each, from eight sequences."""
        return {name: tensor.reshape(-1, 2, tensor.shape[-1]) for name, tensor in inputs.items()}


def there(batch: dict[str, Tensor]) -> Tensor:
    """Return which sequences there are, ``(B, K)``; inputs ``(B, W)`` are rows of one sequence each."""
    present: Tensor = batch["attention_mask"].any(-1)
    return present if present.ndim == 2 else present[:, None]

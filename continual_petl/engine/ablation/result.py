"""The result of an ablation: the score of a learned bank without its modifications in spans of layers.

Houlsby et al. 2019, section 3.6 and figure 6: the modifications are removed from every continuous span of layers, without
retraining, and the score is compared with the full bank's score. Computed by `continual_petl.engine.ablation.measure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from continual_petl.engine.ablation.cells import Ablated, AblatedSpan
from continual_petl.engine.ablation.figure import figure
from continual_petl.errors import InputError
from continual_petl.report.figures.style import as_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Ablation(Ablated):
    """The ablation of one task's bank: the score of the full bank, and one cell for each span of layers.

    Layers are counted from 0; in an encoder-decoder, first the encoder's, then the decoder's, as in a bank's ``layers``. The
    fields are those of `Ablated`.
    """

    def __getitem__(self, span: tuple[int, int]) -> AblatedSpan:
        """Return the cell for a first and a last layer, or raise `KeyError` if it was not measured."""
        found = next((cell for cell in self.cells if (cell.first, cell.last) == span), None)
        if found is None:
            raise KeyError(f"layers {span[0]} to {span[1]} were not removed in this ablation")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; `from_json` restores the object."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Ablation:
        """Return the ablation written by `to_json`.

        Raises:
            InputError: if it is not a valid ablation.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise InputError(
                f"not a valid ablation: {where}{first['msg'].removeprefix('Value error, ')}; give one of the ablations "
                "that `continual-petl ablate --output` wrote."
            ) from error

    def figure(self) -> go.Figure:
        """Return the heat map of the paper's figure 6, as a plotly figure; a notebook shows it inline."""
        return as_figure(figure(self))

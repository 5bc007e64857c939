"""What an ablation found: the score of a learned bank without its modifications in spans of layers.

Houlsby et al. 2019, section 3.6 and figure 6: the modifications are removed from every continuous span of layers, nothing is
trained again, and the score is held against that of the whole bank. Computed by `continual_petl.course.ablation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from continual_petl.errors import InputError
from continual_petl.report.ablated import Ablated, AblatedSpan

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Ablation(Ablated):
    """The ablation of one task's bank: the whole bank's score, and one cell for each span of layers.

    Layers are counted from 0; those of an encoder-decoder encoder first, then decoder, as ``layers`` of a bank counts them.
    Its fields are those of `Ablated`.
    """

    def __getitem__(self, span: tuple[int, int]) -> AblatedSpan:
        """Return the cell of a first and a last layer; a `KeyError` if it was not asked for."""
        found = next((cell for cell in self.cells if (cell.first, cell.last) == span), None)
        if found is None:
            raise KeyError(f"layers {span[0]} to {span[1]} were not removed in this ablation")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; `from_json` makes the same object of it."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Ablation:
        """Return the ablation that `to_json` wrote.

        Raises:
            InputError: if it is none, or says two things at once.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise InputError(
                f"this is no ablation: {where}{first['msg'].removeprefix('Value error, ')}; give one of the ablations "
                "that `continual-petl ablate --output` wrote."
            ) from error

    def figure(self) -> go.Figure:
        """Return the heat map of the paper's figure 6, as a figure of plotly; a notebook shows it inline."""
        from continual_petl.report.figures import ablation  # with plotly, which takes a moment to import

        return ablation.figure(self)

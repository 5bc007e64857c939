"""What kinds share whose answers have probabilities: these may be calibrated on validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from continual_petl._strict_model import StrictModel
from continual_petl.heads.calibration import fitted_temperature
from continual_petl.heads.decision import Decision
from continual_petl.kind import Kind

if TYPE_CHECKING:
    from torch import Tensor


class CalibrationSettings(StrictModel):
    """How probabilities are computed from outputs."""

    calibrate: Literal["none", "temperature"] = "none"
    """temperature: divide the logits by a number that is found on the validation rows, so that probabilities say how often an
    answer is right; answers stay the same. none: take the logits as they are."""

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The plans of banks that were learned before these keys existed have none of them.
        fields = type(self).model_fields
        return {key: value for key, value in handler(self).items() if value != fields[key].default}


class Calibrated(Kind):
    """A kind whose probabilities are a softmax over labels, or over the options of a row."""

    own_settings: type[BaseModel] | None = CalibrationSettings

    def decide(
        self,
        task: str,
        labels: tuple[str, ...] | None,
        settings: Mapping[str, Any] | None,
        outputs: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> Decision | None:
        """Return the temperature; None if probabilities are not calibrated."""
        temperature = temperature_of(settings, outputs, answers, several=False)
        return None if temperature is None else Decision(temperature=temperature)


def temperature_of(
    settings: Mapping[str, Any] | None, outputs: Tensor | None, answers: Tensor | None, *, several: bool
) -> float | None:
    """Return the temperature that a task asks for, 1 until its bank is learned; None if it asks for none."""
    if (settings or {}).get("calibrate", "none") == "none":
        return None
    return 1.0 if outputs is None or answers is None else fitted_temperature(outputs, answers, several=several)

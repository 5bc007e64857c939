"""The predictor: rows of any tasks, each predicted by its task's bank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.predictor.predictor import Predictor as Predictor

__getattr__, __dir__, __all__ = lazy_names(__name__)

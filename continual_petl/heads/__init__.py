"""Heads: outputs, losses and predictions from a bank's features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.heads.head import Head as Head
    from continual_petl.heads.linear import LinearHead as LinearHead
    from continual_petl.heads.predictions import Prediction as Prediction

__getattr__, __dir__, __all__ = lazy_names(__name__)

"""Ablation (Houlsby et al. 2019, figure 6): a bank's scores without some layers' modifications, as text, figure and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.engine.ablation.result import Ablation as Ablation

__getattr__, __dir__, __all__ = lazy_names(__name__)

"""Base class of every user-written specification: immutable, strict about unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """A pydantic model that rejects unknown keys, NaN and infinities, and never changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

"""The part of a certificate that records the origin of a bank that was trained with another library."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from continual_petl._frozen import FrozenModel
from continual_petl.store.certificate.values import Digest

Text = Annotated[str, Field(max_length=1000)]


class Origin(FrozenModel):
    """The files that a bank was imported from."""

    format: Literal["peft", "adapters"]
    """The library that wrote the files."""
    method: Text
    """The library's name for the method."""
    base: Text | None
    """The base model that the adapter's configuration names; None if it names none."""
    files: dict[Text, Digest]
    """SHA-256 of each file that was read, by name."""

    @property
    def in_words(self) -> str:
        """Description of the origin."""
        return f"an adapter of {self.format} ({self.method})"

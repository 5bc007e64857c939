"""Schema of a task's ``limits``: rows per split, and file sizes."""

from __future__ import annotations

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.training_spec import Count, Rate

_LONGEST = 2**62  # no text is as long, and C's integers are longer
SIZES = ("cell_mb", "unpacked_gb", "ratio")
"""The limits on files, as opposed to row counts; `init` and `predict` accept them as options."""


class LimitsSpec(UserSpec):
    """How many rows of each split to use, chosen by the seed rather than by their order, and how large files may be."""

    train: Count | None = None
    """Rows of the training split; null means all."""
    per_label: Count | None = None
    """Rows of each label in the training split, for studies with few rows; null means all. If `train` is given too, it limits
    their total. (classification, image-classification)"""
    validation: Count | None = None
    """Rows of the validation split; null means all."""
    test: Count | None = None
    """Rows of the test split; null means all."""
    cell_mb: Rate = 4.0
    """Maximum length of the text in one cell, in millions of characters; tokenizing takes about 300 bytes per character."""
    unpacked_gb: Rate = 16.0
    """Maximum size of a compressed, parquet or arrow file after unpacking, in GB; plain text files may have any size."""
    ratio: Rate = 100.0
    """Maximum ratio of unpacked to packed size of a file of more than 100 MB (unpacked); for text, it is seldom above 30."""

    @property
    def cell_chars(self) -> int:
        """Maximum number of characters of a text."""
        return int(min(self.cell_mb * 1e6, _LONGEST))

    def hint(self, key: str, needed: float) -> str:
        """Return advice, for an error message, on how to raise a limit to at least ``needed``."""
        round_numbers = (digit * 10.0**power for power in range(-6, 15) for digit in (1, 2, 5))
        enough = next((number for number in round_numbers if number >= needed), needed)
        return (
            f"If the file is correct, raise the limit: `limits: {{{key}: {enough:g}}}` for the task in the "
            f"stream file, or --limits.{key} {enough:g} for init and predict."
        )


DEFAULTS = LimitsSpec()
"""No limits on rows, and generous limits on files."""

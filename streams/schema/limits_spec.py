"""Schema of a task's ``limits``: rows per split, and file sizes."""

from __future__ import annotations

from continual_petl._frozen import FrozenModel
from continual_petl.streams.schema.training_spec import Count, Rate

SIZES = ("cell_mb", "unpacked_gb", "ratio")
"""The limits on files, as opposed to numbers of rows; `init` and `predict` take them as options."""


class LimitsSpec(FrozenModel):
    """Use only this many rows of a split, chosen by the seed and not by their order in the file; reject oversized files."""

    train: Count | None = None
    """Rows of the training split; null means all."""
    validation: Count | None = None
    """Rows of the validation split; null means all."""
    test: Count | None = None
    """Rows of the test split; null means all."""
    cell_mb: Rate = 4.0
    """Longest text in one cell, in millions of characters; tokenizing takes about 300 bytes of memory per character."""
    unpacked_gb: Rate = 16.0
    """Largest size of a compressed, parquet or arrow file after unpacking, in GB; plain text files may have any size."""
    ratio: Rate = 100.0
    """How many times its own size such a file may unpack to, beyond the first 100 MB; text is seldom compressed 30 times."""

    def hint(self, key: str, needed: float) -> str:
        """Return how to raise one of the sizes to ``needed`` or more, for an error message."""
        enough = next(n for n in (digit * 10.0**power for power in range(-6, 15) for digit in (1, 2, 5)) if n >= needed)
        return (
            f"If the file is meant to be like this, raise the limit: `limits: {{{key}: {enough:g}}}` for the task in the "
            f"stream file, or --limits.{key} {enough:g} for init and predict."
        )


DEFAULTS = LimitsSpec()
"""No limits on rows, and generous limits on files."""

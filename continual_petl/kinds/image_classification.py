"""One label for each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from continual_petl.kind import HowEncoded
from continual_petl.kinds.bases.labels import OneLabel
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    from continual_petl.streams.encoding.rows import TokenisedRows


class ImageClassification(OneLabel):
    """The head is that of texts; the rows are paths, images or arrays."""

    name = "image-classification"
    columns = ("image", "label")
    input_name = "image"
    reads_images = True
    auto_class = "AutoModelForImageClassification"

    def read_inputs(self, task: TaskSpec, rows: SplitRows, folder: str | None) -> tuple[list[Any], list[str] | None]:
        """Return the images, not decoded, and a key for the pixels of each."""
        from continual_petl.streams.encoding.images import check_images

        return check_images(rows.inputs, folder)

    def encode(self, inputs: Sequence[Any], how: HowEncoded, **rows: Any) -> TokenisedRows:
        """Return the pixels that the backbone reads."""
        import numpy as np

        from continual_petl.streams.encoding.rows import TokenisedRows

        if how.images is None:
            raise ValueError("images need the preprocessing of the backbone: give images=image_processing(...)")
        return TokenisedRows(
            ids=np.empty(0, dtype=np.int32),
            offsets=np.zeros(len(inputs) + 1, dtype=np.int64),
            token_types=None,
            labels=rows.get("answers"),
            pixels=how.images(inputs),
        )

"""A backbone's tokenizer or image processing, and the digest of everything that affects its inputs.

A bank learned with one tokenizer is useless with another: its certificate holds the digest, and nothing is predicted unless
the current tokenizer has the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone, load_tokenizer
from continual_petl.digests import combined_digest
from continual_petl.streams.encoding.image_processing import ImageProcessing, image_processing
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.stream_spec import BackboneSpec

_USUAL = {"truncation_side": "right", "split_special_tokens": False, "clean_up_tokenization_spaces": False}
"""Defaults for the truncation side, for special tokens inside texts, and for the cleanup of generated text."""
_IMAGES = ("image processing", "image would become different pixels")


class BackboneInputs:
    """The tokenizer or image processing of a backbone, loaded only when needed.

    Args:
        spec: the backbone's specification.
        backbone: returns the backbone in any precision; called only when needed.
    """

    def __init__(self, spec: BackboneSpec, backbone: Callable[[], Backbone]) -> None:
        self._spec, self._backbone = spec, backbone
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._images: ImageProcessing | None = None
        self._digest: str | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The backbone's tokenizer; None if it reads images."""
        if self._tokenizer is None and not self._backbone().anatomy.images:
            self._tokenizer = load_tokenizer(
                self._spec.name, revision=self._spec.revision, remote_code=self._spec.remote_code
            )
        return self._tokenizer

    @property
    def images(self) -> ImageProcessing | None:
        """The backbone's image processing; None if it reads text."""
        backbone = self._backbone()
        if self._images is None and backbone.anatomy.images:
            self._images = image_processing(self._spec.name, self._spec.revision, backbone.model.config)
        return self._images

    @property
    def pad_token_id(self) -> int:
        """The token that pads short rows."""
        return 0 if self.tokenizer is None else padding_id(self.tokenizer)

    @property
    def digest(self) -> str:
        """Digest of everything that affects how texts become token ids, or images become pixels; cached."""
        if self._digest is None:
            self._digest = self._made()
        return self._digest

    def look_again(self) -> None:
        """Forget the cached digest, so that it is computed again: the tokenizer may have been changed in memory."""
        self._digest = None

    def problems(self, task: str, then: str) -> list[str]:
        """Return a problem if a task was learned with a different tokenizer or image processing.

        Args:
            task: name of the task.
            then: the digest in its certificate.
        """
        if then == self.digest:
            return []
        what, same = ("tokenizer", "text would become different tokens") if self.images is None else _IMAGES
        return [
            f"task {task!r}: the {what} that it was learned with has the digest {then[:12]}, but the {what} of backbone "
            f"{self._spec.name!r} has {self.digest[:12]}: the same {same}. Restore the {what}'s files."
        ]

    def _made(self) -> str:
        if self.images is not None:
            return self.images.digest
        assert self.tokenizer is not None
        rules: dict[str, Any] = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # The arguments of the last call, which are not part of the tokenizer.
        del rules["truncation"], rules["padding"]
        # The end token matters too, since it ends every target.
        special = {"pad": self.pad_token_id, "end": self.tokenizer.eos_token_id}
        # Settings of tokenizer_config.json that backend_tokenizer does not contain; defaults are left out.
        named = {key: getattr(self.tokenizer, key, usual) for key, usual in _USUAL.items()}
        unusual = {key: value for key, value in named.items() if value != _USUAL[key]}
        return combined_digest({"tokenizer": rules, "inputs": self.tokenizer.model_input_names, **special, **unusual})

"""Preprocess images for a vision backbone: resize, crop, rescale and normalise as its configuration specifies.

The settings are read from the backbone's ``preprocessor_config.json``; the arithmetic is implemented here, in torch.
transformers 5 implements it twice, with torchvision and with Pillow, and uses whichever is installed, although their results
differ, so a certificate could not record how an image was processed. Resizing follows Pillow (antialiased, first horizontally
and then vertically, rounded after each): compared with Pillow 13, nearest gives the same pixels, and bilinear differs by at
most one of 255 levels; so does bicubic, unless one edge shrinks while the other is stretched, because Pillow then reverses
the order.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig

from continual_petl._hub_cache import refuse_damaged
from continual_petl.errors import InputError
from continual_petl.streams.encoding.images import NotAnImage, decode

FILE = "preprocessor_config.json"
_ARITHMETIC = 1
"""Increase this when the same settings give different pixels than before."""
_MODES = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""Pillow's filters by number."""
_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}
_EDGE = {
    "do_center_crop": True,
    "resample": 3,
    "size": {"shortest_edge": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "ViT": {},
    "DeiT": {"do_center_crop": True, "resample": 3, "size": 256},
    "CLIP": _EDGE,
    "Bit": _EDGE,
}
"""What each class of image processors in transformers does where a file says nothing; see also `_read`. A size that is one
number is that of the shorter edge if the class's own size is, and otherwise height and width."""
_CLASS = re.compile(r"(\w+?)(?:ImageProcessor|FeatureExtractor)(?:Fast|Pil)?")

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, kw_only=True)
class ImageProcessing:
    """The operations applied to every image."""

    resize: Size | int | None
    """The size to resize to; one number for the shorter edge; ``None`` for no resizing."""
    mode: str
    crop: Size | None
    """The size of the centre crop, padded with black if the image is smaller."""
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: Size
    """The output size."""

    @property
    def digest(self) -> str:
        """SHA-256 of the settings: equal digests give equal pixels."""
        text = json.dumps({"arithmetic": _ARITHMETIC, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __call__(self, images: Sequence[Any]) -> NDArray[np.float32]:
        """Return the images in the backbone's format, ``(N, 3, H, W)``.

        Args:
            images: anything that `continual_petl.streams.encoding.images` accepts.

        Raises:
            InputError: naming the first value that is not an image.
        """
        out_N3HW = np.empty((len(images), 3, *self.size), dtype=np.float32)
        for row, image in enumerate(images):
            try:
                pixels_HW3 = decode(image)
            except NotAnImage as error:
                raise InputError(f"image {row + 1} of {len(images)}: {error}.") from error
            out_N3HW[row] = self._one(torch.from_numpy(pixels_HW3).movedim(-1, 0)).numpy()
        return out_N3HW

    def _one(self, pixels_3HW: Tensor) -> Tensor:
        values_3HW = pixels_3HW.float()
        if self.resize is not None:
            values_3HW = _resized(values_3HW, self.resize, self.mode)
        if self.crop is not None:
            values_3HW = _middle(values_3HW, self.crop)
        if tuple(values_3HW.shape[1:]) != self.size:
            got = "x".join(map(str, pixels_3HW.shape[1:]))
            raise InputError(
                f"an image of {got} pixels does not have the size that the backbone takes, "
                f"{'x'.join(map(str, self.size))}, and its preprocessing does not resize; resize the images."
            )
        mean_311, std_311 = (torch.tensor(value).view(3, 1, 1) for value in (self.mean, self.std))
        return (values_3HW * self.scale - mean_311) / std_311


def image_processing(backbone_name: str, revision: str | None, config: PretrainedConfig) -> ImageProcessing:
    """Return the preprocessing of a vision backbone.

    Without a ``preprocessor_config.json``, images are resized to the ``image_size`` of the model's configuration and
    scaled to the range from -1 to 1 (mean and standard deviation 0.5), as for ViT.

    Args:
        backbone_name: id on the Hub, or path.
        revision: commit, tag or branch of a Hub model.
        config: the configuration of the model.

    Raises:
        InputError: if the backbone takes no images of three channels, or its preprocessing has unknown steps.
    """
    takes = getattr(config, "image_size", None)
    if takes is None or getattr(config, "num_channels", 3) != 3:
        channels = f" (it takes images of {config.num_channels})" if takes is not None else ""
        raise InputError(
            f"backbone {backbone_name!r}: a {config.model_type} takes no images of three channels{channels}; "
            "choose a vision backbone, such as a ViT, for image-classification."
        )
    expected = _pair(takes)
    settings = _settings(backbone_name, revision)
    known = _read(backbone_name, {"size": expected} if settings is None else settings)
    if known.size != expected:
        raise InputError(
            f"backbone {backbone_name!r}: its {FILE} resizes images to {known.size}, but its config.json "
            f"says that it takes {expected} (height, width): the two files do not match."
        )
    return known


def _settings(name: str, revision: str | None) -> dict[str, Any] | None:
    """Return the settings in the backbone's folder; ``None`` only if it is certain that there are none."""
    path: str | None = os.path.join(name, FILE)
    try:
        if not os.path.isdir(name):
            path = _from_hub(name, revision)
        if path is None or not os.path.exists(path):
            return None
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError) as error:
        refuse_damaged(name, revision, f"backbone {name!r}")
        raise InputError(
            f"backbone {name!r}: cannot read its {FILE}: {type(error).__name__}: {error}. Check the name and the "
            "network (HF_HUB_OFFLINE allows cached files only), or give the folder of a downloaded backbone."
        ) from error
    refuse_damaged(name, revision, f"backbone {name!r}")
    if not isinstance(settings, dict):
        raise InputError(f"backbone {name!r}: its {FILE} is not a JSON object; restore the file.")
    return settings


def _from_hub(name: str, revision: str | None) -> str | None:
    try:
        return hf_hub_download(name, FILE, revision=revision)
    except LocalEntryNotFoundError:  # offline; the cache may still know that there is no such file
        if try_to_load_from_cache(name, FILE, revision=revision) is _CACHED_NO_EXIST:
            return None
        raise
    except EntryNotFoundError:
        return None


def _read(name: str, settings: Mapping[str, Any]) -> ImageProcessing:
    written = settings.get("image_processor_type") or settings.get("feature_extractor_type") or "ViTImageProcessor"
    known = _CLASS.fullmatch(str(written))
    if known is None or known[1] not in _TYPES:
        raise InputError(
            f"backbone {name!r}: its {FILE} is for the class {str(written)[:200]!r}, whose steps are not known here; "
            f"supported are those of {', '.join(f'{each}ImageProcessor' for each in _TYPES)}. Choose another backbone."
        )
    usual = _TYPES[known[1]]
    if isinstance(settings.get("size"), int) and isinstance(usual.get("size"), Mapping):
        settings = {**settings, "size": {"shortest_edge": settings["size"]}}
    settings = {**usual, **settings}
    strange = {key: on for key, on in settings.items() if key.startswith("do_") and on and key not in _STEPS}
    strange |= {key: settings[key] for key in ("crop_pct", "auto_map") if settings.get(key) is not None}
    if settings.get("resample", 2) not in _MODES:
        strange["resample"] = settings["resample"]
    resize: Size | int | None
    size: Size | int | None
    try:
        resize = _resize_to(settings.get("size", 224)) if settings.get("do_resize", True) else None
        crop = _pair(settings.get("crop_size", 224)) if settings.get("do_center_crop", False) else None
        size = crop or resize or _pair(settings.get("size", 224))
    except (KeyError, TypeError, ValueError):
        size = resize = crop = None
    if isinstance(size, int) or size is None:
        strange["size"] = settings.get("size")
    if strange or not isinstance(size, tuple):
        raise InputError(
            f"backbone {name!r}: its {FILE} asks for {', '.join(f'{key}: {value}' for key, value in strange.items())}, "
            "which is not supported here; supported: resizing to a height and width, or by shortest_edge together with "
            "do_center_crop (nearest, bilinear, bicubic), do_rescale and do_normalize. Choose another backbone."
        )
    normalise = settings.get("do_normalize", True)
    return ImageProcessing(
        resize=resize,
        mode=_MODES[settings.get("resample", 2)],
        crop=crop,
        scale=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
        mean=_channels(settings.get("image_mean", 0.5)) if normalise else (0.0,) * 3,
        std=_channels(settings.get("image_std", 0.5)) if normalise else (1.0,) * 3,
        size=size,
    )


def _pair(size: Any) -> Size:
    """Return a height and a width; one number means both."""
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _resize_to(size: Any) -> Size | int:
    return int(size["shortest_edge"]) if isinstance(size, Mapping) and set(size) == {"shortest_edge"} else _pair(size)


def _channels(value: Any) -> tuple[float, ...]:
    return tuple(float(each) for each in value) if isinstance(value, list | tuple) else (float(value),) * 3


def _resized(values_3HW: Tensor, to: Size | int, mode: str) -> Tensor:
    height, width = values_3HW.shape[1:]
    if isinstance(to, int):
        short, long = sorted((height, width))
        other = int(to * long / short)
        to = (to, other) if height <= width else (other, to)
    if to == (height, width):
        return values_3HW
    if mode == "nearest":
        return values_3HW[:, _nearest(height, to[0])[:, None], _nearest(width, to[1])]
    # First horizontally, then vertically, with rounding in between, as in Pillow.
    for size in ((height, to[1]), to):
        if size != tuple(values_3HW.shape[1:]):
            resized_13HW = F.interpolate(values_3HW[None], size=size, mode=mode, antialias=True, align_corners=False)
            values_3HW = resized_13HW[0].round().clamp(0, 255)
    return values_3HW


def _nearest(before: int, after: int) -> Tensor:
    """Return the source index of each new pixel; steps are summed in double precision, which matters at pixel borders."""
    step = before / after
    return torch.from_numpy(np.cumsum([0.5 * step, *[step] * (after - 1)]).astype(np.int64))


def _middle(values_3HW: Tensor, size: Size) -> Tensor:
    for axis, wanted in enumerate(size, 1):
        missing = wanted - values_3HW.shape[axis]
        if missing > 0:
            before = math.ceil(missing / 2)
            pad = [0, 0, before, missing - before] if axis == 1 else [before, missing - before]
            values_3HW = F.pad(values_3HW, pad)
        values_3HW = values_3HW.narrow(axis, (values_3HW.shape[axis] - wanted) // 2, wanted)
    return values_3HW

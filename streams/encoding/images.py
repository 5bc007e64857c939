"""Convert the images in rows to plain arrays of RGB bytes.

Accepts PIL images, arrays or nested lists ``(H, W)`` or ``(H, W, 3)`` of integers from 0 to 255, the values of
``datasets`` image columns (``{"bytes": ..., "path": ...}``), and paths. Grey becomes three equal channels; transparency is
dropped. Only files and PIL images need Pillow.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.streams.schema.data_spec import join_path, local_path
from continual_petl.streams.sources.checks import Cells, show

_EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
"""Pillow modes with at most eight bits per channel; the values of other modes would be clipped at 255."""


class NotAnImage(ValueError):
    """A value is not an image; the message says why."""


def pillow() -> Any:
    """Return ``PIL.Image``.

    Raises:
        InputError: if Pillow is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise InputError(
            "images: image files are read with Pillow, which is not installed: pip install continual-petl[image]."
        ) from error


def check_images(column: Cells[Any], base: str | None = None) -> tuple[list[Any], list[str]]:
    """Check that every row has an image.

    Args:
        column: the images of a split.
        base: folder for relative paths; ``None`` means the working directory.

    Returns:
        The images, with absolute paths, not decoded (decoded, they might not fit into memory); and one key per row, which
        depends only on the pixels, not on the input format.

    Raises:
        InputError: naming the rows without an image and their content, or if Pillow is needed and missing.
    """

    def image_and_key(value: Any) -> tuple[Any, str]:
        image = _located(value, base or os.curdir)
        pixels_HW3 = decode(image)
        digest = hashlib.sha256(str(pixels_HW3.shape).encode() + pixels_HW3.tobytes()).hexdigest()
        return image, json.dumps(["image", digest])

    rule = "Every row needs an image; repair or remove these rows, or name another column."
    found = column.read(image_and_key, rule)
    return [image for image, _ in found], [key for _, key in found]


def decode(image: Any) -> NDArray[np.uint8]:
    """Return an image as RGB bytes ``(H, W, 3)``.

    Raises:
        NotAnImage: if it is not an image; the message says why.
        InputError: if Pillow is needed and missing.
    """
    if isinstance(image, Mapping) and {"bytes", "path"} & set(image):
        image = image.get("path") if image.get("bytes") is None else image["bytes"]
    if isinstance(image, str | bytes | os.PathLike):
        return _from_file(io.BytesIO(image) if isinstance(image, bytes) else image)
    if type(image).__module__.startswith("PIL."):
        return _from_pillow(image)
    if image is None:
        raise NotAnImage("missing")
    if isinstance(image, list | tuple | np.ndarray):
        return _from_numbers(image)
    raise NotAnImage(f"{show(image)} is of type {type(image).__name__}")


def _located(image: Any, base: str) -> Any:
    if isinstance(image, str | os.PathLike):
        return join_path(os.getcwd(), local_path(os.fspath(image), base))
    if isinstance(image, Mapping) and image.get("bytes") is None and isinstance(image.get("path"), str):
        return {**image, "path": _located(image["path"], base)}
    return image


def _from_file(file: Any) -> NDArray[np.uint8]:
    module = pillow()
    shown = "its bytes" if isinstance(file, io.BytesIO) else show(os.fspath(file), 200)
    try:
        with module.open(file) as opened:
            opened.load()
            return _from_pillow(opened)
    except FileNotFoundError:
        raise NotAnImage(f"there is no file {shown}") from None
    except NotAnImage:
        raise
    except module.UnidentifiedImageError:
        raise NotAnImage(f"{shown} cannot be read as an image (no format that Pillow knows)") from None
    # Pillow raises SyntaxError and NotImplementedError for broken files, DecompressionBombError for implausibly large ones.
    except (OSError, ValueError, SyntaxError, NotImplementedError, module.DecompressionBombError) as error:
        raise NotAnImage(f"{shown} cannot be read as an image ({type(error).__name__}: {error})") from None
    except MemoryError:
        raise NotAnImage(f"{shown} asks for more memory than there is: it is damaged or has too many pixels") from None


def _from_pillow(image: Any) -> NDArray[np.uint8]:
    if image.mode not in _EIGHT_BITS:
        raise NotAnImage(f"its mode is {image.mode}, with more than eight bits per channel; save it with eight")
    upright = importlib.import_module("PIL.ImageOps").exif_transpose(image)  # as datasets and transformers do
    known = upright.convert("LA") if upright.mode == "La" else upright  # Pillow converts La to nothing else
    return np.ascontiguousarray(np.array(known.convert("RGB"), dtype=np.uint8))


def _from_numbers(image: Any) -> NDArray[np.uint8]:
    try:
        pixels = np.asarray(image)
    except ValueError:
        raise NotAnImage("its rows of pixels are of different lengths") from None
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if 0 in pixels.shape or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise NotAnImage(f"its shape is {pixels.shape}, neither (height, width) nor (height, width, 3)")
    if pixels.dtype.kind not in "uif" or not np.array_equal(pixels, np.clip(np.round(pixels), 0, 255)):
        what = f"values from {pixels.min()} to {pixels.max()}" if pixels.dtype.kind in "uif" else "other values"
        raise NotAnImage(f"it has {what} of type {pixels.dtype}, but pixels are whole numbers from 0 to 255")
    if pixels.dtype.kind == "f" and 0 < pixels.max() <= 1:
        raise NotAnImage(
            f"its pixels are only 0 and 1, of type {pixels.dtype}: multiply them by 255 if 1 is white, or make them integers"
        )
    bytes_ = pixels.astype(np.uint8)
    return np.ascontiguousarray(np.stack([bytes_] * 3, axis=-1) if pixels.ndim == 2 else bytes_)

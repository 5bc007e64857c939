"""Images in every format, and invalid ones. Only the slow test uses Pillow itself; others use a stand-in."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.encoding.images import NotAnImage, check_images, decode
from continual_petl.streams.sources.checks import Cells, Where

WHERE = Where(task="toy", split="train", origin="rows")
GREY = [[0, 128, 255], [1, 2, 3]]
RGB = [[[0, 1, 2], [3, 4, 5]]]


@pytest.mark.parametrize("form", [list, np.array, lambda rows: np.array(rows, dtype=np.float64), tuple])
def test_arrays_of_every_format_are_accepted(form: Any) -> None:
    grey, colour = decode(form(GREY)), decode(form(RGB))
    assert grey.shape == (2, 3, 3)
    assert grey[:, :, 0].tolist() == grey[:, :, 1].tolist() == grey[:, :, 2].tolist() == GREY
    assert colour.tolist() == RGB
    assert colour.dtype == np.uint8
    assert decode(np.array(GREY)[:, :, None]).tolist() == grey.tolist()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ({"bytes": None, "path": None}, "missing"),
        (3, "3 is of type int"),
        ([[1, 2], [3]], "different lengths"),
        ([1, 2, 3], "its shape is (3,)"),
        ([], "its shape is (0,)"),
        (np.zeros((3, 8, 8)), "its shape is (3, 8, 8)"),
        (np.zeros((8, 8, 4)), "its shape is (8, 8, 4)"),
        ([[0, 256]], "from 0 to 256"),
        ([[-1, 0]], "from -1 to 0"),
        ([[0.5, 1.0]], "from 0.5 to 1.0 of type float64"),
        ([[float("nan"), 1.0]], "whole numbers"),
        ([[0.0, 1.0]], "only 0 and 1, of type float64: multiply them by 255"),
        ([[True, False]], "type bool"),
        ([["a", "b"]], "other values"),
    ],
)
def test_invalid_image_is_refused(value: Any, what: str) -> None:
    with pytest.raises(NotAnImage, match=re.escape(what)):
        decode(value)
    with pytest.raises(InputError, match=rf"column 'image': 1 row cannot be used: row 2: .*{re.escape(what)}"):
        check_images(Cells(WHERE, "image", [GREY, value]))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32))
def test_equal_pixels_have_equal_keys(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3))
    other = pixels.copy()
    other[0, 0, 0] ^= 1
    turned = pixels.reshape(width, height, 3)
    _, keys = check_images(Cells(WHERE, "image", [pixels, pixels.tolist(), other, turned]))
    assert keys[0] == keys[1] != keys[2]
    assert (keys[0] == keys[3]) == (height == width)


def _stand_in(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Replace Pillow with a stand-in that reads a text of digits as one row of grey pixels."""

    class Image:
        def __init__(self, text: str) -> None:
            if not text.isdigit():
                raise OSError("cannot identify image file")
            self.pixels, self.mode = np.array([[int(digit) for digit in text]], dtype=np.uint8), "L"

        def __enter__(self) -> Image:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def load(self) -> None:
            return None

        def convert(self, mode: str) -> Any:
            assert mode == "RGB"
            return np.stack([self.pixels] * 3, axis=-1)

    Image.__module__ = "PIL.Image"
    module, operations = ModuleType("PIL.Image"), ModuleType("PIL.ImageOps")
    module.open = lambda file: Image(  # type: ignore[attr-defined]
        (file.read() if hasattr(file, "read") else Path(file).read_bytes()).decode()
    )
    for name, base in (("UnidentifiedImageError", OSError), ("DecompressionBombError", Exception)):
        setattr(module, name, type(name, (base,), {}))
    operations.exif_transpose = lambda image: image  # type: ignore[attr-defined]
    package = ModuleType("PIL")
    for name, made in (("PIL", package), ("PIL.Image", module), ("PIL.ImageOps", operations)):
        monkeypatch.setitem(sys.modules, name, made)
    return Image


def test_files_bytes_and_images_are_equivalent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = _stand_in(monkeypatch)
    (tmp_path / "a.png").write_text("123")
    values = [
        "a.png",
        str(tmp_path / "a.png"),
        tmp_path / "a.png",
        b"123",
        {"bytes": b"123", "path": "gone.png"},
        {"bytes": None, "path": "a.png"},
        image("123"),
        [[1, 2, 3]],
    ]
    images, keys = check_images(Cells(WHERE, "image", values), str(tmp_path))
    assert len(set(keys)) == 1
    assert images[0] == str(tmp_path / "a.png")
    assert decode(values[2]).tolist() == [[[1] * 3, [2] * 3, [3] * 3]]
    monkeypatch.chdir(tmp_path)
    assert check_images(Cells(WHERE, "image", ["a.png"]))[1] == keys[:1]


def test_unreadable_image_files_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = _stand_in(monkeypatch)
    (tmp_path / "a.png").write_text("broken")
    with pytest.raises(
        InputError, match=r"row 1: '.*a.png' cannot be read .*OSError.*; row 2: there is no file '.*b.png'"
    ):
        check_images(Cells(WHERE, "image", ["a.png", "b.png"]), str(tmp_path))
    deep = image("123")
    deep.mode = "I;16"
    with pytest.raises(NotAnImage, match="its mode is I;16, with more than eight bits"):
        decode(deep)


def test_image_files_need_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install continual-petl\[image\]"):
        check_images(Cells(WHERE, "image", [b"123"]))
    assert check_images(Cells(WHERE, "image", [GREY]))[0] == [GREY]


@pytest.mark.slow
def test_pillow_images_are_read(tmp_path: Path) -> None:
    try:
        real = importlib.import_module("PIL.Image")
    except ImportError:
        with pytest.raises(InputError, match="Pillow, which is not installed"):
            decode(b"123")
        return
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image = real.fromarray(pixels)
    image.save(tmp_path / "a.png")
    assert decode(str(tmp_path / "a.png")).tolist() == decode(image).tolist() == pixels.tolist()
    assert decode(image.convert("L"))[:, :, 0].tolist() == np.asarray(image.convert("L")).tolist()
    assert decode(real.new("LA", (1, 1), (100, 255)).convert("La")).tolist() == [[[100, 100, 100]]]
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(NotAnImage, match="cannot be read as an image"):
        decode(str(tmp_path / "b.png"))
    with pytest.raises(NotAnImage, match=r"its bytes cannot be read as an image \(no format that Pillow knows\)"):
        decode(b"123")
    real.new("1", (20000, 20000)).save(tmp_path / "c.png")
    with pytest.raises(NotAnImage, match=r"cannot be read as an image .*decompression bomb"):
        decode(str(tmp_path / "c.png"))
    with pytest.raises(NotAnImage, match="its mode is I;16"):
        decode(real.fromarray(np.zeros((2, 2), dtype=np.uint16)))

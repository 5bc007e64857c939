"""Image processing follows the backbone's preprocessor file and gives the same numbers everywhere."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from transformers import PretrainedConfig, ViTConfig

from continual_petl.errors import InputError
from continual_petl.streams.encoding import image_processing as module
from continual_petl.streams.encoding.image_processing import ImageProcessing, image_processing

CONFIG = ViTConfig(image_size=4)
VIT: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 4, "width": 4},
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
    "resample": 2,
}
PIXELS = np.random.default_rng(0).integers(0, 256, size=(9, 7, 3))


def _made(folder: Path, settings: Any, config: PretrainedConfig = CONFIG) -> ImageProcessing:
    if settings is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return image_processing(str(folder), None, config)


def test_images_are_scaled_and_normalised(tmp_path: Path) -> None:
    image = np.arange(48).reshape(4, 4, 3)
    found = _made(tmp_path, VIT)([image.tolist(), image])
    mean, std = np.array(VIT["image_mean"]), np.array(VIT["image_std"])
    expected = ((image / 255 - mean) / std).transpose(2, 0, 1)
    assert found.dtype == np.float32
    assert found.shape == (2, 3, 4, 4)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    assert (found[0] == found[1]).all()


def test_default_normalisation_is_minus_one_to_one(tmp_path: Path) -> None:
    found = _made(tmp_path, None)([np.zeros((3, 3)), np.full((8, 8), 255)])
    assert (found[0] == -1).all()
    np.testing.assert_allclose(found[1], 1, rtol=1e-6)


def test_disabled_steps_are_skipped(tmp_path: Path) -> None:
    found = _made(tmp_path, VIT | {"do_rescale": False, "do_normalize": False})([np.full((4, 4), 7)])
    assert (found == 7).all()
    keep = _made(tmp_path, VIT | {"do_resize": False})
    with pytest.raises(InputError, match="9x7 pixels does not have the size that the backbone takes, 4x4"):
        keep([PIXELS])


def test_shortest_edge_resize_and_center_crop(tmp_path: Path) -> None:
    settings = {"size": {"shortest_edge": 4}, "do_center_crop": True, "crop_size": 4, "do_normalize": False}
    settings |= {"rescale_factor": 1.0}
    columns = np.tile(np.repeat([10, 20, 30, 40], 2), (4, 1))  # 4 by 8: cropped but not resized
    assert _made(tmp_path, settings)([columns])[0, 0].tolist() == [[20, 20, 30, 30]] * 4
    assert _made(tmp_path, settings)([columns.T])[0, 0].T.tolist() == [[20, 20, 30, 30]] * 4
    small = _made(tmp_path, settings | {"size": {"height": 2, "width": 2}})([np.full((2, 2), 9)])[0, 0]
    assert small.tolist() == [[0, 0, 0, 0], [0, 9, 9, 0], [0, 9, 9, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("resample", [0, 2, 3])
def test_resizing_keeps_integers_in_range(tmp_path: Path, resample: int) -> None:
    settings = VIT | {"resample": resample, "do_rescale": False, "do_normalize": False}
    found = _made(tmp_path, settings)([PIXELS, np.full((5, 9), 200)])
    assert ((found == found.round()) & (found >= 0) & (found <= 255)).all()
    assert (found[1] == 200).all()


def test_resizing_matches_pillow(tmp_path: Path) -> None:
    settings = VIT | {"size": {"height": 2, "width": 3}, "do_rescale": False, "do_normalize": False}
    image = np.arange(0, 240, 10).reshape(4, 6)
    found = _made(tmp_path, settings, ViTConfig(image_size=[2, 3]))([image])[0, 0]
    # The result of Image.fromarray(image).resize((3, 2), BILINEAR) in Pillow 13.0.
    assert np.abs(found - [[50, 68, 86], [144, 162, 180]]).max() <= 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViT", {"size": 8}),
        ("DeiT", {"size": 10, "crop_size": 8}),
        (
            "DeiT",
            {"size": {"height": 10, "width": 10}, "crop_size": {"height": 8, "width": 8}, "image_mean": [0.1] * 3},
        ),
        ("CLIP", {"size": 8, "crop_size": 8, "do_center_crop": True, "resample": 2}),
        ("CLIP", {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}),
        ("Bit", {"size": 10, "crop_size": 8}),
    ],
)
@pytest.mark.parametrize(
    "written", ["image_processor_type:{}ImageProcessor", "feature_extractor_type:{}FeatureExtractor"]
)
def test_what_a_file_leaves_out_is_what_its_class_does(
    name: str, settings: dict[str, Any], written: str, tmp_path: Path
) -> None:
    Image = pytest.importorskip("PIL.Image")
    place = importlib.import_module(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8))
    key, _, value = written.format(name).partition(":")
    found = _made(tmp_path, {key: value, **settings}, ViTConfig(image_size=8))([image])[0]
    wanted = getattr(place, f"{name}ImageProcessorPil")(**settings)(image, return_tensors="np")["pixel_values"][0]
    # Both resize to whole numbers, and scale them in float32.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 50), (50, 40), (7, 100)])
def test_nearest_resizing_matches_pillow(tmp_path: Path, height: int, width: int) -> None:
    """Ties are included: from 32 to 24 pixels, the centre of every third new pixel lies exactly between two old ones."""
    Image = pytest.importorskip("PIL.Image")
    settings = VIT | {"size": {"height": 24, "width": 24}, "resample": 0, "do_rescale": False, "do_normalize": False}
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    found = _made(tmp_path, settings, ViTConfig(image_size=24))([image])[0]
    assert np.array_equal(found, np.moveaxis(np.array(image.resize((24, 24), Image.Resampling.NEAREST)), -1, 0))


def test_equal_digests_mean_equal_settings(tmp_path: Path) -> None:
    plain = _made(tmp_path, VIT)
    assert plain.digest == _made(tmp_path, VIT | {"processor_class": "X", "do_convert_rgb": None}).digest
    others: list[dict[str, Any]] = [
        {"image_mean": 0.5},
        {"resample": 3},
        {"rescale_factor": 1 / 127.5},
        {"do_normalize": False},
    ]
    assert len({plain.digest, *(_made(tmp_path, VIT | more).digest for more in others)}) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (VIT | {"do_pad": True}, "asks for do_pad: True"),
        (VIT | {"crop_pct": 0.875}, "asks for crop_pct: 0.875"),
        (VIT | {"resample": 1}, "asks for resample: 1"),
        (VIT | {"size": {"shortest_edge": 4}}, r"asks for size: \{'shortest_edge': 4\}"),
        (VIT | {"size": {"longest_edge": 4}}, "asks for size"),
        (
            VIT | {"size": {"height": 8, "width": 8}},
            r"images to \(8, 8\), but its config.json says that it takes \(4, 4\)",
        ),
        ([1], "is not a JSON object"),
        (
            VIT | {"image_processor_type": "BeitImageProcessor"},
            "is for the class 'BeitImageProcessor', whose steps are",
        ),
    ],
)
def test_unknown_settings_are_refused(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _made(tmp_path, settings)


def test_broken_preprocessor_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read its preprocessor_config.json: JSONDecodeError"):
        image_processing(str(tmp_path), None, CONFIG)


@pytest.mark.parametrize("config", [PretrainedConfig(), ViTConfig(image_size=4, num_channels=1)])
def test_unsupported_image_format_of_backbone_is_refused(tmp_path: Path, config: PretrainedConfig) -> None:
    with pytest.raises(InputError, match="takes no images of three channels"):
        image_processing(str(tmp_path), None, config)


def test_invalid_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="image 2 of 2: its shape is"):
        _made(tmp_path, VIT)([np.zeros((2, 2)), [1]])


def _error(kind: type[Exception]) -> Any:
    def fail(*args: Any, **options: Any) -> str:
        raise kind("not there")

    return fail


def test_hub_backbone_without_preprocessor_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hf_hub_download", _error(EntryNotFoundError))
    assert image_processing("user/vit", "abc", CONFIG).mean == (0.5,) * 3


@pytest.mark.parametrize("known", [True, False])
def test_missing_file_offline_is_an_error(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(module, "hf_hub_download", _error(LocalEntryNotFoundError))
    cached = huggingface_hub._CACHED_NO_EXIST if known else None
    monkeypatch.setattr(module, "try_to_load_from_cache", lambda *args, **options: cached)
    if known:
        assert image_processing("user/vit", None, CONFIG).size == (4, 4)
        return
    with pytest.raises(InputError, match=r"'user/vit': cannot read its preprocessor_config.json.*HF_HUB_OFFLINE"):
        image_processing("user/vit", None, CONFIG)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_image_processing_does_not_depend_on_the_batch(height: int, width: int, seed: int) -> None:
    processing = ImageProcessing(
        resize=(4, 4), mode="bilinear", crop=None, scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3, size=(4, 4)
    )
    image = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3))
    alone, among = processing([image]), processing([PIXELS, image])
    assert torch.equal(torch.from_numpy(alone[0]), torch.from_numpy(among[1]))

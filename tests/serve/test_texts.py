"""Tasks that generate texts have a queue of their own; images are sent as bytes."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from continual_petl import Run, learn
from continual_petl.backbones.backbone import load_backbone
from tests.serve.conftest import TRAINING, Open
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind

Folder = Callable[..., Path]


def test_one_request_mixes_generated_texts_and_labels(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    tasks = [task("labels", num_rows=24), task_of_kind("seq2seq", "texts")]
    bank = small("lora")
    learn(stream(backbone_folder("bart"), tasks, training=TRAINING, bank=bank), tmp_path / "run")
    run, client = Run(tmp_path / "run"), opened(tmp_path / "run")
    named = client.post("/v1/predict", json={"inputs": ["w10 w20", "w1 w30"], "task": ["texts", "labels"]}).json()
    assert [record["answer"] for record in named["predictions"]] == [
        run.predict("w10 w20", "texts").value, run.predict("w1 w30", "labels").value,
    ]  # fmt: skip
    assert named["predictions"][0]["source"] == "w10 w20"
    rows = [f"w{10 + number} w{20 + number} w1" for number in range(8)]
    routed = run.predict(rows, reject="never")
    body = {"inputs": rows, "reject": "never"}
    found = client.post("/v1/predict", json=body).json()["predictions"]
    assert [(each["task"], each["answer"]) for each in found] == [(each.task, each.value) for each in routed]
    assert {each["task"] for each in found} >= {"texts"}
    for each in found:
        assert each["task"] not in each["runners_up"]
    assert 'continual_petl_rows_total{queue="texts"}' in client.get("/metrics").text


@pytest.mark.slow
def test_lanes_load_their_backbones_one_after_the_other(
    backbone_folder: Folder, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transformers library changes its classes while it loads a model; two loads at once would leave them changed."""
    half = {"precision": "bf16"}
    tasks = [task("labels", num_rows=24), task("half", num_rows=24, training=half), task_of_kind("seq2seq", "texts")]
    learn(stream(backbone_folder("bart"), tasks, training=TRAINING, bank=small("lora")), tmp_path / "run")
    client, loading, most = opened(tmp_path / "run"), 0, 0

    def slowly(*args: Any, **more: Any) -> Any:
        nonlocal loading, most
        loading += 1
        most = max(most, loading)
        time.sleep(0.2)
        found = load_backbone(*args, **more)
        loading -= 1
        return found

    monkeypatch.setattr("continual_petl.store.model_cache.load_backbone", slowly)
    found = client.post("/v1/predict", json={"inputs": ["w10 w20"] * 2, "task": ["texts", "half"]})
    assert (found.status_code, most) == (200, 1)


def test_images_are_sent_as_bytes(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    pooled = {"name": str(backbone_folder("vit")), "pooling": "first"}
    tasks = [task_of_kind("image-classification", "light", num_rows=16)]
    learn(stream(backbone_folder("vit"), tasks, training=TRAINING, backbone=pooled), tmp_path / "run")
    pixels = np.full((6, 6, 3), 200, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    client = opened(tmp_path / "run")
    body = {"inputs": [{"image": base64.b64encode(file.getvalue()).decode()}], "task": "light"}
    (found,) = client.post("/v1/predict", json=body).json()["predictions"]
    assert found["answer"] == Run(tmp_path / "run").predict([pixels], "light")[0].value
    assert "image" not in found
    assert client.post("/v1/predict", json=body | {"task": None, "reject": "never"}).status_code == 200


def _png(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("row", "fragment"),
    [
        ("/etc/hostname", "row 1: it is a text; each row must be an object with the key image"),
        ({"image": 5}, "row 1: image: it is not base64"),
        (
            {"image": base64.b64encode(b"no image").decode()},
            "row 1: image: it cannot be read; allowed formats are PNG, JPEG",
        ),
        ({"image": base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 50).decode()}, "row 1: image: it cannot be read"),
        (
            {"image": base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n").decode()},
            "allowed formats are PNG",
        ),
        ({"image": _png(9, 9)[:-36]}, "row 1: its bytes cannot be read"),
        ({"image": _png(6000, 6000)}, "row 1: image: it has 6,000 x 6,000 pixels; at most 33,554,432 are allowed"),
    ],
)
def test_invalid_image_is_refused(
    backbone_folder: Folder, tmp_path: Path, opened: Open, row: object, fragment: str
) -> None:
    pooled = {"name": str(backbone_folder("vit")), "pooling": "first"}
    tasks = [task_of_kind("image-classification", "light", num_rows=16)]
    learn(stream(backbone_folder("vit"), tasks, training=TRAINING, backbone=pooled), tmp_path / "run")
    response = opened(tmp_path / "run").post("/v1/predict", json={"inputs": [row], "task": "light"})
    assert response.status_code in (409, 413, 422)
    assert fragment in response.json()["error"]["message"]


def test_text_without_a_task_is_never_read_as_a_path(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    pooled = {"name": str(backbone_folder("vit")), "pooling": "first"}
    tasks = [task_of_kind("image-classification", "light", num_rows=16)]
    learn(stream(backbone_folder("vit"), tasks, training=TRAINING, backbone=pooled), tmp_path / "run")
    (tmp_path / "image.png").write_bytes(base64.b64decode(_png(6, 6)))
    client = opened(tmp_path / "run")
    for row in (str(tmp_path / "image.png"), {"text": "/etc/hostname"}, {"tokens": ["w1"]}):
        response = client.post("/v1/predict", json={"inputs": [row], "reject": "never"})
        assert (response.status_code, response.json()["error"]["row"]) == (422, 1)
        assert "each row must be an object with the key image" in response.json()["error"]["message"]

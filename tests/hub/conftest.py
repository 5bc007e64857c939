"""A small run, and a Hub on this machine."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from continual_petl import learn
from tests.hub.local_hub import TOKEN, LocalHub
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = ("one", "two")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Return a Hub on this machine, which huggingface_hub uses, with a cache and a token of the test's own."""
    with LocalHub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        constants = "huggingface_hub.constants."
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "ENDPOINT": server.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_CACHE": str(tmp_path / "hf" / "hub"),
        }.items():
            monkeypatch.setattr(constants + name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two tasks."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    settings = {"training": {"epochs": 1}, "bank": {"preset": "lora", "rank": 2}}
    learn(stream(backbone_folder(), [task(name) for name in TASKS], **settings), folder)
    return folder


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return shutil.copytree(learned, tmp_path / "run")

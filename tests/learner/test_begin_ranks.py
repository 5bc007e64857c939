"""A custom Trainer with Lightning's DDP learns three tasks in two processes, which end with the same banks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run
from tests.learner.ranks import run_two

Folder = Callable[..., Path]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_two_ranks_have_equal_banks_and_scores_for_every_task(backbone_folder: Folder, tmp_path: Path) -> None:
    run_two(backbone_folder(), tmp_path, "ddp", "fsdp")
    first, second = (json.loads((tmp_path / f"ddp.{rank}.json").read_text()) for rank in (0, 1))
    assert isinstance(first, list), first
    assert len(first) == len(second) == 3
    for mine, other in zip(first, second, strict=True):
        assert mine["digest"] == other["digest"]
        assert mine["scores"] == other["scores"]
        assert len(mine["seeds"]) == 6
        assert not set(mine["seeds"]) & set(other["seeds"]), "the ranks share dropout seeds"
    assert all("sync_dist" not in (tmp_path / f"ddp.{rank}.warnings").read_text() for rank in (0, 1))
    run = Run(tmp_path / "ddp.run")
    assert [run.store.certificate(name).digest for name in run.store.tasks] == [each["digest"] for each in first]
    assert all("2 processes" in str(run.store.certificate(name).origin) for name in run.store.tasks)
    assert [check.problems for check in run.verify(data=True)] == [()] * 3
    # Lightning's FSDP needs a GPU.
    assert "requires a GPU accelerator" in json.loads((tmp_path / "fsdp.0.json").read_text())

"""A Trainer of one's own with Lightning's DDP: three tasks, two processes, one bank of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import ROOT

Folder = Callable[..., Path]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
def test_two_processes_end_with_one_bank_and_one_set_of_scores_task_after_task(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    code = "import sys; from tests.learner.ranks import main; main(*sys.argv[1:])"
    words = [sys.executable, "-W", "ignore", "-c", code, str(backbone_folder()), str(tmp_path), "ddp", "fsdp"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"ddp.{rank}.json").read_text()) for rank in (0, 1))
    assert isinstance(first, list), first
    assert len(first) == len(second) == 3
    for mine, other in zip(first, second, strict=True):
        assert mine["digest"] == other["digest"]
        assert mine["scores"] == other["scores"]
        assert len(mine["seeds"]) == 6
        assert not set(mine["seeds"]) & set(other["seeds"]), "each draws its own dropout"
    assert "sync_dist" not in done.stderr
    # Lightning has no FSDP without a GPU, and says so.
    assert "requires a GPU accelerator" in json.loads((tmp_path / "fsdp.0.json").read_text())

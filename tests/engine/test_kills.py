"""If a run is killed at random times, the store is never half-written, and the run ends with the same banks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from tests.desk import bank_digests
from tests.engine.kills import Kills
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_run_killed_at_random_times_resumes(backbone_folder: Folder, tmp_path: Path, count: int) -> None:
    training = {"batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 1, "head_dropout": 0.3, "epochs": 1}
    names = ["one"] if count < 100 else ["one", "two"]
    tasks = stream(backbone_folder(), [task(name, num_rows=20) for name in names], training=training)
    started = time.monotonic()
    whole = bank_digests(learn(tasks, tmp_path / "whole"))
    # Shorter than a whole run, so that runs are killed more than once.
    kills = Kills(tasks, whole, tmp_path, seconds=0.8 * (time.monotonic() - started))
    kills.make(count, seed=count)
    print(f"{count} kills, {kills.num_finished} finished runs: {dict(kills.phases.most_common())}")
    assert kills.wrong == []
    assert sum(kills.phases.values()) == count
    assert kills.num_finished >= 1
    if count >= 100:  # a few kills may all hit the same phase if the machine is slow
        assert len(kills.phases) >= 8

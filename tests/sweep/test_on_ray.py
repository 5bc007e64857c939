"""A sweep on a Ray cluster of two workers gives the same result as one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.sweep import sweep
from tests.ray_cluster import UNTIDY, needs_ray, two_workers
from tests.sweep.sweeps import ended, small_stream, small_sweep, without_time


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings(*UNTIDY)
def test_ray_cluster_finds_the_same_as_one_process(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    tasks, spec = small_stream(backbone_folder(), "one", "two"), small_sweep(seeds=2)
    alone = sweep(tasks, spec, folder=tmp_path / "alone")
    # One of the tasks first, then the rest in the same folder.
    with two_workers():
        first = sweep(tasks, spec, folder=tmp_path / "cluster", tasks=["one"], executor="ray")
        both = sweep(tasks, spec, folder=tmp_path / "cluster", executor="ray")
    assert first.tasks["one"].settings == alone.tasks["one"].settings
    assert both.chosen == alone.chosen
    for name in ("one", "two"):
        for role in ("search", "seed"):
            found = [
                sorted(without_time(ended(tmp_path / where, name, role)), key=lambda line: int(line["number"]))
                for where in ("alone", "cluster")
            ]
            assert found[0] == found[1]
            assert found[0]

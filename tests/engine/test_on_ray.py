"""Parallel tasks on a Ray cluster of two workers: the store equals that of a single-process run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from continual_petl import InputError, learn
from continual_petl.engine.parallel import ray_workers
from tests.engine.parallel_run import TASKS, TRAINING, DieOnce, files_of, stop_half_way
from tests.ray_cluster import UNTIDY, needs_ray, two_workers
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_workers() as ray:
        yield ray


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings(*UNTIDY)
def test_ray_cluster_matches_one_process_byte_for_byte_after_a_kill(
    backbone_folder: Folder, tmp_path: Path, cluster: Any
) -> None:
    tasks = stream(backbone_folder(), TASKS, training=TRAINING)
    learn(tasks, tmp_path / "one")
    stop_half_way(tasks, tmp_path, ("one", "two"), executor="ray")
    learn(tasks, tmp_path / "run", executor="ray", callbacks=[DieOnce(tmp_path / "died", "two")])
    assert (tmp_path / "died").exists()
    assert files_of(tmp_path / "run") == files_of(tmp_path / "one")
    assert cluster.is_initialized(), "an existing cluster was shut down"


@pytest.mark.parametrize("error", [None, ConnectionError])
def test_starting_ray_keeps_the_handler_for_sigterm(error: type[Exception] | None) -> None:
    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as ray.init does
        if error is not None:
            raise error

    before = signal.getsignal(signal.SIGTERM)
    try:
        with nullcontext() if error is None else pytest.raises(error):
            ray_workers.start_ray(SimpleNamespace(init=init))
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_missing_ray_error_says_what_to_install(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Ray is not installed here: pip install 'continual-petl\[ray\]'"):
        learn(stream(backbone_folder(), [task("one")]), tmp_path / "run", executor="ray")
    assert not (tmp_path / "run").exists()

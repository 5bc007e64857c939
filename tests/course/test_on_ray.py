"""Many tasks at once on a Ray cluster of two workers: the store ends as that of a course in one process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, learn
from continual_petl.course import on_ray
from tests.course.at_once import TASKS, TRAINING, DieOnce, files_of, stop_half_way
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]

# `make` installs Ray with the tools of developers, so CI runs this.
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'continual-petl[ray]'"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = importlib.import_module("ray")
    with pytest.MonkeyPatch.context() as patch:
        # Ray's workers stand back for everything else that runs, other tests included.
        patch.setenv("RAY_worker_niceness", "0")
        for left in (2, 1, 0):
            try:
                ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, object_store_memory=100 << 20)
                break
            except Exception:
                # Ray gives its own processes 30 seconds to start, whatever else the machine does.
                ray.shutdown()
                if not left:
                    raise
        yield ray
        ray.shutdown()


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")
def test_a_cluster_of_two_leaves_the_bytes_of_one_process_also_where_a_worker_is_killed(
    backbone_folder: Folder, tmp_path: Path, cluster: Any
) -> None:
    tasks = stream(backbone_folder(), TASKS, training=TRAINING)
    learn(tasks, tmp_path / "one")
    stop_half_way(tasks, tmp_path, ("one", "two"), executor="ray")
    learn(tasks, tmp_path / "run", executor="ray", callbacks=[DieOnce(tmp_path / "died", "two")])
    assert (tmp_path / "died").exists()
    assert files_of(tmp_path / "run") == files_of(tmp_path / "one")
    assert cluster.is_initialized(), "a cluster that was there before stays"


def test_without_ray_one_sentence_says_what_to_install(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Ray is not installed here: pip install 'continual-petl\[ray\]'"):
        learn(stream(backbone_folder(), [task("one")]), tmp_path / "run", executor="ray")
    assert not (tmp_path / "run").exists()

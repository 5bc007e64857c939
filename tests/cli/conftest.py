"""A bench for every test, copied from one whose first task was learned once, and processes that run single commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.bench import Bench
from tests.cli.light import LightProcesses


@pytest.fixture(scope="session")
def learned_bench(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a bench whose run holds the first task; tests take copies."""
    bench = Bench(tmp_path_factory.mktemp("bench"), backbone_folder())
    first, _, _ = bench.stream.partition("  - name: other")
    (bench.folder / "first.yaml").write_text(first)
    assert bench.main("run", "FOLDER/first.yaml", "--run-dir", "FOLDER/run", "--quiet") == 0
    return bench


@pytest.fixture
def bench(learned_bench: Bench, tmp_path: Path) -> Bench:
    """Return a copy of the bench for one test."""
    return learned_bench.copy(tmp_path / "bench")


@pytest.fixture(scope="session")
def light_processes() -> Iterator[LightProcesses]:
    """Return an object that runs commands in processes without heavy imports."""
    processes = LightProcesses()
    yield processes
    processes.close()

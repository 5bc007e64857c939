"""Every table runs on a tiny model with real workers; its result can be read back and rendered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.benchmarks.bench import TABLES, render, run, start_workers
from experiments.benchmarks.options import ROOT, parse
from experiments.benchmarks.peers.client import Peer
from experiments.benchmarks.result import read_result

pytestmark = pytest.mark.slow

QUICK = ("--quick", "--repetitions", "1", "--peers", "peft", "--peft-python", sys.executable)


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Peer]]:
    started = start_workers(parse(["step", *QUICK], TABLES))
    yield started
    for peer in started.values():
        peer.close()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_measured_written_and_shown_again(table: str, workers: dict[str, Peer], tmp_path: Path) -> None:
    result = run(parse([table, *QUICK, "--out", str(tmp_path)], TABLES), lambda line: None, workers)
    assert read_result(tmp_path / f"{table}.json") == result
    assert (tmp_path / f"{table}.md").read_text(encoding="utf-8") == render(result)
    assert all(value >= 0 for values in result.samples.values() for value in values)
    # Neither file has a path of this machine.
    for file in (f"{table}.json", f"{table}.md"):
        assert str(Path(sys.executable).parent) not in (tmp_path / file).read_text(encoding="utf-8")


def test_the_script_for_a_gpu_runs_on_a_cpu(tmp_path: Path) -> None:
    script = ROOT / "experiments" / "benchmarks" / "gpu.sh"
    argv = [str(script), "--quick", str(tmp_path), "inference", "shared_pass"]
    subprocess.run(argv, env=os.environ | {"PYTHON": sys.executable}, check=True, capture_output=True)
    assert [line.split(" after")[0] for line in (tmp_path / "parts.txt").read_text().splitlines()] == [
        "inference-cuda-base: exit status 0",
        "shared_pass: exit status 0",
    ]
    assert read_result(tmp_path / "inference-cuda-base.json").medians
    assert {entry["bank"] for entry in json.loads((tmp_path / "shared_pass.json").read_text())["results"]} == {
        "lora",
        "houlsby",
    }

"""Measurements are written with the command, the commit and the machine before them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.benchmarks.machine import describe, write_measured


def test_measurements_follow_the_facts_about_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = describe(torch.device("cpu"))
    for file in (tmp_path / "found.json", None):
        write_measured({"seconds": [1.5]}, "python -m experiments.benchmarks.one", machine, file)
    text = (tmp_path / "found.json").read_text()
    assert text == capsys.readouterr().out
    assert list(json.loads(text)) == ["command", "commit", "changed", "machine", "seconds"]

"""The figure and the command of the reference's page on extensions do what it says, on a learned run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from continual_petl.report.figures import registry
from continual_petl.report.figures.style import as_figure
from continual_petl.report.read_facts import read_facts
from tests.docs.blocks import ROOT, blocks_of
from tests.streams_in_code import stream, task


def test_figure_and_command_of_the_page(
    backbone_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = "docs/reference/extension.md"
    monkeypatch.setattr(registry, "_of_run", {**registry._of_run})
    own: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks_of(page, (ROOT / page).read_text("utf-8")):
        exec(block.text, own)
    run = learn(stream(backbone_folder(), [task("one"), task("two")], training={"epochs": 1}), tmp_path / "run")

    drawn = as_figure(registry._of_run["lowest"].draw(read_facts(tmp_path / "run")) or {})
    R = run.results.scores
    assert list(drawn.data[0].y) == [R[0, 0], min(R[1])]

    parser = argparse.ArgumentParser()
    own["add_arguments"](parser)
    for words, said in (([], f"{R[1, 1]:.2f}\n"), (["--json"], json.dumps({"score": R[1, 1]}) + "\n")):
        arguments = parser.parse_args([str(tmp_path / "run"), "two", "--digits", "2", *words])
        assert own["execute"](arguments, []) == 0
        assert capsys.readouterr().out == said

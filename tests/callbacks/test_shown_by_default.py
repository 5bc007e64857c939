"""``learn`` in Python shows progress in terminals and notebooks, and writes no logs by default."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from continual_petl import learn
from continual_petl.callbacks import LiveProgress
from tests.callbacks.test_terminal import Terminal
from tests.streams_in_code import stream, task

LINE = "task 1 of 1: one"


@pytest.mark.parametrize(
    ("where", "options", "shown"),
    [
        ("a file", {}, 0),
        ("a file", {"progress": True}, 1),
        ("a terminal", {}, 1),
        ("a terminal", {"progress": False}, 0),
        ("a terminal", {"callbacks": [LiveProgress()]}, 1),
        ("a notebook", {}, 1),
    ],
)
def test_progress_is_shown_in_terminals_and_notebooks(
    backbone_folder: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    options: dict[str, Any],
    shown: int,
) -> None:
    terminal = Terminal()
    if where == "a terminal":
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "dumb")
    if where == "a notebook":
        lines: list[str] = []
        monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
        monkeypatch.setattr(Console, "print", lambda self, text, **more: lines.append(text))
    tasks = stream(backbone_folder(), [task("one", num_rows=16)], training={"epochs": 1})
    learn(tasks, tmp_path / "run", **options)
    said = "\n".join(lines) if where == "a notebook" else terminal.getvalue() + capsys.readouterr().err
    assert said.count(LINE) == shown

"""A command is one file: in the folder of commands, or in an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from continual_petl.added import files_of
from continual_petl.cli import commands as folder
from continual_petl.cli.main import main
from continual_petl.cli.parser import commands

ROOT = Path(__file__).parents[2]
GREETING = '''"""Greet a task.

examples:
  continual-petl greet runs/mine one
"""
from continual_petl.cli.shared_options import add_overrides, add_run, add_task
PLACE = 115

def add_arguments(command):
    add_run(command)
    add_task(command)
    add_overrides(command)

def execute(arguments, overrides):
    print("hello", arguments.run, arguments.task, overrides)
    return 0
'''


@pytest.fixture
def added_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "greet.py").write_text(GREETING)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    files_of.cache_clear()
    yield
    files_of.cache_clear()
    sys.modules.pop("continual_petl.cli.commands.greet", None)


def test_every_command_has_its_own_place() -> None:
    places = [command.PLACE for command in commands().values()]
    assert places == sorted(set(places))


@pytest.mark.usefixtures("added_file")
def test_a_new_file_is_a_new_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "runs/mine", "one", "--training.epochs", "2"]) == 0
    assert capsys.readouterr().out == "hello runs/mine one [('training.epochs', '2')]\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "    init      inspect" in (shown := capsys.readouterr().out)
    assert shown.index("init  ") < shown.index("greet     greet a task") < shown.index("run   ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["greet", "runs/mine", "--task", "one"], 0, "hello runs/mine one []"),
        (["greet", "--help"], 0, "Greet a task."),
        (["broken"], 2, "command 'broken': nothing_there cannot be loaded: ModuleNotFoundError"),
        (["gret"], 2, "there is no command 'gret' (did you mean 'greet'?); the commands are init, "),
    ],
)
def test_a_command_of_an_installed_package_is_found(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    (tmp_path / "greeting.py").write_text(GREETING)
    about = tmp_path / "greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[continual_petl.commands]\ngreet = greeting\nbroken = nothing_there\n")
    done = subprocess.run(
        [sys.executable, "-m", "continual_petl", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr

"""A task is given to every command in the same two ways: by its place, and as --task."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.main import main
from continual_petl.cli.parser import build_parser, commands, options_of, take_task

WORDS: dict[str, tuple[list[str], list[str]]] = {
    "forget": (["RUN"], ["--json"]),
    "verify": (["RUN"], ["--data"]),
    "ablate": (["RUN"], ["--split", "test"]),
    "export": (["RUN"], ["--format", "peft", "--to", "folder"]),
    "import": (["RUN", "FOLDER"], ["--kind", "classification"]),
    "push": (["RUN", "user/name"], ["--private"]),
    "show": (["RUN"], ["--json"]),
    "similar": (["RUN"], ["--top", "3"]),
}
"""For each command, the words before a task, and an option."""
WITHOUT_PLACE = {
    "predict": "texts follow RUN",
    "sweep": "the tasks are those of a stream, and any --key VALUE may follow",
}


def test_every_command_with_a_task_takes_it_in_both_ways() -> None:
    parser = build_parser()
    assert all(
        parser.parse_known_args([name, *before, *option])[0].takes_task for name, (before, option) in WORDS.items()
    )
    assert {name for name in commands() if "--task" in options_of(name)} == {*WORDS, *WITHOUT_PLACE}


def given(words: list[str]) -> Any:
    arguments, rest = build_parser().parse_known_args(words)
    assert take_task(arguments, rest) == []
    return arguments.task


@pytest.mark.parametrize("command", WORDS)
def test_task_by_its_place_or_as_option_in_any_order_is_the_same(command: str) -> None:
    before, option = WORDS[command]
    expected = ["a-task"] if command == "ablate" else "a-task"
    named = ["--task", "a-task"]
    for words in (
        [*before, "a-task", *option],
        [*before, *option, "a-task"],
        [*option, *before, "a-task"],
        [*before, *named, *option],
        [*before, *option, *named],
        [*option, *before, *named],
    ):
        assert given([command, *words]) == expected, words
    assert given([command, *before, *option]) is None


def test_ablate_takes_several_tasks_in_both_ways() -> None:
    for words in (
        ["RUN", "a", "b"],
        ["RUN", "--task", "a", "b"],
        ["RUN", "a", "--task", "b"],
        ["RUN", "--json", "a", "b"],
    ):
        assert given(["ablate", *words]) == ["a", "b"]


def test_two_different_tasks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["verify", "RUN", "one", "--task", "other"])
    assert "TASK: got 'one' and 'other'; give one task" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["verify", "RUN", "one", "other"])
    assert "unrecognized arguments: other" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "import", "similar"])
def test_missing_task_is_named(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, option = WORDS[command]
    (tmp_path / "stream.yaml").write_text("")
    assert main([command, *(str(tmp_path) if word == "RUN" else word for word in before), *option]) == 2
    assert f"{command}: TASK is missing; name the task" in capsys.readouterr().err


def test_help_states_the_convention() -> None:
    assert "TASK can be given by its place or, anywhere, as --task TASK" in (build_parser().epilog or "")
    commands = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name in WORDS:
        usage = " ".join(commands.choices[name].format_usage().split())
        assert "[--task TASK" in usage
        assert "[TASK" in usage, usage

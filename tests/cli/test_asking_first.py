"""What cannot be undone is asked for first; what --quiet and `learn` do not leave out; commands that can be pasted."""

from __future__ import annotations

import io
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Interrupted, Run, StreamSpec, TaskStream, learn
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec
from continual_petl.cli.main import main
from continual_petl.errors import quoted
from continual_petl.streams.stream_file.dump import dump_stream
from tests.engine.test_resume import SignalAt
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TRAINING: dict[str, Any] = {"epochs": 1, "batch_size": 8}


class Terminal(io.StringIO):
    """Standard input or error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run with two small tasks."""
    return learned_runs(_stream(backbone_folder()))


@pytest.fixture
def run(learned: Path, tmp_path: Path) -> Path:
    """Return a copy of it, in a folder whose name has spaces and a quote."""
    return shutil.copytree(learned, tmp_path / "it's a run")


def _stream(backbone: Path, *more: dict[str, Any], **settings: Any) -> TaskStream:
    tasks = [task("one", num_rows=16), task("two", num_rows=16), *more]
    return stream(backbone, tasks, training=TRAINING | settings)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_forget_asks_on_a_terminal(run: Path, typed: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", shown)
    assert main(["forget", str(run), "two"]) == code
    assert f"{run}: task two would be deleted for good. Go on? [y/N]" in shown.getvalue()
    assert Run(run).store.tasks == (["one"] if code == 0 else ["one", "two"])
    assert ("nothing was changed" in shown.getvalue()) == (code == 2)


def test_forget_needs_yes_without_a_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", str(run), "two"]) == 2
    assert "nothing was changed, since there is no terminal to ask on: add --yes" in capsys.readouterr().err
    assert Run(run).store.tasks == ["one", "two"]
    assert main(["forget", str(run), "twoo"]) == 2
    assert "did you mean 'two'?" in capsys.readouterr().err
    assert main(["forget", str(run), "two", "--yes"]) == 0
    assert Run(run).store.tasks == ["one"]


def test_learn_says_nothing_about_other_tasks(
    run: Path, backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dump_stream(_stream(backbone_folder(), task("three", num_rows=16)).spec)
    changed = text.replace("batch_size: 8", "batch_size: 4")
    assert changed != text
    (tmp_path / "stream.yaml").write_text(changed)
    assert main(["run", str(tmp_path / "stream.yaml"), "--run-dir", str(run), "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.err.count("was learned with other settings (training.batch_size) and stays unchanged") == 2
    assert f"verify {shlex.quote(str(run))}" in told.out.replace("\n", "")
    four = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [task("four", num_rows=16)]})
    tree = dump_stream(four).split("tasks:\n")[1]
    (tmp_path / "four.yaml").write_text("\n".join(line[2:] for line in tree.splitlines()) + "\n")
    assert main(["learn", str(run), str(tmp_path / "four.yaml")]) == 0
    assert "other settings" not in capsys.readouterr().err
    assert Run(run).store.tasks == ["one", "two", "three", "four"]


def test_progress_is_only_discarded_with_permission(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "stream.yaml", tmp_path / "run"
    many = stream(backbone_folder(), [task("one", num_rows=64)], training={"epochs": 3, "batch_size": 4})
    file.write_text(dump_stream(many.spec))
    with pytest.raises(Interrupted):
        learn(many, folder, callbacks=[SignalAt(7)])
    words = ["run", str(file), "--run-dir", str(folder), "--quiet", "--training.learning_rate", "0.01"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "task 'one': its saved progress (step 7 of 48" in told or "its saved progress (" in told
    assert "because training.learning_rate changed since it was saved" in told
    assert "add --discard-progress" in told
    assert main([*words, "--discard-progress"]) == 0
    assert Run(folder).store.tasks == ["one"]


@pytest.mark.parametrize("more", [{}, {"start_from": "auto"}, {"bottleneck": 8}, {"layers": "top-1"}, {"preset": None}])
def test_bank_without_a_preset_has_the_default_one(more: dict[str, Any]) -> None:
    assert BankChoice(**more) == BankChoice(**(more | {"preset": "houlsby"}))
    assert isinstance(BankChoice(**more).resolve(), BankSpec)
    assert BankChoice.model_validate(more).preset == "houlsby"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"start_from": "a", "bottleneck": 8}, "takes all settings from the other bank"),
        ({"fuse": ["a", "b"]}, "fuse belongs to preset fusion"),
        ({"rank": 8, "bottleneck": 8}, "set the same size"),
    ],
)
def test_other_banks_get_no_preset(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        BankChoice(**more)
    assert BankChoice(start_from="a").preset is None


@pytest.mark.parametrize("path", ["runs/a", "my runs/a", "it's", 'a"b', "$HOME;rm", "-x y", "ä b"])
def test_paths_in_commands_are_single_words(path: str) -> None:
    assert shlex.split(f"continual-petl verify {quoted(path)} --data") == ["continual-petl", "verify", path, "--data"]

"""A run on the Hub, or a copied folder, with a kind of the user's own: opened with permission and the same code only."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StoreError, kind_registry, learn
from continual_petl.cli.main import main
from tests.hub.conftest import SETTINGS, Folder
from tests.hub.local_hub import LocalHub
from tests.streams_in_code import regression_task, stream, task

CODE = """
from pathlib import Path
from continual_petl.kinds.regression import Regression
Path(__file__).with_name("trace").write_text("executed")
class Halves(Regression):
    name = "halves"
"""
NAME = "kinds_of_mine.Halves"


def forget() -> None:
    """Forget the module and its permission, as in a new process."""
    kind_registry.REGISTRY.registered.clear()
    kind_registry._codes.clear()
    sys.modules.pop("kinds_of_mine", None)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of the user's module, which writes another file when it is executed."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    (folder / "kinds_of_mine.py").write_text(CODE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second version in the same second has the same time stamp
    yield folder / "kinds_of_mine.py"
    forget()


@pytest.fixture
def pushed(module: Path, hub: LocalHub, backbone_folder: Folder, tmp_path: Path) -> Any:
    """Push a run with such a task, copy its folder, and return its prediction."""
    own = regression_task("own", num_rows=16) | {"kind": NAME, "remote_code": True}
    run = learn(stream(backbone_folder(), [own], **SETTINGS), tmp_path / "run")
    run.push("user/run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    found = run.predict("w1 w2", task="own")
    forget()
    module.with_name("trace").unlink()
    return found


def test_it_is_opened_with_permission(module: Path, pushed: Any, tmp_path: Path) -> None:
    for place in ("hf://user/run", "hf://user/run", tmp_path / "copy"):  # the second one finds the download
        forget()
        run = Run(place, remote_code=True)
        assert run.predict("w1 w2", task="own") == pushed
        assert all(check.ok for check in run.verify())
    forget()
    assert Run.from_hub("user/run", remote_code=True).predict("w1 w2", task="own") == pushed
    forget()
    assert main(["predict", "hf://user/run", "--task", "own", "w1 w2", "--remote-code"]) == 0


@pytest.mark.parametrize("place", ["hub", "copy"])
def test_it_is_refused_without_permission(module: Path, pushed: Any, tmp_path: Path, place: str) -> None:
    where = tmp_path / "copy" if place == "copy" else "hf://user/run"
    with pytest.raises((InputError, StoreError), match="not imported without your permission") as caught:
        Run(where)
    said = str(caught.value)
    assert "pass --remote-code, or Run(folder, remote_code=True)" in said
    assert len(said.splitlines()) == 1
    if place == "hub":
        with pytest.raises((InputError, StoreError), match="not imported without your permission"):
            Run.from_hub("user/run")
    assert not module.with_name("trace").exists()


@pytest.mark.parametrize("place", ["hub", "copy"])
def test_other_code_and_no_code_are_refused(module: Path, pushed: Any, tmp_path: Path, place: str) -> None:
    where = tmp_path / "copy" if place == "copy" else "hf://user/run"
    module.write_text(CODE + "# another version\n")
    with pytest.raises(InputError, match=r"kinds_of_mine.py is not the code that the task was learned with") as caught:
        Run(where, remote_code=True)
    assert len(str(caught.value).splitlines()) == 1
    module.unlink()
    with pytest.raises(InputError, match="there is no module 'kinds_of_mine': install its package, or add") as caught:
        Run(where, remote_code=True)
    assert len(str(caught.value).splitlines()) == 1
    assert not module.with_name("trace").exists()


@pytest.fixture
def half_learned(module: Path, hub: LocalHub, backbone_folder: Folder, tmp_path: Path) -> None:
    """Push a run, and copy its folder, whose second task has such a kind and is not learned yet."""
    own = regression_task("own", num_rows=16) | {"kind": NAME, "remote_code": True}
    tasks = stream(backbone_folder(), [task("one", num_rows=16), own], **SETTINGS)
    Run.create(tasks, tmp_path / "run").learn(next(iter(tasks)))
    Run(tmp_path / "run", remote_code=True).push("user/run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    forget()
    module.with_name("trace").unlink()


@pytest.mark.usefixtures("half_learned")
@pytest.mark.parametrize("place", ["hub", "copy"])
def test_the_kind_of_a_task_that_is_not_learned_yet_needs_permission_too(
    module: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "copy" if place == "copy" else "hf://user/run"
    for _ in range(2):  # the second time, there is a download
        with pytest.raises(InputError, match="not imported without your permission") as caught:
            Run(where)
        assert "does not match its certificates" not in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert not module.with_name("trace").exists()
    run = Run(where, remote_code=True)
    assert run.predict("w1", task="one").task == "one"
    forget()
    for words in (["show", "--task", "one"], ["verify"], ["report", "--output", str(tmp_path / "page")]):
        forget()
        assert main([words[0], str(where), *words[1:], "--remote-code"]) == 0, capsys.readouterr()
    module.unlink()
    forget()
    with pytest.raises(InputError, match="there is no module 'kinds_of_mine': install its package, or add"):
        Run(where, remote_code=True)

"""Unexpected or unreadable content in a run folder is reported in one paragraph."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run
from continual_petl.cli.main import main
from continual_petl.report.read_facts import read_facts
from continual_petl.store.files.sealed import write_sealed
from continual_petl.store.store import Store
from tests.store.tampering import problems


@pytest.fixture
def forbidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run with a bank folder that cannot be read; ``os`` is patched, since root ignores permissions."""
    place = str(folder / "banks" / "two") + os.sep

    def refusing(real: Callable[..., object]) -> Callable[..., object]:
        def act(path: object, *args: object, **named: object) -> object:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(place):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return real(path, *args, **named)

        return act

    for name in ("open", "stat", "lstat"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    return folder


@pytest.mark.parametrize("command", ["list", "verify", "show"])
def test_unreadable_folder_is_reported(forbidden: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(forbidden), *(["two"] if command == "show" else [])]) == 1
    found = "".join(capsys.readouterr())
    assert (
        f"{forbidden}/banks/two/bank.json: cannot be read (Permission denied). Give this user permission to read it."
        in (found.replace("\n", " "))
    )
    assert Store(forbidden).has("one")


def test_stray_file_among_the_banks_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "banks" / "readme.txt").write_text("what is here")
    expected = "banks/readme.txt: this is a file, but only task folders belong here. Move it out of the run folder."
    assert expected in problems(folder)["readme.txt"]
    assert main(["list", str(folder)]) == 1
    assert expected in capsys.readouterr().err
    assert len(Run(folder).predict(["w0 w1"], task="one")) == 1


def test_sealed_certificate_with_an_unknown_dtype_is_refused(folder: Path) -> None:
    path = folder / "banks" / "three" / "bank.json"
    content = json.loads(path.read_text())
    next(iter(content["tensors"].values()))["dtype"] = "object"
    write_sealed(path, content)
    expected = ".dtype: Input should be 'float64', 'int64'"
    assert expected in problems(folder)["three"]
    facts = read_facts(folder)
    assert [task.name for task in facts.tasks] == ["one", "two"]
    assert any(expected in problem for check in facts.others for problem in check.problems)
    assert not facts.ok

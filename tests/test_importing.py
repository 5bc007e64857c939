"""Garbage collection is paused while heavy libraries are imported, and only then."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from continual_petl import __main__, _importing
from continual_petl._importing import heavy_imports
from continual_petl.cli import main as command_line

NAME = "a_heavy_library_of_this_test"


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list of the calls that exempt objects from collection; a library is still to be imported."""
    calls: list[str] = []
    monkeypatch.setattr(_importing, "_HEAVY", (NAME,))
    monkeypatch.setattr(_importing, "_is_own", False)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    yield calls
    gc.enable()


def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, ModuleType(NAME))


def test_no_collection_while_a_heavy_library_is_imported(monkeypatch: pytest.MonkeyPatch, frozen: list[str]) -> None:
    with heavy_imports():
        with heavy_imports():
            assert not gc.isenabled()
            imported(monkeypatch)
        assert not gc.isenabled()
    assert gc.isenabled()
    with heavy_imports():
        assert gc.isenabled(), "nothing is left to import"
    assert frozen == [], "objects of the user's program must remain collectable"


def test_collection_continues_after_a_failed_import_and_stays_off_if_it_was(frozen: list[str]) -> None:
    with pytest.raises(ImportError), heavy_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with heavy_imports():
        pass
    assert not gc.isenabled()
    assert frozen == []


def test_a_command_exempts_what_it_has_imported(monkeypatch: pytest.MonkeyPatch, frozen: list[str]) -> None:
    def command() -> int:
        with heavy_imports():
            pass
        assert frozen == [], "nothing heavy was imported"
        with heavy_imports():
            imported(monkeypatch)
        return 5

    monkeypatch.setattr(command_line, "main", command)
    assert __main__.main() == 5
    assert frozen == ["freeze"]
    assert gc.isenabled()


def test_a_worker_exempts_what_its_first_call_imports(frozen: list[str]) -> None:
    _importing.pause_collection()
    with heavy_imports():
        assert not gc.isenabled()
    assert not gc.isenabled()
    _importing.resume_collection()
    assert gc.isenabled()
    assert frozen == ["freeze"]

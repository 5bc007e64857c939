"""Garbage collection is paused while heavy libraries are imported, and only then; own processes keep freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from continual_petl import __main__, _process
from continual_petl._process import heavy_imports, keep_freed_memory
from continual_petl.cli import doctor_checks
from continual_petl.cli import main as command_line

NAME = "a_heavy_library_of_this_test"


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list of the calls that exempt objects from collection; a library is still to be imported."""
    calls: list[str] = []
    monkeypatch.setattr(_process, "_HEAVY", (NAME,))
    monkeypatch.setattr(_process, "_is_own", False)
    monkeypatch.setattr(_process, "chose_spins", False)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in _process.WAITING:
        monkeypatch.setenv(name, "set here, so that it is restored after the test")
        monkeypatch.delenv(name)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(_process, "keep_freed_memory", lambda: calls.append("keep"))
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
    assert frozen == ["freeze", "keep"]
    assert gc.isenabled()


def test_a_worker_exempts_what_its_first_call_imports(frozen: list[str]) -> None:
    _process.pause_collection()
    with heavy_imports():
        assert not gc.isenabled()
    assert not gc.isenabled()
    _process.resume_collection()
    assert gc.isenabled()
    assert frozen == ["freeze", "keep"]


@pytest.fixture
def mallopt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the settings of malloc that are made, on a system without settings of the user."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", "linux")
    for name in (*_process._MALLOC_VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def accepted(parameter: int, value: int) -> int:
        made.append((parameter, value))
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=accepted))
    return made


def test_large_blocks_are_kept(mallopt: list[tuple[int, int]]) -> None:
    keep_freed_memory()
    assert mallopt == [(-3, 2**30), (-1, 2**30)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "1000"),
        ("MALLOC_TRIM_THRESHOLD_", "1000"),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=8:glibc.malloc.check=3"),
    ],
)
def test_settings_of_the_user_stay(
    mallopt: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=8")
    keep_freed_memory()
    assert mallopt.pop() == (-1, 2**30), "this variable does not configure malloc"
    mallopt.clear()
    monkeypatch.setenv(name, value)
    keep_freed_memory()
    assert mallopt == []


@pytest.mark.parametrize(
    ("most", "made"), [(2**25, [(-3, 2**30), (-3, 2**25), (-1, 2**30)]), (0, [(-3, 2**30), (-3, 2**25)])]
)
def test_refused_sizes_do_not_make_it_worse(
    mallopt: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, most: int, made: list[tuple[int, int]]
) -> None:
    def at_most(parameter: int, value: int) -> int:
        mallopt.append((parameter, value))
        return int(parameter == -1 or value <= most)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=at_most))
    keep_freed_memory()
    assert mallopt == made


def test_other_systems_are_left_alone(mallopt: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("no library is opened"))
    keep_freed_memory()
    assert mallopt == []


def test_waiting_threads_of_a_command_sleep_soon(frozen: list[str]) -> None:
    _process.own_process(shares_cores=True)
    assert os.environ["GOMP_SPINCOUNT"] == _process.SPINS
    assert "OMP_WAIT_POLICY" not in os.environ
    assert doctor_checks.settings()["GOMP_SPINCOUNT"].startswith(f"{_process.SPINS} (chosen, since other processes use")


@pytest.mark.parametrize(
    ("cores", "running", "busy"),
    [
        (2, [1, 1, 1, 1], False),
        (2, [3, 3, 2, 3], True),
        (2, [3, 1, 3, 3], False),
        (64, [8, 8, 8, 8], False),
        (64, [9, 9, 9, 9], True),
        (2, [0, 0, 0, 0], False),
    ],
)
def test_waiting_threads_of_a_command_sleep_soon_on_a_busy_machine(
    frozen: list[str], monkeypatch: pytest.MonkeyPatch, cores: int, running: list[int], busy: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(_process, "_num_running", running.__getitem__)
    _process.own_process(shares_cores=False)
    assert ("GOMP_SPINCOUNT" in os.environ) == busy


def test_running_threads_are_counted() -> None:
    assert _process._num_running(1) >= 1


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")])
def test_how_threads_wait_is_left_to_the_user(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    _process.own_process(shares_cores=True)
    assert {key: os.environ.get(key) for key in _process.WAITING if key in os.environ} == {name: value}
    assert doctor_checks.settings()[name] == value


def test_the_setting_is_made_before_torch_is_imported() -> None:
    """GNU's OpenMP reads it only once, when it is loaded."""
    program = (
        "import os, sys\n"
        "from continual_petl import __main__\n"
        "from continual_petl.cli import main as command_line\n"
        "assert 'torch' not in sys.modules\n"
        "command_line.main = lambda: print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])\n"
        "sys.argv = ['continual-petl', 'serve']\n"
        "__main__.main()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in _process.WAITING}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", _process.SPINS]

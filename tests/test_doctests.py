"""The examples in docstrings pass, and a wrong one is detected."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import types

import pytest

import continual_petl

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(continual_petl.__path__, "continual_petl.")
    if not found.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_doctests_pass(name: str) -> None:
    module = importlib.import_module(name)
    if ">>>" in inspect.getsource(module):  # looking at every object of a module takes long
        assert doctest.testmod(module).failed == 0


def test_wrong_doctest_fails(capsys: pytest.CaptureFixture[str]) -> None:
    module = types.ModuleType("wrong", ">>> 1 + 1\n3\n")
    assert doctest.testmod(module).failed == 1
    assert "Expected:\n    3" in capsys.readouterr().out

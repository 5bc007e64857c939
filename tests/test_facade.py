"""Every exported name exists, type checkers see the same names, and guides import nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import continual_petl
from continual_petl._lazy import lazy_names
from tests.docs.blocks import ROOT, blocks_of
from tests.house import source_files

PACKAGES = [
    module for module, path in source_files() if path.name == "__init__.py" and "lazy_names(" in path.read_text("utf-8")
]
EXPORTED = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(("package", "name"), EXPORTED)
def test_public_names_can_be_imported(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert getattr(module, name) is not None
    assert name in dir(module)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(seen) == sorted(module.__all__)
    for name, home in seen.items():
        assert getattr(importlib.import_module(str(home)), name) is getattr(module, name)


def test_a_package_without_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(continual_petl.__spec__.loader), "get_source", lambda self, name: None)
    with pytest.raises(ImportError, match=r"continual_petl: the source of its __init__\.py is missing"):
        lazy_names("continual_petl")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"it has .*ContinualLearner"):
        continual_petl.lern  # noqa: B018


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_import_only_public_packages(page: Path) -> None:
    blocks = blocks_of(page.name, page.read_text("utf-8"))
    code = "\n".join(block.text for block in blocks if block.language == "python")
    assert re.findall(r"(?:from|import) (continual_petl\.\w+\.[\w.]+)", code) == []

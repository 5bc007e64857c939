"""The three top-level folders form one import package, continual_petl."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("streams", "callbacks")


def _packages_on_disk() -> set[str]:
    found = set()
    for top in ("continual_petl", *LINKED):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "continual_petl" else ("continual_petl", *parts)))
    return found


def test_every_package_is_listed_in_pyproject() -> None:
    with open(ROOT / "pyproject.toml", "rb") as handle:
        listed = tomllib.load(handle)["tool"]["setuptools"]["packages"]
    assert set(listed) == _packages_on_disk()


@pytest.mark.parametrize("name", LINKED)
def test_symlinks_point_to_the_real_folders(name: str) -> None:
    link = ROOT / "continual_petl" / name
    if not link.is_dir():
        pytest.skip("this checkout has no symbolic links; `pip install -e .` maps the folder instead")
    theirs, ours = ({p.relative_to(d): p.read_bytes() for p in d.rglob("*.py")} for d in (link.resolve(), ROOT / name))
    assert theirs == ours, f"continual_petl/{name} must be a link to {name}/, not a second copy"

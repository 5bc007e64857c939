"""The wheel check refuses a wheel with a second top-level name, a missing file or an outdated file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def _check_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / ".ci" / "check_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wheel(folder: Path, names: set[str], *requirements: str) -> Path:
    path = folder / "continual_petl-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
        lines = [
            "Metadata-Version: 2.4",
            "Name: continual-petl",
            *(f"Requires-Dist: {requirement}" for requirement in requirements),
        ]
        archive.writestr("continual_petl-0.dist-info/METADATA", "\n".join(lines))
    return path


def test_a_wheel_with_exactly_the_files_on_disk_passes(tmp_path: Path) -> None:
    check = _check_wheel()
    names = check.files_on_disk()
    assert {"continual_petl/py.typed", "continual_petl/streams/__init__.py"} <= names
    check.check_contents(_wheel(tmp_path, names))


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        ({"streams/__init__.py"}, set(), r"top-level names \['continual_petl', 'streams'\]; only 'continual_petl'"),
        (set(), {"continual_petl/py.typed"}, r"missing \['continual_petl/py.typed'\], unexpected \[\]"),
        (set(), {"continual_petl/callbacks/__init__.py"}, r"missing \['continual_petl/callbacks/__init__.py'\]"),
        ({"continual_petl/old.py"}, set(), r"unexpected \['continual_petl/old.py'\]"),
    ],
)
def test_wheel_with_wrong_contents_is_refused(tmp_path: Path, added: set[str], removed: set[str], message: str) -> None:
    check = _check_wheel()
    with pytest.raises(SystemExit, match=message):
        check.check_contents(_wheel(tmp_path, check.files_on_disk() - removed | added))


def test_transitive_requirements_are_found_without_extras(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, set(), "Jinja2>=3", "pytest; extra == 'dev'", "nothing; python_version < '3'")
    assert set(_check_wheel().required(wheel)) == {"jinja2", "markupsafe"}


def test_uninstalled_requirement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"needs 'no-such-package>=2', which is not in the environment"):
        _check_wheel().required(_wheel(tmp_path, set(), "no-such-package>=2"))


def test_linked_package_is_importable_without_scripts(tmp_path: Path) -> None:
    check = _check_wheel()
    check.link(check.required(_wheel(tmp_path, set(), "pygments"))["pygments"], tmp_path / "packages")
    code = "import pygments, sys; sys.exit(not pygments.__file__.startswith(sys.path[-1]))"
    argv = [sys.executable, "-S", "-I", "-c", f"import sys; sys.path.append({str(tmp_path / 'packages')!r}); {code}"]
    assert subprocess.run(argv, check=False).returncode == 0
    assert {path.name.split("-")[0] for path in (tmp_path / "packages").iterdir()} == {"pygments"}

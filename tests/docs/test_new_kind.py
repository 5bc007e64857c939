"""The changes in docs/how-to/new-kind.md, applied to a copy of the package, are enough to learn a task of the new kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.diffs import applied

PAGE = "docs/how-to/new-kind.md"
BLOCKS = blocks_of(PAGE, (ROOT / PAGE).read_text(encoding="utf-8"))
DIFFS = [block for block in BLOCKS if block.language == "diff"]


@pytest.mark.slow
def test_package_with_the_documented_changes_learns_the_new_kind(
    backbone_folder: Callable[..., Path], tmp_path: Path
) -> None:
    package = tmp_path / "package"
    for folder in ("continual_petl", "streams", "callbacks"):
        inside = package / "continual_petl" if folder == "continual_petl" else package / "continual_petl" / folder
        names = shutil.ignore_patterns("*.pyc.*", *(("streams", "callbacks") if folder == "continual_petl" else ()))
        shutil.copytree(ROOT / folder, inside, ignore=names)  # with the compiled files, which are valid for the copies
    for block in DIFFS:
        name, text = applied(block)
        where = package / (name if name.startswith("continual_petl") else f"continual_petl/{name}")
        where.write_text(text, encoding="utf-8")
    (script,) = (block for block in BLOCKS if block.title == "try_it.py")
    (tmp_path / "try_it.py").write_text(script.text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "try_it.py", str(backbone_folder())],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "counting" / "banks" / "tens" / "bank.json").is_file()


def test_files_in_the_table_exist() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in text.split("## 6. Tests")[1].splitlines() if line.startswith("| `")]
    assert listed
    assert [name for name in listed if not (ROOT / name).is_file()] == []

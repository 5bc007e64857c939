"""Banks are verified one after another, so memory does not grow with their number.

`tests/store/many.py` does the measuring. With 1000 banks it takes some minutes::

    python -m tests.store.many FOLDER BACKBONE 1000
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import ROOT

Folder = Callable[..., Path]
MEBIBYTE = 2**20


@pytest.mark.slow
def test_many_banks_are_verified_in_bounded_memory(tmp_path: Path, backbone_folder: Folder) -> None:
    argv = [sys.executable, "-W", "ignore", "-m", "tests.store.many", str(tmp_path / "run"), str(backbone_folder())]
    said = subprocess.run([*argv, "40", "120"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    few, many = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    found = {40: few, 120: many}
    print(found)
    assert found[120]["peak"] - found[40]["peak"] < 20 * MEBIBYTE
    assert found[120]["certificates"] <= 64

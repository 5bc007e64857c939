"""Every study runs, on rows that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.__main__ import main
from experiments.studies.study import NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_of_every_study(name: str, tmp_path: Path) -> None:
    assert main([name, "--quick", "--out", str(tmp_path)]) == 0
    area, study = name.split("/")
    page = (tmp_path / area / "results" / f"{study}.md").read_text(encoding="utf-8")
    assert "no number means anything" in page
    assert "Not finished" not in page

"""Every study runs from start to end on made-up rows, and a finished study is not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.command import Request, run_studies
from experiments.studies.scale import QUICK
from experiments.studies.study import NAMES, find

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_quick_study_runs_and_is_not_repeated(name: str, tmp_path: Path) -> None:
    heard: list[str] = []
    study, request = find(name), Request(data=None, out=tmp_path, scale=QUICK)
    assert run_studies([study], request, heard.append)
    area, file = name.split("/")
    page = (tmp_path / area / "results" / f"{file}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {study.title}\n")
    assert "Not finished" not in page
    assert len(list((tmp_path / area / "results" / "figures").glob(f"{file}-*.svg"))) == page.count("](figures/")
    assert not [line for line in heard if "diverged" in line or "error" in line]
    heard.clear()
    assert run_studies([study], request, heard.append)
    assert all(line.endswith(" 0 to run") for line in heard)
    assert (tmp_path / area / "results" / f"{file}.md").read_text(encoding="utf-8") == page

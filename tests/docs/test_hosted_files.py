"""The files that a hosting service reads: workflows call the same script as everything else, and forms are valid YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_runs_ci_before_anything_else_may_happen(path: Path) -> None:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    first, *later = jobs.values()
    assert ".ci/run" in [step.get("run") for step in first["steps"]]
    assert all(job["needs"] in jobs for job in later)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "it is started directly"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form_of_an_issue_has_all_that_it_needs(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() >= {"name", "description", "body"}
    assert all(part["attributes"]["label"] for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])

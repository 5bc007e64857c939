"""A metric of the result matrix is one function in one file, or in an installed package, and appears in a run."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from continual_petl import metrics
from continual_petl.added import files_of
from continual_petl.metrics import registry
from continual_petl.report.results import Results
from tests.report.made import rows_of

ROOT = Path(__file__).parents[2]
R_TT = torch.tensor([[0.8, math.nan], [0.6, 0.9]], dtype=torch.float64)


def _results(R_TT: torch.Tensor) -> Results:
    names = tuple(f"t{number}" for number in range(len(R_TT)))
    return Results(
        tasks=names,
        metrics=("accuracy",) * len(names),
        splits=("test",) * len(names),
        rows=rows_of(R_TT),
        seconds={},
    )


def test_results_have_every_metric_of_the_matrix() -> None:
    results = _results(R_TT)
    assert [*results.matrix_metrics] == [*metrics.MATRIX_METRICS]
    for name, value in results.matrix_metrics.items():
        expected = metrics.MATRIX_METRICS[name](R_TT).item()
        assert value == expected or (math.isnan(value) and math.isnan(expected)), name
    found = results.to_json()["matrix_metrics"]
    assert (found["acc"], found["rem"], found["fwt_tri"]) == ((0.6 + 0.9) / 2, 1 - (0.8 - 0.6), None)
    assert results.is_complete
    missing = R_TT.clone()
    missing[1, 0] = math.nan
    assert math.isnan(_results(missing).matrix_metrics["bwt_gem"])
    assert not _results(missing).is_complete
    assert _results(R_TT[:0, :0]).matrix_metrics == {}


@pytest.fixture
def worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "worst_of_a_test.py").write_text(
        "from continual_petl.metrics.registry import matrix_metric\n"
        "@matrix_metric\n"
        "def worst_of_a_test(R_TT):\n"
        '    """Lowest final score."""\n'
        "    return R_TT[-1].min()\n"
    )
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_matrix", {**registry._matrix})
    files_of.cache_clear()
    yield
    files_of.cache_clear()
    sys.modules.pop("continual_petl.metrics.worst_of_a_test", None)


@pytest.mark.usefixtures("worst")
def test_a_new_file_is_a_new_metric_of_every_run() -> None:
    assert _results(R_TT).to_json()["matrix_metrics"]["worst_of_a_test"] == 0.6
    assert registry.meaning("worst_of_a_test") == "Lowest final score."


def test_a_metric_of_an_installed_package_appears_in_a_run(tmp_path: Path) -> None:
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[continual_petl.matrix_metrics]\nlast = mine:last\nbroken = mine:broken\n")
    (tmp_path / "mine.py").write_text(
        "def last(R_TT):\n    return R_TT[-1, -1]\n\ndef broken(R_TT):\n    return R_TT[7]\n"
    )
    program = (
        "import numpy as np; from continual_petl.errors import InputError; "
        "from continual_petl.metrics import registry; R_TT = np.array([[0.5]])\n"
        "try:\n    registry.of_matrix(R_TT)\nexcept InputError as error:\n    print(error)\n"
        "found = registry.added('matrix_metrics')\nregistry.added = lambda group: {'last': found['last']}\n"
        "print(registry.of_matrix(R_TT)['last'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    said, value = done.stdout.splitlines()
    assert said.startswith("matrix_metric 'broken': mine:broken fails: IndexError: ")
    assert said.endswith("It has to return one number for a float64 array (T, T).")
    assert value == "0.5"


def test_metrics_of_arrays_are_plain_numbers() -> None:
    assert registry.of_matrix(np.array([[0.5]]))["acc"] == 0.5

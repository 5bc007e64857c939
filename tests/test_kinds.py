"""Everything that a kind decides is in its file; kinds of other packages are found like those of this one."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from continual_petl import InputError, kind_registry
from continual_petl.heads.metric_code import load_metric
from continual_petl.kind import Kind
from continual_petl.kind_registry import built_in, find_kind, kind_names, kinds, names_where, register_kind
from continual_petl.kinds.regression import Regression
from continual_petl.learner.metrics import make_metrics
from continual_petl.report.figures.registry import run_figures
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.json_schema import json_schema
from tests.house import ROOT, source_files
from tests.processes import forked
from tests.streams_in_code import regression_task

HOMES = ("continual_petl.kinds.", "continual_petl.kind")  # kind.py and kind_registry.py too


def asks_for_a_kind(source: str) -> list[int]:
    """Return the lines that compare something with the name of a kind, or match it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            parts = [case.pattern for case in node.cases]  # type: ignore[misc]
        else:
            continue
        if {*built_in()} & {leaf.value for part in parts for leaf in ast.walk(part) if isinstance(leaf, ast.Constant)}:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("plan.kind == 'regression'", [1]),
        ("x = [t for t in ts\n     if t.kind not in ('seq2seq', 'causal-lm')]", [2]),
        ("match kind:\n    case 'multilabel':\n        pass", [1]),
        ("kind_of(plan).generates", []),
        ("names = {'regression': 1}", []),
    ],
)
def test_comparison_with_the_name_of_a_kind_is_detected(source: str, lines: list[int]) -> None:
    assert asks_for_a_kind(source) == lines


def test_only_kinds_compare_names_of_kinds() -> None:
    found = {name: asks_for_a_kind(path.read_text("utf-8")) for name, path in source_files()}
    assert {name: lines for name, lines in found.items() if lines and not name.startswith(HOMES)} == {}


def test_every_file_has_a_kind_and_every_kind_a_file() -> None:
    folder = ROOT / "continual_petl" / "kinds"
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py") if path.name != "__init__.py"}
    assert kind_names() == built_in() == tuple(sorted(files))
    for each in kinds():
        assert type(each).__module__ == f"continual_petl.kinds.{each.name.replace('-', '_')}"
    assert {"classification", "multilabel"} <= {*names_where("has_labels")} < {*kind_names()}


FORM = """
from continual_petl.banks.config.forms.base import Combination, FormConfig
class Half(FormConfig):
    name = "half_scale"
    rows = (Combination("half_scale", ("query",), None, ("add",)),)
    preset = "lora"
"""


def test_a_new_kind_or_form_of_this_package_is_one_file(tmp_path: Path) -> None:
    """A copy of the package gets one file; no other file of it changes."""
    shutil.copytree(ROOT / "continual_petl", tmp_path / "continual_petl", ignore=shutil.ignore_patterns("__pycache__"))
    kinds = tmp_path / "continual_petl" / "kinds"
    code = "from continual_petl.kinds.regression import Regression\n\n\nclass Ranks(Regression):\n    name = {!r}\n"
    (kinds / "half_ranks.py").write_text(code.format("half-ranks"))
    (kinds / "wrong.py").write_text(code.format("other"))
    (tmp_path / "continual_petl" / "banks" / "config" / "forms" / "half_scale.py").write_text(FORM)
    program = """
import sys
from continual_petl.banks.config.forms import find_form
from continual_petl.kind_registry import find_kind, kind_names
from continual_petl.streams.schema.stream_spec import TaskSpec
task = TaskSpec(name="t", kind="half-ranks", data="x")
print(task.resolved_metric, find_kind("half-ranks"), find_form("half_scale").name, "torch" in sys.modules)
try:
    find_kind("wrong")
except ValueError as error:
    print(error)
"""
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "spearman <continual_petl.kinds.half_ranks.Ranks" in done.stdout, done.stderr
    assert done.stdout.splitlines()[0].endswith("half_scale False")
    assert "wrong.py has to define a class derived from continual_petl.kind.Kind, with name = 'wrong';" in done.stdout


class Twice(Regression):
    name = "twice"


@pytest.fixture
def twice() -> Iterator[Kind]:
    added = Twice()
    register_kind(added)
    yield added
    kind_registry.REGISTRY.registered.clear()


def test_a_registered_kind_is_known_everywhere(twice: Kind) -> None:
    assert find_kind("twice") is twice
    assert json_schema()["$defs"]["TaskSpec"]["properties"]["kind"]["enum"][-1] == "twice"
    spec = {"name": "s", "backbone": "minilm", "tasks": [regression_task("t") | {"kind": "twice"}]}
    assert StreamSpec.model_validate(spec).tasks[0].resolved_metric == "spearman"


def test_a_kind_of_the_same_name_is_refused(twice: Kind) -> None:
    register_kind(Twice())  # a module that is executed again, as in a notebook
    with pytest.raises(InputError, match="kind 'regression': there is a kind of this name already"):
        register_kind(Regression())


def test_what_is_not_a_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"it has to be an object of a class derived from .*Kind, .*it makes <class"):
        register_kind(Twice)  # type: ignore[arg-type]


def test_unknown_kind_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        InputError, match=r"kind: got 'ranks'; allowed: causal-lm, classification, .*If a package adds it, install"
    ):
        find_kind("ranks")


def installed(folder: Path, value: str, code: str) -> dict[str, str]:
    """Write a package with an entry point, and return the variables with which a process finds it."""
    (folder / "counting-1.0.dist-info").mkdir()
    (folder / "counting-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    points = f"[continual_petl.kinds]\ncounts = {value}\n"
    (folder / "counting-1.0.dist-info" / "entry_points.txt").write_text(points)
    (folder / "counting.py").write_text(code)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("counting:Counts", "class Counts(Regression):\n    name = 'counts'\n", "counts 3"),
        (
            "counting:Counts",
            "class Counts(Regression):\n    name = 'other'\n",
            "with name = 'counts'; it makes <counting.Counts",
        ),
        ("counting:Missing", "", "kind 'counts': counting:Missing cannot be loaded: AttributeError"),
    ],
)
def test_a_kind_of_an_installed_package_is_found(tmp_path: Path, value: str, code: str, said: str) -> None:
    variables = installed(tmp_path, value, f"from continual_petl.kinds.regression import Regression\n{code}")
    program = (
        "from continual_petl.kind_registry import find_kind; f = find_kind('counts'); print(f.name, len(f.columns))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert said in done.stdout + done.stderr


def test_metrics_and_figures_of_an_installed_package_are_found(tmp_path: Path) -> None:
    installed(tmp_path, "counting:Counts", "")
    (tmp_path / "counting-1.0.dist-info" / "entry_points.txt").write_text(
        "[continual_petl.metrics]\nlength_ratio = counting:ratio\n[continual_petl.figures]\nlengths = figures_of_mine\n"
    )
    (tmp_path / "counting.py").write_text("def ratio(predictions, references): return 0.25\n")
    (tmp_path / "figures_of_mine.py").write_text(
        "from continual_petl.report.figures.registry import run_figure\n"
        "@run_figure('lengths', section='scores', caption='Lengths', words=lambda facts: 'Lengths.')\n"
        "def lengths(facts): return None\n"
    )

    def act() -> None:
        spec = TaskSpec.model_validate({"name": "t", "kind": "causal-lm", "data": "x", "metric": "length_ratio"})
        scores = make_metrics("causal-lm", None, "length_ratio", load_metric(spec.resolved_metric))
        scores.update(["a"], ["b"], sources=["c"])
        print(float(scores.compute()["length_ratio"]), "lengths" in [each.name for each in run_figures()])

    assert forked(act, tmp_path, tmp_path) == (0, "0.25 True\n")

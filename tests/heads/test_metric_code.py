"""A user-defined metric is imported only with permission, called with predictions, and refused with a reason."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.digests import file_digest
from continual_petl.errors import InputError
from continual_petl.heads import metric_code
from continual_petl.heads.metric_code import code_problem, function_of, load_metric
from continual_petl.heads.task_metrics import OwnMetric
from continual_petl.kind import IGNORED
from continual_petl.kind_registry import find_kind
from continual_petl.learner.metrics import make_metrics

CODE = """
from json import dumps
from math import nan
seen = []
number = 1
def share(predictions, references):
    seen.append((predictions, references))
    return sum(map(bool, map(list.__eq__, [predictions], [references]))) / 1
def undefined(predictions, references): return nan
def text(predictions, references): return "0.5"
def broken(predictions, references): raise KeyError("x")
def huge(predictions, references): return 10**400
def ends(predictions, references): raise SystemExit(0)
def clears(predictions, references): predictions.clear(); return nan
class Odd(float):
    def __repr__(self): raise ValueError("no repr")
def odd(predictions, references): return Odd("nan")
class Kind: pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package whose ``__init__`` writes a file when it is executed."""
    monkeypatch.setattr(metric_code, "_loaded", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "own_scores"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'trace')!r}).write_text('executed')\n"
    )
    (folder / "good.py").write_text(CODE)
    (folder / "bad.py").write_text("1 / 0\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_scores"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_code_is_identified_without_executing_it(package: Path) -> None:
    digest = file_digest(package / "good.py")
    assert code_problem("own_scores.good.share", digest) is None
    assert "its SHA-256 is" in str(code_problem("own_scores.good.share", "0" * 64))
    assert "there is no module 'own_scores.none'" in str(code_problem("own_scores.none.share", digest))
    with pytest.raises(InputError, match=r"good\.py is not the code that the score was certified with"):
        load_metric("own_scores.good.share", "0" * 64)
    with pytest.raises(InputError, match="has not been imported here, since that needs your permission"):
        function_of("own_scores.good.share", digest)
    assert not (package.parent / "trace").exists()
    assert load_metric("own_scores.good.share") == digest
    assert (package.parent / "trace").exists()
    with pytest.raises(InputError, match="needs your permission"):
        function_of("own_scores.good.share", "0" * 64)
    assert function_of("own_scores.good.share", digest)([], []) == 1


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("no_such_package.f", "there is no module 'no_such_package': install its package, or add the folder"),
        ("own_scores.good.more.f", "own_scores.good is a module, not a package, so it has no module 'more'"),
        ("own_scores.bad.f", "module own_scores.bad cannot be imported: ZeroDivisionError: division by zero"),
        ("own_scores.good.shar", r"has no 'shar' (did you mean 'share'?); a metric has to be a function"),
        ("own_scores.good.number", "it is not a function but int; a metric has to be a function"),
        ("own_scores.good.Kind", "it is a class; a metric has to be a function"),
        ("own_scores.good.dumps", "is defined in module json, whose code .* write metric: json.dumps"),
        ("sys.exit", "module sys has no file, so a certificate cannot identify its code"),
    ],
)
def test_what_is_not_a_function_is_refused(package: Path, metric: str, message: str) -> None:
    with pytest.raises(InputError, match=f"metric {metric!r}: .*{message if '.*' in message else re.escape(message)}"):
        load_metric(metric)


def test_code_that_has_changed_since_it_was_imported_is_refused(package: Path) -> None:
    load_metric("own_scores.good.share")
    (package / "good.py").write_text(CODE + "\n")
    with pytest.raises(InputError, match=r"good\.py has changed since it was imported: restart Python"):
        load_metric("own_scores.good.share")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("undefined", "it returned nan for 2 rows, which is not a finite number"),
        ("huge", "it failed on 2 rows: OverflowError"),
        ("ends", "it failed on 2 rows: SystemExit"),
        ("clears", "it returned nan for 2 rows, which is not a finite number"),
        ("odd", "it failed on 2 rows: ValueError: no repr"),
        ("text", "it returned '0.5' for 2 rows, which is not a finite number"),
        ("broken", "it failed on 2 rows: KeyError: 'x'"),
    ],
)
def test_results_that_are_not_finite_numbers_are_refused(package: Path, name: str, message: str) -> None:
    metric = f"own_scores.good.{name}"
    scores = make_metrics("causal-lm", None, metric, load_metric(metric))
    scores.update(["a", "b"], ["a", "c"])
    with pytest.raises(InputError, match=rf"^metric '{metric}': {re.escape(message)}"):
        scores.compute()


@pytest.mark.parametrize(
    ("kind", "labels", "predictions", "targets", "expected"),
    [
        ("causal-lm", None, ["a\n", "\u00e4"], ["b", "c"], (["a\n", "\u00e4"], ["b", "c"])),
        ("causal-lm", ("x", "y"), torch.tensor([1, 0]), torch.tensor([0, 0]), (["y", "x"], ["x", "x"])),
        ("classification", ("x", "y"), torch.tensor([1, 0]), torch.tensor([0, 0]), (["y", "x"], ["x", "x"])),
        ("regression", None, torch.tensor([0.5, 1]), torch.tensor([2.0, 3]), ([0.5, 1.0], [2.0, 3.0])),
        (
            "multilabel",
            ("x", "y"),
            torch.tensor([[True, True], [False, False]]),
            torch.tensor([[0.0, 1], [1, 0]]),
            ([["x", "y"], []], [["y"], ["x"]]),
        ),
        (
            "token-classification",
            ("O", "B-A"),
            torch.tensor([[0, 1, 1], [1, 1, 0]]),
            torch.tensor([[IGNORED, 0, 1], [1, IGNORED, IGNORED]]),
            ([["B-A", "B-A"], ["B-A"]], [["O", "B-A"], ["B-A"]]),
        ),
    ],
)
def test_the_function_is_given_predictions_in_words(
    package: Path, kind: Any, labels: Any, predictions: Any, targets: Any, expected: Any
) -> None:
    metric = "own_scores.good.share"
    digest = load_metric(metric)
    scores = make_metrics(kind, labels, metric, digest)
    for row in range(2):
        scores.update(predictions[row : row + 1], targets[row : row + 1])
    assert metric in scores.compute()
    assert sys.modules["own_scores.good"].seen == [expected]
    assert set(scores) - set(make_metrics(kind, labels, metric)) == {"own"}


def test_rows_of_several_processes_are_joined(package: Path) -> None:
    metric = "own_scores.good.share"
    parts = [OwnMetric(find_kind("causal-lm"), None, metric, load_metric(metric)) for _ in range(2)]
    for part, texts in zip(parts, (["a"], ["b\n", "c"]), strict=True):
        for text in texts:
            part.update([text], [text])
    both = [torch.cat(part.rows) for part in parts]
    parts[0]._sync_dist(lambda rows, group: both)
    assert float(parts[0].compute()[metric]) == 1
    assert sys.modules["own_scores.good"].seen == [(["a", "b\n", "c"], ["a", "b\n", "c"])]

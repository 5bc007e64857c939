"""A metric of one's own that can be negative, of a kind or a function, from learning to the report."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchmetrics

from continual_petl import InputError, Run, kind_registry, learn
from continual_petl.cli.main import main
from continual_petl.heads import metric_code
from continual_petl.kind_registry import find_kind, register_kind
from continual_petl.kinds.regression import Regression
from tests.streams_in_code import regression_task, stream, task

KAPPA = """
from collections import Counter
def kappa(predictions, references):
    given, right = Counter(predictions), Counter(references)
    chance = sum(given[label] * right[label] for label in right) / len(references) ** 2
    agree = sum(map(str.__eq__, predictions, references)) / len(references)
    return (agree - chance) / (1 - chance) if chance < 1 else 0.0
kappa.lowest = -1
def wrong(predictions, references):
    return 0.0
wrong.lowest = "none"
"""


class Explained(Regression):
    """Regression that is scored by R2, which has no lowest value."""

    name = "explained"
    metrics = ("r2",)

    def lowest(self, metric: str) -> float:
        return -math.inf

    def scores(self, labels: Sequence[str] | None, metric: str | None, **how: Any) -> dict[str, Any]:
        return {"r2": torchmetrics.R2Score()}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(metric_code, "_loaded", {})
    (tmp_path / "agreement_of_two.py").write_text(KAPPA)
    register_kind(Explained())
    yield
    kind_registry.REGISTRY.registered.clear()
    sys.modules.pop("agreement_of_two", None)


def _opposite(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a classification task, with the other label in the rows that are scored."""
    others = {"yes": "no", "no": "yes"}
    scored = {split: [row | {"label": others[row["label"]]} for row in rows[split]] for split in ("validation", "test")}
    return rows | scored


@pytest.mark.usefixtures("own")
def test_negative_scores_are_learned_certified_and_shown(
    backbone_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kappa: dict[str, Any] = {"metric": "agreement_of_two.kappa", "remote_code": True}
    first, second = regression_task("first", num_rows=16), task("second", num_rows=24)
    for split in ("validation", "test"):  # far from what is learned
        first["data"][split] = [row | {"label": -9.0 - row["label"]} for row in first["data"][split]]
    tasks = [
        first | {"kind": "explained"},
        second | kappa | {"data": _opposite(second["data"])},
        first
        | {"kind": "explained", "name": "third", "bank": {"preset": "houlsby", "bottleneck": 4, "start_from": "auto"}},
    ]
    folder = tmp_path / "run"
    run = learn(stream(backbone_folder(), tasks, training={"epochs": 6}), folder)

    for name in ("first", "third"):
        rows = first["data"]["test"]
        wanted = np.array([row["label"] for row in rows])
        found = np.array([answer.value for answer in run.predict([row["text"] for row in rows], task=name)])
        r2 = 1 - np.square(wanted - found).sum() / np.square(wanted - wanted.mean()).sum()
        certificate = run.store.certificate(name)
        assert certificate.metric == "r2"
        assert certificate.score == pytest.approx(r2, rel=1e-4)
        assert r2 < -1
    certificate = run.store.certificate("second")
    assert certificate.score is not None
    assert -1 <= certificate.score < 0
    start = run.store.certificate("third").start
    assert start is not None
    assert all(candidate.score is not None and candidate.score < -1 for candidate in start.candidates)
    best = max(candidate.score or 0.0 for candidate in start.candidates)
    fresh = start.candidates[0].score
    assert start.candidates[start.chosen].score in (best, fresh)

    assert metric_code.lowest(find_kind("classification"), kappa["metric"]) == -1
    assert metric_code.lowest(find_kind("explained"), "r2") == -math.inf
    scores = run.results.to_json()["R"][-1]
    assert scores == [run.store.certificate(name).score for name in ("first", "second", "third")]
    assert all(check.ok for check in run.verify(data=True))
    assert main(["report", str(folder), "--remote-code", "--output", str(tmp_path / "page")]) == 0
    assert f"{certificate.score:.4f}" in (tmp_path / "page" / "index.html").read_text("utf-8")
    assert main(["list", str(folder), "--json"]) == 0
    capsys.readouterr()
    assert main(["show", str(folder), "--task", "third", "--json", "--remote-code"]) == 0
    assert repr(run.store.certificate("third").score) in capsys.readouterr().out
    assert Run(folder, remote_code=True).results.acc < 0


@pytest.mark.usefixtures("own")
def test_a_lowest_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"agreement_of_two.wrong': its attribute lowest is 'none'; it has to be a num"
    ):
        metric_code.load_metric("agreement_of_two.wrong")

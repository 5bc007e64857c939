"""In a notebook, every object shows a short summary without rows, weights or unescaped HTML, even if a run is damaged."""

from __future__ import annotations

import dataclasses
import html
import shutil
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from continual_petl import ContinualLearner, InputError, Run, TaskStream, load_backbone
from continual_petl.heads.predictions import Prediction
from continual_petl.report.results import ResultRow
from continual_petl.store.store import Store
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    return learned_runs(stream(backbone_folder(), [task("one", num_rows=16)], training={"epochs": 1}))


def test_run_and_store_repr_list_their_tasks(learned: Path) -> None:
    assert repr(Run(learned)) == f"Run({str(learned)!r}, tasks: one)"
    assert repr(Store(learned)) == f"Store({str(learned)!r}, tasks: one)"
    shown = Run(learned)._repr_html_()
    score = Run(learned).store.certificate("one").scores["test"].scores["accuracy"]
    assert "<td>one</td><td>classification</td>" in shown
    assert f"<td>accuracy</td><td>{score:.4f}</td>" in shown


def test_results_show_their_matrix_with_short_numbers(learned: Path, tmp_path: Path) -> None:
    results = Run(learned).results
    value = 0.9312000274658203
    row = dataclasses.replace(results.rows[0], values=np.array([value]))
    shown = dataclasses.replace(results, tasks=("<b>one",), rows=(row,))._repr_html_()
    assert "<tr><td>&lt;b&gt;one</td><td>0.9312</td></tr>" in shown
    assert "<th>&lt;b&gt;one (accuracy)</th>" in shown
    assert "ACC 0.9312, BWT not known" in shown
    assert str(value) not in shown
    assert "<table>" in dataclasses.replace(results, tasks=(), metrics=(), splits=(), rows=())._repr_html_()
    count = 25
    many = dataclasses.replace(
        results,
        tasks=tuple(f"t{n}" for n in range(count)),
        metrics=("accuracy",) * count,
        splits=("test",) * count,
        rows=tuple(
            ResultRow(columns=np.array([n]), values=np.array([0.5]), status=("measured",)) for n in range(count)
        ),
    )
    assert "the first 20 of 25" in many._repr_html_()
    assert many._repr_html_().count("<tr>") == 1 + 20


def test_predictions_are_displayed_with_short_numbers_and_keep_all_digits() -> None:
    value = 0.9312000274658203
    named = Prediction(task="one", value="yes", probabilities={"yes": value, "no": 1 - value})
    found = replace(named, task_probability=value)
    text: list[str] = []
    for one in (named, found, Prediction(value=120.123456)):
        one._repr_pretty_(types.SimpleNamespace(text=text.append), False)
    shown = "Prediction(task='one', value='yes', probabilities={'yes': 0.9312, 'no': 0.0688}"
    assert text == [
        f"{shown})",
        f"{shown}, task_probability=0.9312)",
        "Prediction(value=120.1235)",
    ]
    assert str(value) in repr(named)


def test_damaged_run_is_shown_as_damaged(learned: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(learned, tmp_path / "<b>run")
    run = Run(folder)
    (folder / "ledger.jsonl").write_bytes(b"no\n")
    for one in (run, Store(folder)):
        assert "tasks: cannot be read (StoreError:" in repr(one)
    assert "<b>" not in run._repr_html_()
    assert html.escape("<b>run") in run._repr_html_()
    assert "tasks: none" in repr(Store(tmp_path / "nothing"))


def test_long_name_lists_are_truncated(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(1000)]
    monkeypatch.setattr(Store, "tasks", property(lambda self: names))
    assert repr(Store(learned)).endswith("tasks: t0, t1, t2, t3, t4, t5, t6, ..., t999 (1,000 in all))")


def test_stream_repr_shows_tasks_but_no_rows(backbone_folder: Folder) -> None:
    many = stream(backbone_folder(), [task(f"t{number}", num_rows=2) for number in range(30)])
    shown = many._repr_html_()
    assert "<td>t0</td><td>classification</td><td>rows in code</td>" in shown
    assert shown.count("<tr>") == 1 + 20
    assert "the first 20 of 30" in shown
    assert "w20" not in shown + repr(many)
    assert len(repr(many)) < 500
    named = TaskStream(many.spec.model_copy(update={"name": "</table><script>"}))
    assert "<script>" not in named._repr_html_()


def test_learner_repr_lists_banks_and_the_active_one(backbone_folder: Folder) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=8), task("two", num_rows=8)])
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    assert "banks in memory: none" in repr(learner)
    for name in ("one", "two"):
        learner.begin(tasks, name)
    assert repr(learner).endswith("banks in memory: one, two*)")
    assert "\n" not in repr(learner)
    count = sum(parameter.numel() for parameter in learner.active_bank.parameters())
    assert f"<td>two</td><td>classification</td><td>{count:,}</td><td>yes</td>" in learner._repr_html_()
    assert "(banks): ModuleDict(" in torch.nn.Module.__repr__(learner), "torch's module tree is missing"


def test_uninitialised_learner_has_a_repr() -> None:
    assert repr(ContinualLearner.__new__(ContinualLearner)) == "ContinualLearner(backbone=None, banks in memory: none)"


def test_figures_are_shown_inline(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(learned)
    figures = run.figures()
    assert repr(figures).startswith("Figures(matrix, scores, ")
    assert float(figures["matrix"].data[0].z[0][0]) == float(run.results.R[0, 0])
    assert list(run.figures("one")) == ["curve", "answers"]
    with pytest.raises(KeyError, match="no figure 'nothing'; known figures: matrix"):
        figures["nothing"]
    with pytest.raises(InputError, match="task 'two' is not learned"):
        run.figures("two")
    shown: list[object] = []
    fake = types.ModuleType("IPython.display")
    fake.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    figures._ipython_display_()
    assert shown == list(figures.values())

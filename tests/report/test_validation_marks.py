"""A score on validation rows is marked wherever the page shows it, and a note explains the mark."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run
from continual_petl.report.figures import scores
from continual_petl.report.figures.style import as_figure
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task

LINE = "* on validation rows: the task has no test rows"


@pytest.fixture(scope="module")
def run(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Path:
    """Return a run of two tasks, the second without test rows."""
    without = task("without")
    del without["data"]["test"]
    return learned_runs(stream(backbone_folder(), [task("with"), without], training={"epochs": 1}))


def test_page_marks_validation_scores_and_explains_the_mark(run: Path, tmp_path: Path) -> None:
    text = write_report(tmp_path, read_facts(run)).read_text("utf-8")
    assert re.findall(r">[\d.]+(\*?) accuracy<", text) == ["", "*"]
    assert text.count(LINE) >= 3, "must be below the matrix, the lines over time and the certificates"
    assert f'<p class="note">{LINE}</p>' in text


def test_figures_mark_validation_scores(run: Path) -> None:
    facts = read_facts(run)
    matrix = as_figure(scores.matrix(facts))
    assert matrix.layout.xaxis.ticktext == ("with", "without*")
    assert matrix.layout.yaxis.ticktext == ("with", "without")
    assert [trace.name for trace in as_figure(scores.over_time(facts)).data] == [
        "with \u2261",
        "without* \u2261",
    ]


def test_a_comparison_marks_the_score_in_each_run(run: Path, tmp_path: Path) -> None:
    facts = read_facts(run)
    text = write_comparison(tmp_path, [facts, facts]).read_text("utf-8")
    assert len(re.findall(r'class="number">[\d.]+\*</td>', text)) == 2
    assert f'<p class="note">{LINE}</p>' in text


def test_json_names_the_split_of_each_column(run: Path) -> None:
    assert Run(run).results.to_json()["splits"] == ["test", "validation"]

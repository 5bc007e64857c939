"""Committed results: the Markdown matches the raw numbers, and README matches both."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl.errors import InputError
from experiments.benchmarks.bench import TABLES, render
from experiments.benchmarks.result import read_result
from experiments.benchmarks.summary import BEGIN, END, RESULTS, section, written
from experiments.studies import readme
from experiments.studies.command import EXPERIMENTS, ledgers
from experiments.studies.ledger import Book
from experiments.studies.scale import SMALL
from experiments.studies.study import NAMES, find
from tests.house import ROOT

FILES = sorted(RESULTS.glob("*.json"))


def test_every_table_has_a_committed_result() -> None:
    assert {read_result(file).table for file in FILES} == set(TABLES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_result_has_a_commit_and_matching_markdown(file: Path) -> None:
    result = read_result(file)
    assert not result.changed
    assert not result.settings["quick"]
    assert file.with_suffix(".md").read_text(encoding="utf-8") == render(result)


def test_readme_matches_the_benchmark_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert written(text) == text
    assert section() in text


@pytest.mark.slow
def test_readme_matches_the_study_ledgers() -> None:
    text, studies, book = (
        (ROOT / "README.md").read_text(encoding="utf-8"),
        [*map(find, NAMES)],
        Book(ledgers(EXPERIMENTS)),
    )
    assert readme.written(text, studies, SMALL, book) == text, "run `python -m experiments.studies pages`"
    said = readme.section(studies, SMALL, book)
    assert said.count("| exactly 0 |") == 5, "expected one row for each of four kinds of bank, and one for full copies"
    assert "sequential fine-tuning" in said
    assert "Houlsby banks with 2.04 % as many parameters" in said
    assert readme.section(studies, SMALL, Book()) == "", "studies that were not run must not be mentioned"


def test_readme_without_markers_is_an_error() -> None:
    with pytest.raises(InputError, match=f"it needs the lines {BEGIN} and {END}"):
        written(f"# Title\n{BEGIN}\n")
    with pytest.raises(InputError, match=f"it needs the lines {readme.BEGIN} and {readme.END}"):
        readme.written(f"# Title\n{readme.BEGIN}\n", [], SMALL, Book())

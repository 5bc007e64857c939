"""Committed results: the Markdown matches the raw numbers, and README and docs match both."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl.errors import InputError
from experiments.benchmarks import summary as benchmarks
from experiments.benchmarks.bench import TABLES, render
from experiments.benchmarks.markdown import replace_section
from experiments.benchmarks.result import read_result
from experiments.benchmarks.summary import RESULTS
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


FILES_WITH_RESULTS = (ROOT / "README.md", ROOT / "docs" / "results.md")


def between(path: Path, begin: str, end: str) -> str:
    """Return the section of a file between two markers."""
    return path.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip()


def test_readme_and_docs_match_the_benchmark_results() -> None:
    found = [between(path, benchmarks.BEGIN, benchmarks.END) for path in FILES_WITH_RESULTS]
    assert found == [benchmarks.summary(), benchmarks.section()], "run `python -m experiments.benchmarks readme`"


@pytest.mark.slow
def test_readme_and_docs_match_the_study_ledgers() -> None:
    studies, book = [*map(find, NAMES)], Book(ledgers(EXPERIMENTS))
    found = [between(path, readme.BEGIN, readme.END) for path in FILES_WITH_RESULTS]
    summary, section = readme.summary(SMALL, book), readme.section(studies, SMALL, book)
    assert found == [summary, section], "run `python -m experiments.studies pages`"
    assert section.count("| exactly 0 |") == 5, (
        "expected one row for each of four kinds of bank, and one for full copies"
    )
    assert "Houlsby banks with 2.04 % as many parameters" in section
    assert summary.count("| exactly 0 |") == 2
    for said in (summary, section):
        assert "sequential fine-tuning" in said
    rows = [line for line in summary.splitlines() if line.startswith("| ")]
    assert len(rows) == 6
    assert {*rows} < {*section.splitlines()}
    assert readme.section(studies, SMALL, Book()) == "", "studies that were not run must not be mentioned"
    assert readme.summary(SMALL, Book()) == ""


def test_a_file_without_markers_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Title\n<!-- begin -->\n")
    with pytest.raises(InputError, match=r"README\.md: it needs the lines <!-- begin --> and <!-- end -->"):
        replace_section(path, "<!-- begin -->", "<!-- end -->", "text")
    assert path.read_text() == "# Title\n<!-- begin -->\n"
    path.write_text("# Title\n<!-- begin -->\nold\n<!-- end -->\nmore\n")
    replace_section(path, "<!-- begin -->", "<!-- end -->", "new")
    assert path.read_text() == "# Title\n<!-- begin -->\nnew\n<!-- end -->\nmore\n"

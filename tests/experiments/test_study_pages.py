"""The pages of the studies, from made-up ledgers and from the committed ones. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.houlsby2019 import ablation, compare, sweep, tradeoff, variants
from experiments.routing.result import RESULTS as ROUTING
from experiments.studies import __main__ as main_module
from experiments.studies import command as command_module
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.results_page import write_results
from experiments.studies.scale import QUICK, SMALL
from experiments.studies.study import NAMES, Claim, Study, find
from experiments.studies.trial import Trial
from tests.experiments.made_studies import TRIAL, filled, line, outcome_of
from tests.usual import few

_SETTINGS = {"bank.bottleneck": 8, "training.learning_rate": 3e-4, "training.epochs": 3}
SWEPT: dict[str, Any] = {
    "sweep": {
        "settings": _SETTINGS,
        "mean": 0.8,
        "standard_error": 0.01,
        "seeds": [{"seed": 13, "score": 0.8}],
        "num_parameters": 1000,
        "trials": {"complete": 2, "pruned": 1, "failed": 0},
        "seconds": 12.0,
    },
    "trials": [
        {"settings": _SETTINGS, "state": "complete", "score": 0.8},
        {"settings": _SETTINGS | {"bank.bottleneck": 256}, "state": "complete", "score": 0.78},
        {"settings": _SETTINGS | {"bank.bottleneck": 64}, "state": "pruned"},
    ],
}
HOULSBY = (compare.STUDY, tradeoff.STUDY, ablation.STUDY, variants.STUDY, sweep.STUDY)


def test_page_reports_different_rows(tmp_path: Path) -> None:
    book, other = Book(), TRIAL.model_copy(update={"seed": 14})
    study = Study(name="a/b", title="T", plan=lambda s, b: iter([[TRIAL, other]]), body=lambda s, b: "")
    for trial, digest in ((TRIAL, "3" * 16), (other, "4" * 16)):
        book.add(line(trial, outcome_of(trial, 0.5)).model_copy(update={"data": {"trec": digest}}))
    assert "different rows or files of trec" in write_page(study, SMALL, book, tmp_path).read_text()


@pytest.mark.parametrize("study", few(HOULSBY, 2), ids=lambda study: study.name)
@pytest.mark.parametrize("scale", [SMALL, QUICK], ids=lambda scale: scale.name)
def test_pages_of_whole_and_of_empty_ledgers(study: Study, scale: Any, tmp_path: Path) -> None:
    book = filled(study, scale, _given)
    page = write_page(study, scale, book, tmp_path / "whole")
    text = page.read_text()
    assert "80.0" in text or study is ablation.STUDY
    assert "Not finished" not in text
    assert f"{len(book.lines)} trials" in text
    again = write_page(study, scale, book, tmp_path / "again")
    figures = sorted(page.parent.glob("figures/*.svg"))
    assert [f.read_bytes() for f in figures] == [f.read_bytes() for f in sorted(again.parent.glob("figures/*.svg"))]
    assert all(f"figures/{figure.name}" in text for figure in figures)
    empty = write_page(study, scale, Book(), tmp_path / "empty").read_text()
    assert "Not finished" in empty
    assert "80.0" not in empty


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_pages_of_incomplete_ledgers(name: str, tmp_path: Path) -> None:
    study = find(name)
    book = filled(study, SMALL, _given)
    lines = list(book.lines.values())
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        part = Book()
        part.made = book.made
        for each in lines[: int(share * len(lines))]:
            part.add(each)
        text = write_page(study, SMALL, part, tmp_path).read_text()
        assert "Not finished" in text
        assert write_results([study], SMALL, part, tmp_path).read_text().count("**no** |") >= 1


def _given(trial: Trial) -> dict[str, Any]:
    cells = [[a, b, 0.5, -0.1 * (b - a + 1)] for a in range(6) for b in range(a, 6)]
    more: dict[str, dict[str, Any]] = {"ablate": {"cells": cells}, "sweep": SWEPT}
    return outcome_of(trial, 0.8) | more.get(trial.method, {})


def test_results_show_which_claims_hold(tmp_path: Path) -> None:
    rows = [Claim(claim="a", found="b", holds=holds, why="") for holds in (True, False, None)]
    study = Study(
        name="houlsby2019/some", title="Some", plan=lambda s, b: iter([[TRIAL]]), body=lambda s, b: "",
        reproduces=lambda s, b: rows,
    )  # fmt: skip
    text = write_results([study], SMALL, Book(), tmp_path).read_text()
    assert "| [Some](houlsby2019/results/some.md) | 0 | 0.0 | **no** | 1 of 3 |" in text
    assert [text.count(f"| a | b | {word} |") for word in ("yes", "**no**", "unclear")] == [1, 1, 1]


def test_results_begin_with_what_is_true_not_known_and_false(tmp_path: Path) -> None:
    said = {
        "Small is enough (Table 1), trec": True,
        "Small is enough (Table 1), sst2": True,
        "Small is enough (Table 1), cola": False,
        "MAM (flat) is best (Table 2)": None,
    }
    rows = [Claim(claim=claim, found="", holds=holds, why="") for claim, holds in said.items()]
    study = Study(
        name="houlsby2019/some", title="Some (after a paper)", plan=lambda s, b: iter([[TRIAL]]), body=lambda s, b: "",
        reproduces=lambda s, b: rows,
    )  # fmt: skip
    text = write_results([study], SMALL, Book(), tmp_path).read_text().partition("## Studies")[0]
    found = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in text.split("## ")[1:]}
    link = "* [Some](houlsby2019/results/some.md): "
    assert found == {
        "True at this scale": f"{link}Small is enough (trec, sst2)",
        "Not known at this scale": f"{link}MAM (flat) is best",
        "False at this scale": f"{link}Small is enough (cola)",
    }
    assert "[LEDGER.md](LEDGER.md)" in text
    alone = write_results([], SMALL, Book(), tmp_path).read_text()
    assert alone.count("Nothing.") == 3


def test_results_count_the_hours_of_shared_trials_once(tmp_path: Path) -> None:
    name = "houlsby2019/compare"
    book = filled(find(name), SMALL, lambda trial: _given(trial) | {"wall": 36.0})
    text = write_results([find(name), find(name)], SMALL, book, tmp_path).read_text()
    count = len(book.lines)
    assert text.count(f" | {count} | {count / 100:.1f} | yes |") == 2
    assert f"{count} trials and {count / 100:.1f} hours in total" in text
    assert f"divided by the number of parallel trials, the total is {count / 200:.1f} hours." in text


@pytest.mark.slow
def test_committed_pages_match_the_ledgers(tmp_path: Path) -> None:
    raw = (*command_module.ledgers(command_module.EXPERIMENTS), *ROUTING.glob("*.json"))
    for file in raw:
        copy = tmp_path / file.relative_to(command_module.EXPERIMENTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert main_module.main(["pages", "--out", str(tmp_path)]) == 0
    pages = sorted(tmp_path.rglob("*.md"))
    assert len(pages) == 2 + len(NAMES)
    for page in pages:
        committed = command_module.EXPERIMENTS / page.relative_to(tmp_path)
        assert committed.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), (
            f"{committed.name} does not match the ledgers: run `python -m experiments.studies pages`"
        )

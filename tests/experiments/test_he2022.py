"""The studies of He et al. 2022: budgets are met, pages and verdicts come from the ledger; nothing is trained."""

from __future__ import annotations

import doctest
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.he2022 import design, generation, methods
from experiments.he2022.budgets import NEAR, Model, Spec, count, sized, whole
from experiments.he2022.rows import Row, gap_by_task
from experiments.he2022.settings import BUDGETS, LARGE, MIDDLE, SMALL, design_rows, encoder_rows, find, mam, preset
from experiments.published import he2022 as published
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.scale import QUICK
from experiments.studies.scale import SMALL as SMALL_SCALE
from experiments.studies.statistics import Mean
from experiments.studies.study import Study
from experiments.studies.trial import Trial
from tests.experiments.fabricated import fill

STUDIES = (methods.STUDY, design.STUDY, generation.STUDY)
ROWS = (*encoder_rows(), *design_rows())


def test_backbone_size_matches_minilm() -> None:
    assert whole("minilm") == 22_713_216


@pytest.mark.parametrize("row", [row for row in ROWS if row.budget is not None], ids=lambda r: f"{r.name} {r.budget}")
def test_a_bank_is_within_a_tenth_of_its_budget(row: Row) -> None:
    assert row.budget is not None
    assert abs(row.share - row.budget) <= 0.1 * row.budget


def test_budget_names_match_their_shares() -> None:
    assert find("diff-pruning, top 3").share == pytest.approx(MIDDLE, rel=0.01)
    assert find("BitFit").share == pytest.approx(SMALL, rel=0.15)
    assert find("probe").parameters == 0


def test_budget_between_two_sizes_has_no_bank() -> None:
    of_size = preset("lora", "rank")
    assert sized("minilm", of_size, SMALL) is None
    two, three = (abs(count("minilm", of_size(rank)) / whole("minilm") / SMALL - 1) for rank in (2, 3))
    assert min(two, three) > NEAR


CASES: list[tuple[Model, Callable[[int], Spec], float]] = [
    *(("minilm", mam, share) for share in BUDGETS),
    ("bart-small", generation.mam, generation.BUDGET),
]


@pytest.mark.parametrize(("model", "of_size", "share"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_size_is_nearer_than_its_neighbours(model: Model, of_size: Callable[[int], Spec], share: float) -> None:
    found = sized(model, of_size, share)
    assert isinstance(found, dict)
    size, budget = found["bottleneck"], share * whole(model)
    distances = [abs(count(model, of_size(near)) - budget) for near in (size - 1, size, size + 1)]
    assert min(distances) == distances[1]


def test_banks_for_texts_are_within_a_tenth_of_their_budget() -> None:
    for name, (bank, _, _) in generation.methods().items():
        if name != "full fine-tuning":
            share = count("bart-small", bank) / whole("bart-small")
            assert share == pytest.approx(generation.BUDGET, rel=0.1), name


def _score(trial: Trial) -> float:
    """Return a score that is slightly different for every trial."""
    return 0.5 + int(trial.key[:4], 16) / 2**18


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("stages", [0, 1, 99])
def test_page_is_made_from_available_trials(study: Study, stages: int, tmp_path: Path) -> None:
    book = fill(study, SMALL_SCALE, _score, stages)
    page = write_page(study, SMALL_SCALE, book, tmp_path).read_text(encoding="utf-8")
    assert ("Not finished" in page) == (stages < 99)
    assert ("**" in page.split("\n|", 1)[1]) == (stages == 99 or (stages == 1 and study is generation.STUDY))
    assert "paper" in page
    for name in () if study.figures is None else study.figures(SMALL_SCALE, book):
        assert f"![{name}](figures/" in page
    assert study.reproduces is not None
    found = {row.found for row in study.reproduces(SMALL_SCALE, book)}
    if stages == 0:
        assert found == {"not run yet"}
    if stages == 99:
        assert "not run yet" not in found


def test_claims_of_the_paper_are_detected() -> None:
    def score(trial: Trial) -> float:
        bank = json.dumps(trial.bank)
        better = sum([
            4 * ('"mam_flat"' in bank or bank == '"full"'), 2 * ("scaled_parallel" in bank),
            "lora_ffn" in bank and "scale" not in bank, "parallel" in bank, '"ffn"' in bank or '"preset": "parallel"' in bank,
            3 * ("length" in bank and '"length": 5' in bank),
        ])  # fmt: skip
        return 0.7 + 0.02 * better + 0.0001 * (trial.seed % 3)

    rows = claims_of(design.STUDY, fill(design.STUDY, SMALL_SCALE, score))
    assert list(rows.values()) == [True] * 7
    # With reversed scores, every comparison fails; only MAM and full fine-tuning are as close as before.
    against = claims_of(design.STUDY, fill(design.STUDY, SMALL_SCALE, lambda trial: 1.4 - score(trial)))
    assert list(against.values()) == [False] * 6 + [True]


def claims_of(study: Study, book: Book) -> dict[str, bool | None]:
    assert study.reproduces is not None
    return {row.claim: row.holds for row in study.reproduces(SMALL_SCALE, book)}


def test_design_reuses_trials_of_methods() -> None:
    book = fill(methods.STUDY, SMALL_SCALE, _score)
    chosen = {trial.key for row in encoder_rows() for trial in row.choosing(SMALL_SCALE)}
    needed = [trial for trials in design.STUDY.plan(SMALL_SCALE, book) for trial in trials]
    assert chosen & {trial.key for trial in needed}
    missing = {trial.key for trial in needed if book.outcome(trial) is None}
    own = {trial.key for row in design_rows() for trial in row.choosing(SMALL_SCALE)}
    assert missing == own


def test_method_uses_one_rate_for_all_sizes_and_tasks() -> None:
    def score(trial: Trial) -> float:
        return 0.9 if trial.training["learning_rate"] == 2e-2 else 0.5

    book = fill(methods.STUDY, SMALL_SCALE, score)
    for budget in BUDGETS:
        trials = [t for task in ("sst2", "mrpc") for t in find("prefix", budget).final(SMALL_SCALE, book, task)]
        assert len(trials) == 6
        assert {trial.training["learning_rate"] for trial in trials} == {2e-2}


def test_generation_counts_only_complete_seeds() -> None:
    for stages, seeds in ((0, 0), (1, 1), (2, 2), (99, 3)):
        assert generation.whole_seeds(SMALL_SCALE, fill(generation.STUDY, SMALL_SCALE, _score, stages)) == seeds


def test_weak_backbone_makes_claims_unclear() -> None:
    """A BLEU of 0.0 for every method does not show that the methods are equally good."""
    for score, told in ((0.01, False), (0.5, True)):
        book = fill(generation.STUDY, SMALL_SCALE, lambda trial, score=score: score, 99)  # type: ignore[misc]
        assert generation.STUDY.reproduces is not None
        found = generation.STUDY.reproduces(SMALL_SCALE, book)
        assert any(row.holds is not None for row in found) == told
        assert all(("too weak to tell" in row.why) != told for row in found)


def test_gap_explanation_covers_each_task() -> None:
    ours, full = [find("MAM (flat)", LARGE)], [find("full fine-tuning")]
    book = fill(methods.STUDY, SMALL_SCALE, _score, 99)
    for line in book.lines.values():
        line.outcome["tasks"] = {task: {"curve": [[1, 0.5], [2, 0.6], [3, 0.625]]} for task in line.trial.tasks}
    said = gap_by_task(ours, full, SMALL_SCALE, book)
    assert said.count("(last epoch +2.5)") == 2
    assert said.startswith("sst2 ")
    assert gap_by_task(ours, full, SMALL_SCALE, Book()) == ""


def test_page_names_the_pretrained_backbone() -> None:
    book = fill(generation.STUDY, SMALL_SCALE, _score, 1)
    assert "(digest `0123456789abcdef`)" in generation.STUDY.body(SMALL_SCALE, book)


def test_a_quick_study_has_few_trials() -> None:
    for study in STUDIES:
        book = fill(study, QUICK, _score)
        assert 0 < len(book.lines) <= 16, study.name


def test_one_seed_leaves_a_claim_unclear() -> None:
    verdict = claims.at_least(Mean(80.0, None, 1), Mean(10.0, None, 1))
    assert verdict == ("unclear", "80.0 vs. 10.0: +70.0, one seed")


def test_claim_of_closeness_allows_a_margin() -> None:
    assert claims.at_least(Mean(80.0, 0.1, 3), Mean(80.5, 0.1, 3), -1.0).word == "yes"
    assert claims.at_least(Mean(79.0, 0.1, 3), Mean(80.5, 0.1, 3), -1.0).word == "no"


def test_published_shares_match_the_papers_formulas() -> None:
    # Table 4 prints 0.1 % for shares that are larger; see tests/banks/test_counts_he.py for the counts.
    assert {each.percent for name, each in published.TABLE_4.items() if name.endswith("30")} == {0.1}
    shared = published.TABLE_3.keys() & published.TABLE_12.keys()
    assert shared
    assert all(published.TABLE_3[name] == published.TABLE_12[name] for name in shared)


@pytest.mark.parametrize("name", ["studies.claims", "he2022.table", "published.he2022", "published.table"])
def test_doctests_pass(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"experiments.{name}")).failed == 0


def test_design_rows_have_the_small_and_the_large_budget() -> None:
    assert {row.budget for row in design_rows()} == {SMALL, LARGE}

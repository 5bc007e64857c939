"""The paragraph about routing has only sentences about known numbers, and says why others are missing."""

from __future__ import annotations

import dataclasses

import pytest

from continual_petl.report.figures.registry import run_figures
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.ledger.lines import RoutedCell


def words(facts: RunFacts, correct: int | None, last: int = 2) -> str:
    """Return the paragraph for two tasks of 8 rows; ``last`` is how many of them are measured at the end."""

    def cell(task: str, own: int) -> RoutedCell:
        other = {"one": "two", "two": "one"}[task]
        return RoutedCell(
            task=task,
            index=("one", "two").index(task),
            split="test",
            num_examples=8,
            chosen={task: own, other: 8 - own},
            unknown=1,
            correct=correct,
            correct_own=None if correct is None else own - 1,
            correct_known=correct,
        )

    assert facts.results.tasks[:2] == ("one", "two")
    end = {"one": cell("one", 6), "two": cell("two", 4)}
    last_row = {name: end[name] for name in ("one", "two")[2 - last :]}
    rows: tuple[dict[str, RoutedCell], ...] = ({"one": cell("one", 8)}, last_row, {}, {})
    results = dataclasses.replace(facts.results, routed_rows=rows)
    (figure,) = (each for each in run_figures() if each.name == "routing")
    return figure.words(dataclasses.replace(facts, results=results))


def test_all_numbers_are_in_sentences(facts: RunFacts) -> None:
    said = words(facts, 5)
    for known in (
        "At the end: accuracy 0.6250 (mean share of correct predictions, over the tasks so far); ",
        "; average incremental accuracy 0.6250 (",
        "; routing accuracy 0.6250 (mean share of rows that are routed to their task); ",
        "; within task accuracy 0.8000 (share of correct predictions among the rows that are routed to their task); ",
        "; unknown 0.1250 (mean share of rows that do not resemble the rows of any task); ",
        "; routing loss 0.2500 (mean drop of routing from its best; not forgetting: ",
    ):
        assert known in said


def test_without_right_or_wrong_predictions_the_reason_is_given(facts: RunFacts) -> None:
    said = words(facts, None)
    assert "At the end: routing accuracy 0.6250 (" in said
    assert "; unknown 0.1250 (" in said
    why = "There is no overall share of correct predictions, because those of some tasks are not simply right or wrong."
    assert why in said
    assert "correct predictions," not in said.partition(why)[0]


def test_unmeasured_rows_leave_out_their_sentences(facts: RunFacts) -> None:
    said = words(facts, 5, last=1)
    assert "incremental" not in said
    assert "routing loss" not in said


@pytest.mark.parametrize("correct", [5, None])
@pytest.mark.parametrize("last", [1, 2])
def test_no_sentence_has_a_number_that_is_not_known(facts: RunFacts, correct: int | None, last: int) -> None:
    said = words(facts, correct, last)
    assert "not known" not in said
    assert "nan" not in said
    assert "  " not in said
    assert all(sentence[0].isupper() for sentence in said.replace("et al. ", "").split(". "))


def test_no_paragraph_of_a_run_has_an_unknown_number_in_a_sentence(facts: RunFacts) -> None:
    first = dataclasses.replace(
        facts,
        tasks=facts.tasks[:1],
        results=dataclasses.replace(
            facts.results,
            tasks=facts.results.tasks[:1],
            metrics=facts.results.metrics[:1],
            splits=facts.results.splits[:1],
            rows=facts.results.rows[:1],
            routed_rows=facts.results.routed_rows[:1],
        ),
    )
    for shown in (facts, first):
        for figure in run_figures():
            if figure.draw(shown) is not None:
                assert "not known" not in figure.words(shown), figure.name

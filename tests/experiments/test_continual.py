"""The pages of the continual-learning studies, from invented ledgers; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.continual import classic5, long7
from experiments.continual.comparison import figures
from experiments.continual.measures import Measures, permuted
from experiments.continual.methods import (
    BANKS,
    COPIES,
    FAMILIES,
    FULL,
    JOINT,
    METHODS,
    REPLAY,
    SEQUENTIAL,
    SEQUENTIAL_LORA,
    Method,
    Stream,
)
from experiments.continual.sizes import size_of
from experiments.published.streams import FIFTEEN, FIVE, shown
from experiments.studies.ledger import Book, Line
from experiments.studies.page import trials_of
from experiments.studies.scale import QUICK, SMALL
from experiments.studies.study import Study
from experiments.studies.trial import TASKS, Trial
from tests.house import ROOT

Change = Callable[[Trial, dict[str, Any]], None]
SIZE = {"modifications": 100, "own": 10, "head": 4}
FEW = settings(max_examples=25, deadline=None, derandomize=True)
TASK = st.sampled_from(sorted(TASKS))


def _score(task: str, seed: int) -> float:
    return 0.5 + sorted(TASKS).index(task) / 100 + seed / 1000


def _outcome(trial: Trial) -> dict[str, Any]:
    """Banks keep their scores, a shared body loses ten points with each further task, joint training gains five points."""
    lost = 0.1 if "scope" in trial.bank else 0.0
    count, own = len(trial.tasks), [_score(task, trial.seed) for task in trial.tasks]
    rows: list[list[float | None]] = [
        [own[j] - lost * (i - j) if j <= i else None for j in range(count)] for i in range(count)
    ]
    if trial.method == "joint":
        rows = [[None for _ in own] for _ in own[1:]]
        rows.append([score + 0.05 for score in own])
    # The middle one of three learning rates is the best.
    rate = {5e-5: 0.1, 5e-4: 0.1, 4e-4: 0.2, 4e-3: 0.2, 1.5e-2: 0.2}.get(trial.training["learning_rate"], 0.3)
    if trial.bank == {"preset": "probe"} and trial.training["learning_rate"] == 1.5e-3:
        rate = 0.1
    scores = {"validation": {"score": rate}, "test": {"score": 0.5}}
    return {
        "scores": dict.fromkeys(trial.tasks, scores),
        "R": rows if count > 1 else None,
        "tasks": {
            task: {"digest": f"{task}{trial.seed}", "parameters": SIZE, "bytes": 500, "seconds": {"train": 2.0}}
            for task in trial.tasks
        },
        "backbone_parameters": 1000,
        "unchanged": True if trial.method == "learn" else None,
    } | ({"memory": {"rows": {}, "bytes": 77}} if trial.method == "replay" else {})


def _book(study: Study = classic5.STUDY, change: Change | None = None) -> Book:
    """Return a book with every trial of a study."""
    book = Book()
    for trials in study.plan(SMALL, book):
        for trial in trials:
            outcome = _outcome(trial)
            if change is not None:
                change(trial, outcome)
            book.add(Line(key=trial.key, trial=trial, data={}, made="test", outcome=outcome))
    return book


def _line(page: str, method: Method) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {method.name} | ") and line.count("|") == 8)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_orders_are_the_published_ones() -> None:
    """As published: orders 1 to 3 of de Masson d'Autume et al. 2019; orders O4 to O6, reduced from fifteen tasks to seven."""
    assert classic5.STREAM.orders == (
        ("yelp", "agnews", "dbpedia", "amazon", "yahoo"),
        ("dbpedia", "yahoo", "agnews", "amazon", "yelp"),
        ("yelp", "yahoo", "amazon", "dbpedia", "agnews"),
    )
    assert long7.STREAM.orders == (
        ("rte", "yelp", "amazon", "sst2", "dbpedia", "agnews", "yahoo"),
        ("rte", "sst2", "dbpedia", "agnews", "yelp", "amazon", "yahoo"),
        ("yelp", "amazon", "rte", "sst2", "dbpedia", "agnews", "yahoo"),
    )


@pytest.mark.parametrize(
    ("stream", "files"),
    [
        (classic5.STREAM, ("classic5", "classic5-2", "classic5-3")),
        (long7.STREAM, ("long15", "long15-5", "long15-6")),
    ],
)
def test_orders_are_those_of_the_catalog(stream: Stream, files: tuple[str, ...]) -> None:
    for order, file in zip(stream.orders, files, strict=True):
        tasks = yaml.safe_load((ROOT / "streams" / "catalog" / f"{file}.yaml").read_text("utf-8"))["tasks"]
        assert tuple(task["name"] for task in tasks if task["name"] in order) == order


def test_order_dependent_methods_run_in_every_order_and_banks_in_two() -> None:
    book = _book()
    stream = classic5.STREAM
    counts = {method.name: len(stream.trials(method, SMALL, book)) for method in METHODS}
    assert counts == {
        **{method.name: 4 for method in (*BANKS, COPIES)},
        SEQUENTIAL.name: 9,
        **{method.name: 3 for method in (SEQUENTIAL_LORA, REPLAY, JOINT)},
    }
    paired = stream.trials(REPLAY, SMALL, book)
    assert [(trial.tasks, trial.seed) for trial in paired] == list(zip(stream.orders, SMALL.seeds, strict=True))
    trials, whole = trials_of(classic5.STUDY, SMALL, book)
    assert whole
    assert {trial.limits["train"] for trial in trials} == {500}
    assert len(long7.STREAM.trials(SEQUENTIAL, SMALL, book)) == 3


def test_the_page_shows_forgetting_and_zeros() -> None:
    page = classic5.STUDY.body(SMALL, _book())
    # The four earlier tasks lose 40, 30, 20 and 10 points: 25 on average, or 20 if the last task is included.
    acc, bwt, forgetting, learned, intransigence, fwt = _line(page, SEQUENTIAL)
    assert (bwt, forgetting) == ("-25.0 ± 0.0", "25.0 ± 0.0")
    assert (intransigence, fwt) == ("5.0 ± 0.0", "0.0 ± 0.0")
    # Both are over three seeds: other orders with the same seed do not count as further measurements.
    assert (learned, _line(page, COPIES)[3]) == ("58.3 ± 0.6", "58.3 ± 0.6")
    assert _line(page, BANKS[0])[1:3] == ["0.0 ± 0.0", "0.0 ± 0.0"]
    assert float(acc.split()[0]) == pytest.approx(float(_line(page, BANKS[0])[0].split()[0]) - 20)
    assert _line(page, JOINT)[1:] == ["-"] * 5
    assert "forgetting and BWT are exactly 0 in all 20 measured runs" in page
    assert "All certificates of these 20 runs were verified" in page
    assert "All 25 banks and copies that were learned in two orders have the same digest in both" in page
    assert "Sequential fine-tuning clearly forgets: 25.0 ± 0.0 points, over 3 seeds" in page
    assert "fault" not in page


@pytest.mark.slow
def test_page_reports_a_bank_that_forgot() -> None:
    def change(trial: Trial, outcome: dict[str, Any]) -> None:
        if trial.bank == BANKS[0].bank and len(trial.tasks) > 1 and trial.seed == 21:
            outcome["R"][-1][0] -= 1e-6

    book = _book(change=change)
    page = classic5.STUDY.body(SMALL, book)
    assert (
        "**Banks forgot: bank: Houlsby adapters (yelp agnews dbpedia amazon yahoo, seed 21).** This is a bug." in page
    )
    # In that case, R is not permuted to get the results of other orders.
    assert _line(page, BANKS[0])[0] == "-"
    reproduces = classic5.STUDY.reproduces
    assert reproduces is not None
    first, second, *others = reproduces(SMALL, book)
    assert (first.found, first.holds) == ("forgetting of banks is NOT 0 in 16 runs", False)
    assert (second.found, second.holds) == (
        "a drop of 25.0 ± 0.0 points from the best score of each task to its last score",
        True,
    )
    assert len(others) <= 4


def test_page_reports_order_dependence_and_failed_certificates() -> None:
    def change(trial: Trial, outcome: dict[str, Any]) -> None:
        if trial.bank == COPIES.bank and trial.tasks == classic5.STREAM.orders[1]:
            outcome["tasks"]["yelp"]["digest"] = "another"
            outcome["unchanged"] = False

    page = classic5.STUDY.body(SMALL, _book(change=change))
    assert "**The digests of 1 of 25 banks differ between two orders: yelp of full copy per task.**" in page
    assert "**Certificates that fail: full copy per task (dbpedia yahoo agnews amazon yelp, seed 13).**" in page


def test_page_reports_a_sequence_that_does_not_forget() -> None:
    def change(trial: Trial, outcome: dict[str, Any]) -> None:
        if trial.method == "replay":
            outcome["R"][-1] = [row[number] for number, row in enumerate(outcome["R"])]

    page = classic5.STUDY.body(SMALL, _book(change=change))
    assert "Sequential with 1 % replay **does not clearly forget**" in page


@pytest.mark.slow
@pytest.mark.parametrize("study", [classic5.STUDY, long7.STUDY], ids=lambda study: study.name)
def test_empty_and_complete_ledgers_give_a_page_and_figures(study: Study) -> None:
    assert study.figures is not None
    for book in (Book(), _book(study)):
        for scale in (SMALL, QUICK):
            page = study.body(scale, book)
            assert f"| {SEQUENTIAL.name} |" in page
            assert len(study.figures(scale, book)) == 2
    assert "No run of a bank is in the ledger yet." in study.body(SMALL, Book())
    drawn = figures(long7.STREAM, SMALL, _book(long7.STUDY))
    (axes,) = drawn["score of the first task"].axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), dtype=float) for line in axes.lines}
    assert len(lines) == len(METHODS) - 1
    assert np.diff(lines[SEQUENTIAL.name]) == pytest.approx([-10.0] * 6)


def test_rate_has_the_best_mean_and_did_not_fail() -> None:
    assert [family.rate(SMALL, _book()) for family in FAMILIES] == [family.rates[1] for family in FAMILIES]

    def change(trial: Trial, outcome: dict[str, Any]) -> None:
        if trial.training["learning_rate"] == FULL.rates[1] and trial.tasks == ("agnews",):
            outcome.clear()
            outcome["failed"] = "diverged"

    assert FULL.rate(SMALL, _book(change=change)) == FULL.rates[2]
    assert FULL.rate(SMALL, Book()) is None


def test_shared_body_is_counted_once_and_banks_per_task() -> None:
    measures = Measures(classic5.STREAM, SMALL, _book())
    banks, one, replay = (size_of(measures, method) for method in (BANKS[0], SEQUENTIAL, REPLAY))
    assert banks is not None
    assert one is not None
    assert replay is not None
    assert (banks.trained, banks.kept, banks.share, banks.num_bytes, banks.seconds) == (114, 570, 0.57, 2500, 10)
    assert (one.trained, one.kept) == (114, 110 + 5 * 4)
    assert replay.num_bytes == pytest.approx(one.num_bytes + 77)


def test_a_quick_study_has_fewer_tasks_in_different_orders_and_replays() -> None:
    for stream in (classic5.STREAM, long7.STREAM):
        orders = {stream.some(QUICK, order) for order, _ in stream.runs(QUICK)}
        assert len(orders) == 2
        assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(stream.quick))}


def _stays(scores: dict[str, float], order: tuple[str, ...]) -> Tensor:
    """Return R, cell by cell, for tasks whose scores do not depend on the order and never change."""
    return torch.tensor(
        [[scores[task] if j <= i else torch.nan for j, task in enumerate(order)] for i in range(len(order))],
        dtype=torch.float64,
    )


@FEW
@given(st.dictionaries(TASK, st.floats(0, 1), min_size=1), st.randoms(use_true_random=False))
def test_r_of_another_order_is_permuted(scores: dict[str, float], draw: Any) -> None:
    tasks = tuple(scores)
    order = tuple(draw.sample(tasks, len(tasks)))
    found = permuted(_stays(scores, tasks), tasks, order)
    torch.testing.assert_close(found, _stays(scores, order), rtol=0, atol=0, equal_nan=True)


@FEW
@given(st.integers(2, 6), st.data())
def test_r_of_a_forgetting_method_is_not_permuted(count: int, data: st.DataObject) -> None:
    tasks = tuple(sorted(TASKS)[:count])
    R_TT = _stays({task: 0.5 for task in tasks}, tasks)
    row = data.draw(st.integers(1, count - 1))
    R_TT[row, data.draw(st.integers(0, row - 1))] -= 1e-9
    with pytest.raises(ValueError, match="a score changed after its task was learned"):
        permuted(R_TT, tasks, tasks[::-1])
    with pytest.raises(ValueError, match="it must have the tasks"):
        permuted(R_TT, tasks, tasks[1:])


def test_published_numbers_have_sources_and_caveats() -> None:
    for tables in (FIVE, FIFTEEN):
        text = shown(tables)
        assert text.startswith("Data, backbones and protocols differ")
        for table in tables:
            for row in table.rows:
                assert row.source
                assert f"| {row.method} | {row.value} | {row.source} | {row.flag} |" in text

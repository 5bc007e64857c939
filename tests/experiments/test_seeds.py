"""Studies with fewer seeds: a subset of the trials, pages without standard errors, and statements that say "one seed"."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.continual import classic5, long7
from experiments.continual.comparison import reproduces
from experiments.continual.methods import METHODS, Stream
from experiments.studies import __main__ as main_module
from experiments.studies.command import EXPERIMENTS, Request, ledgers, write_pages
from experiments.studies.ledger import Book
from experiments.studies.page import trials_of, write_page
from experiments.studies.results_page import write_results
from experiments.studies.scale import SEEDS, SMALL
from experiments.studies.study import NAMES, Study, find
from tests.experiments.made_studies import filled, outcome_of

ONE = replace(SMALL, num_seeds=1)
ERRORS_OF_OTHERS = ("houlsby2019/sweep", "he2022/methods", "continual/classic5")
"""Studies whose pages contain ± even with one seed: from their own seeds, from the paper, or from several orders."""


@pytest.fixture(scope="module")
def book() -> Book:
    """Return the committed ledgers."""
    return Book(ledgers(EXPERIMENTS))


def _keys(study: Study, seeds: int, book: Book) -> set[str]:
    return {trial.key for trial in trials_of(study, replace(SMALL, num_seeds=seeds), book)[0]}


@pytest.mark.parametrize("name", NAMES)
def test_more_seeds_include_the_trials_of_fewer(name: str, book: Book) -> None:
    study = find(name)
    one, two, three = (_keys(study, seeds, book) for seeds in (1, 2, 3))
    assert one <= two <= three
    assert one


@pytest.mark.parametrize("name", NAMES)
def test_a_page_with_one_seed_has_no_errors_of_means(name: str, book: Book, tmp_path: Path) -> None:
    study = find(name)
    text = write_page(study, ONE, book, tmp_path).read_text(encoding="utf-8")
    assert "1 seeds" not in text
    assert ("±" in text) == (name in ERRORS_OF_OTHERS)
    for claim in study.reproduces(ONE, book) if study.reproduces else ():
        assert claim.holds is None or not claim.found.endswith(", one seed")
        assert "significant" not in claim.why or claim.holds is None


def test_results_report_the_share_of_the_first_seed(tmp_path: Path) -> None:
    name = "houlsby2019/variants"
    book = filled(find(name), SMALL, lambda trial: outcome_of(trial, 0.8) | {"wall": 3600.0})
    text = write_results([find(name)], SMALL, book, tmp_path).read_text(encoding="utf-8")
    assert "90 trials and 90.0 hours in total" in text
    assert "takes\n30 trials and 15.0 hours, divided in the same way" in text, (
        "two trials run at once, so half the hours"
    )
    one = write_results([find(name)], ONE, book, tmp_path).read_text(encoding="utf-8")
    assert "--seeds 1" not in one
    assert "**One seed.**" in one
    assert "**One seed.**" not in text
    some = Book()
    some.made.update(book.made)
    for line in list(book.lines.values())[:10]:
        some.add(line)
    assert "--seeds 1" not in write_results([find(name)], SMALL, some, tmp_path).read_text(encoding="utf-8")


def test_one_seed_does_not_say_that_forgetting_is_clear(book: Book) -> None:
    for stream in (classic5.STREAM, long7.STREAM):
        (_, claim, *_) = reproduces(stream, ONE, book)
        (_, usual, *_) = reproduces(stream, SMALL, book)
        assert "forgets" in claim.claim
        assert (claim.holds, usual.holds) == (None, True)


def test_results_report_repeated_trials(book: Book, tmp_path: Path) -> None:
    assert len(book.again) == 20
    text = write_results([find("houlsby2019/compare")], SMALL, book, tmp_path).read_text(encoding="utf-8")
    assert re.search(r"\n\d+ of the trials were run twice, \d+ with identical scores; the later run counts\.\n", text)


def test_the_command_takes_a_number_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    _, request = main_module.parse(["--data", "there", "--out", "here", "--seeds", "1"])
    assert request.scale == ONE
    assert request.command == "python -m experiments.studies --data FOLDER --jobs 1 --seeds 1"
    larger = ["--out", "here", "--scale", "base", "--model", "bert-base-uncased", "--seeds", "5"]
    assert main_module.parse(larger)[1].scale.seeds == SEEDS
    for wrong, said in (
        (["--seeds", "1"], "must not replace those in experiments"),
        (["--seeds", "1", "--out", str(EXPERIMENTS)], "must not replace those in experiments"),
        (["--seeds", "1", "--out", os.path.relpath(EXPERIMENTS)], "must not replace those in experiments"),
        (["--quick"], "do not belong in experiments"),
        (["--quick", "--out", os.path.relpath(EXPERIMENTS)], "do not belong in experiments"),
        (["--seeds", "1", "--out", "here", "--quick"], "cannot be combined with --quick"),
        (["--jobs", "0"], "--jobs: got 0; the number of parallel trials must be at least 1"),
        (["--layers", "6"], "--layers: got 6, but it describes the backbone of --model"),
        (["--max-length", "64"], "--max-length: got 64, but"),
        (["--scale", "base", "--model", "bert-base-uncased", "--width", "0"], "--width: got 0; it must be at least 1"),
        (["--scale", "base"], "got 'base' with no --model"),
        (["--scale", "quick", "--model", "bert-base-uncased"], "got 'quick' with --model bert-base-uncased"),
        (["--quick", "--out", "here", "--scale", "base", "--model", "b"], "but --model is b"),
        (["--minutes", "0"], "--minutes: got 0; it must be above 0"),
        (["--seeds", "0", "--out", "here"], "got 0; the number of seeds must be 1 to 5"),
        (["--seeds", "6", "--out", "here"], "got 6; the number of seeds must be 1 to 5"),
    ):
        with pytest.raises(SystemExit):
            main_module.parse(wrong)
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_pages_with_one_seed_are_of_all_studies(tmp_path: Path) -> None:
    write_pages(Request(data=None, out=tmp_path, scale=ONE))
    assert {f"{file.parent.parent.name}/{file.stem}" for file in tmp_path.glob("*/results/*.md")} == set(NAMES)


@pytest.mark.parametrize("stream", [classic5.STREAM, long7.STREAM], ids=["crossed", "in turns"])
def test_every_seed_is_run_even_with_more_seeds_than_orders(stream: Stream) -> None:
    five = replace(SMALL, num_seeds=5)
    for method in METHODS:
        runs = stream.runs(five, method)
        assert {seed for _, seed in runs} == set(SEEDS)
        assert {order for order, _ in runs} == set(stream.orders)
        assert set(stream.runs(SMALL, method)) <= set(runs)

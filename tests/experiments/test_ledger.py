"""LEDGER.md: verdicts, sources and commands; ours comes from the raw results. Nothing is trained."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shutil
import statistics
from pathlib import Path

import pytest

from experiments.ledger import classes, he2022, houlsby2019, images, streams
from experiments.ledger.line import Group, Line, beside, difference
from experiments.ledger.page import write_ledger
from experiments.published.streams import FIFTEEN, FIVE
from experiments.routing.result import RESULTS, read_results
from experiments.studies.command import EXPERIMENTS, ledgers
from experiments.studies.ledger import Book
from experiments.studies.scale import QUICK, SMALL, Scale
from experiments.studies.statistics import Mean
from experiments.studies.study import NAMES, find
from tests.experiments.made_studies import filled, outcome_of
from tests.house import ROOT

LARGER = Scale(name="base", backbone="bert-base-uncased", layers=12, width=768, max_length=128)


def every(book: Book, scale: Scale = SMALL, routing: Path | None = None) -> list[Group]:
    found = {} if routing is None else read_results(routing)
    return [*houlsby2019.groups(scale, book), *he2022.groups(scale, book), *streams.groups(scale, book, found),
            *classes.groups(found), *images.groups()]  # fmt: skip


@pytest.mark.parametrize(
    ("published", "ours", "apart", "verdict"),
    [
        ("80.0", Mean(82.0, None, 1), "", "reproduced"),
        ("80.0", Mean(78.0, 0.3, 3), "", "reproduced"),
        ("-0.4", Mean(1.7, 0.3, 3), "", "**not reproduced**: +2.1"),
        ("80.0", Mean(77.9, 0.3, 3), "", "**not reproduced**: -2.1"),
        ("80.0", Mean(80.0, 2.1, 3), "", "not comparable: a standard error of 2.1"),
        ("80.0", Mean(70.0, 2.1, 3), "", "**not reproduced**: -10.0"),
        ("80.0", Mean(80.0, 0.1, 3), "backbone", "not comparable: backbone"),
        ("80.0", None, "", "not run"),
        ("80.0", None, "backbone", "not comparable: backbone"),
    ],
)
def test_verdicts(published: str, ours: Mean | None, apart: str, verdict: str) -> None:
    assert Line(what="a", published=published, source="b", ours=ours, apart=apart).verdict == verdict


def test_differences_have_a_sign() -> None:
    ours = Mean(0.2, 0.5, 3)
    assert [Line(what="a", published=text, source="b", ours=ours).shown for text in ("-0.4", "0.4")] == [
        "+0.2 ± 0.5",
        "0.2 ± 0.5",
    ]
    assert Line(what="a", published="-0.4", source="b", ours=None).shown == "-"


def test_difference_of_means() -> None:
    assert difference(Mean(80.0, 3.0, 3), Mean(81.0, 4.0, 3)) == Mean(-1.0, 5.0, 3)
    assert difference(Mean(80.0, 3.0, 3), Mean(81.0, None, 1)) == Mean(-1.0, None, 1)
    assert difference(None, Mean(81.0, None, 1)) is None


@pytest.mark.parametrize("scale", [SMALL, QUICK, LARGER], ids=lambda scale: scale.name)
def test_without_results_nothing_is_ours(scale: Scale, tmp_path: Path) -> None:
    assert all(line.ours is None for group in every(Book(), scale) for line in group.lines)
    assert "reproduced, " in write_ledger(scale, Book(), tmp_path).read_text()


def test_every_number_has_a_source_and_every_comparison_a_reason() -> None:
    for group in every(Book()):
        assert group.published
        assert group.ours
        for line in group.lines:
            float(line.published)
            assert re.search(r"\]\(https://(arxiv\.org/abs/\d{4}\.\d{5}|github\.com/)|NeurIPS", line.source), (
                line.source
            )
            assert "backbone" in line.apart or line.verdict in ("not run", f"not comparable: {line.apart}")
            assert "|" not in line.what + line.note


def test_commands_name_files_streams_and_studies_that_exist() -> None:
    for command in {command for group in every(Book()) for command in group.commands}:
        words = command.split()
        if words[:2] == ["continual-petl", "run"]:
            assert (ROOT / words[2]).is_file() or (ROOT / "streams" / "catalog" / f"{words[2]}.yaml").is_file(), command
        elif words[2:3] == ["experiments.studies"]:
            assert words[3] in NAMES
        else:
            assert command.startswith(
                ("python -m experiments.routing ", "continual-petl ablate ", "python experiments/")
            )


def test_our_numbers_come_from_the_ledgers_of_trials() -> None:
    name = "houlsby2019/compare"
    book = filled(find(name), SMALL, lambda trial: outcome_of(trial, 0.9 if trial.bank == "full" else 0.8))
    lines = {line.what: line for group in houlsby2019.groups(SMALL, book) for line in group.lines}
    assert lines["full fine-tuning, CoLA"].ours == Mean(90.0, 0.0, 3)
    assert lines["adapters, 64, total"].ours == Mean(80.0, 0.0, 3)
    gap = lines["adapters, 64, minus full fine-tuning, total"]
    assert gap.ours is not None
    assert gap.ours.value == pytest.approx(-10.0)
    assert gap.verdict == "**not reproduced**: -9.2"
    assert lines["full fine-tuning, QNLI"].ours is None


def test_our_numbers_are_those_of_the_committed_raw_results() -> None:
    book = Book(ledgers(EXPERIMENTS))
    lines = {f"{g.title} | {line.what}": line for g in every(book, routing=RESULTS) for line in g.lines}
    raw = json.loads((RESULTS / "classes.json").read_text("utf-8"))["found"]
    klda = lines["CLINC150 as a stream of classes | KLDA"].ours
    assert klda is not None
    assert klda.value == pytest.approx(100 * raw["which_class"]["klda"]["test"])
    routed = json.loads((RESULTS / "classic.json").read_text("utf-8"))["found"]["end"]["nearest"]
    title = f"{FIVE[1].setting.partition(';')[0]} | "
    ours = lines[f"{title}O-LoRA"].ours
    assert ours is not None
    assert ours.value == pytest.approx(100 * routed)
    joint: dict[int, float] = {}
    for text in (EXPERIMENTS / "continual/results/classic5.jsonl").read_text("utf-8").splitlines():
        tree = json.loads(text)
        if tree.get("trial", {}).get("method") == "joint" and len(tree["trial"]["tasks"]) == 5:
            joint[tree["trial"]["seed"]] = 100 * statistics.mean(tree["outcome"]["R"][-1])
    together = lines[f"{title}multi-task"].ours
    assert together is not None
    assert together.value == pytest.approx(statistics.mean(joint.values()))


def test_methods_with_a_counterpart_are_named_as_in_the_tables() -> None:
    named = {row.method for table in (*FIVE, *FIFTEEN) for row in table.rows}
    assert streams.SAME.keys() <= named
    row = FIVE[0].rows[0]
    assert beside(row, None, "rows").note == row.flag


def test_ledger_of_a_copy_is_the_committed_one(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "routing" / "results")
    text = write_ledger(SMALL, Book(ledgers(EXPERIMENTS)), tmp_path).read_text("utf-8")
    assert text == (EXPERIMENTS / "LEDGER.md").read_text("utf-8"), "run `python -m experiments.studies pages`"


@pytest.mark.parametrize("name", ["ledger.line", "published.table", "studies.results_page"])
def test_doctests_pass(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"experiments.{name}")).failed == 0

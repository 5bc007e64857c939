"""Several runs side by side: tasks are matched by name, and limits of the comparison are reported."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.report.formatting import megabytes
from continual_petl.report.page.compared_runs import differences, named, sections
from continual_petl.report.page.parts import Table
from continual_petl.report.read_facts import read_facts
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.write import write_comparison
from tests.store.tampering import change_tensors, nudge
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def tables(runs: list[RunFacts]) -> dict[str, Table]:
    return {table.caption: table for section in sections(named(runs)) for table in section.tables}


def rows_of(table: Table) -> dict[str, dict[str, str]]:
    return {row[0].text: {head: cell.text for head, cell in zip(table.heads, row, strict=True)} for row in table.rows}


def test_each_run_has_its_own_numbers(facts: RunFacts, learned: Path, shared: Path) -> None:
    other = read_facts(shared)
    rows = rows_of(tables([facts, other])["Runs side by side"])
    for name, folder in (("banks", learned), ("shared", shared)):
        results, growth = Run(folder).results, Run(folder).growth
        assert rows[name]["ACC"] == f"{results.acc:.4f}"
        assert rows[name]["tasks"] == str(len(results.tasks))
        assert rows[name]["parameters added"] == f"{growth[-1].stored:,}"
        assert rows[name]["routing statistics"] == megabytes(growth[-1].cumulative_routing_bytes)
        assert rows[name]["on disk"] == megabytes(growth[-1].cumulative_bytes)
        mean = float(results.R[-1, [results.tasks.index(task) for task in ("one", "four")]].mean())
        assert rows[name]["mean of the 2 shared tasks"] == f"{mean:.4f}"
        copies = growth[-1].full_copies
        assert rows[name]["of full copies"] == f"{growth[-1].stored / copies:.2%}"
    settings = rows_of(tables([facts, other])["Settings of each run"])
    assert "one bank that all tasks share" in settings["shared"]["banks"]
    assert facts.pinned is not None
    assert settings["banks"]["backbone"] == f"{facts.pinned.name} ({facts.pinned.digest[:16]})"
    assert (settings["banks"]["seed"], settings["banks"]["training"]) == (
        "3",
        "learning rate 0.02, 2 epochs, batch size 8, precision fp32",
    )
    by_task = rows_of(tables([facts, other])["Newest known score of every task"])
    assert by_task["two"]["shared"] == "not learned"
    assert by_task["four"]["shared"] == f"{float(Run(shared).results.R[-1, 0]):.4f}"
    assert by_task["four"]["banks"] == f"{float(Run(learned).results.R[-1, 3]):.4f}"
    assert by_task["one"]["bank across runs"] == "different", "in the shared run, it continues the bank of task 'four'"
    some = rows_of(tables([facts, facts, other])["Newest known score of every task"])
    assert some["two"]["bank across runs"] == "the same, bit for bit, in the 2 that have it"
    told = " ".join(differences(named([facts, other])))
    assert "have not learned the same tasks" in told
    assert "All of them have learned 2 tasks." in told
    assert "in different orders" in told


@pytest.mark.slow
def test_another_order_gives_the_same_banks_bit_for_bit(
    facts: RunFacts, backbone_folder: Folder, tmp_path: Path
) -> None:
    learn(stream(backbone_folder(), [task("four", pairs=True), task("one")]), tmp_path / "other")
    other = read_facts(tmp_path / "other")
    told = " ".join(differences(named([facts, other])))
    assert "Shared tasks with the same bank in all runs, bit for bit: 2 of 2." in told
    assert "in different orders" in told
    assert "trained on different rows" not in told


def test_differences_in_rows_seeds_and_scores_are_reported(
    facts: RunFacts, backbone_folder: Folder, tmp_path: Path
) -> None:
    more = task("one", num_rows=44, metric="macro_f1")
    learn(stream(backbone_folder(), [more], seed=4, training={"epochs": 1}), tmp_path / "other")
    told = " ".join(differences(named([facts, read_facts(tmp_path / "other")])))
    for words in ("were trained on different rows (1): one", "different metrics", "different seeds"):
        assert words in told
    assert "bit for bit" not in told


def test_runs_without_common_tasks_or_without_tasks(facts: RunFacts, learned: Path, tmp_path: Path) -> None:
    run = shutil.copytree(learned, tmp_path / "empty")
    shutil.rmtree(run / "banks")
    (run / "ledger.jsonl").unlink()
    empty = read_facts(run)
    page = write_comparison(tmp_path / "report", [facts, empty]).read_text("utf-8")
    assert "They have no task in common." in page
    assert "No task has been learned yet." in page
    assert rows_of(tables([facts, empty])["Runs side by side"])["empty"]["ACC"] == "not known"


def test_damaged_run_is_marked_in_a_comparison(facts: RunFacts, learned: Path, tmp_path: Path) -> None:
    run = shutil.copytree(learned, tmp_path / "damaged")
    change_tensors(run / "banks/two/bank.safetensors", nudge("head.output.bias"))
    page = write_comparison(tmp_path / "report", [facts, read_facts(run)]).read_text("utf-8")
    assert "damaged: This run does not match its certificates" in page
    assert "banks: 4 tasks learned, 4 certificates checked, nothing changed." in page
    assert "3 of 4" in page


def test_run_compared_with_itself_has_two_names(facts: RunFacts) -> None:
    names = [name for name, _ in named([facts, facts])]
    assert len(set(names)) == 2
    assert names[1].endswith("(2)")


@pytest.mark.parametrize("count", [1, 2])
def test_the_same_runs_give_the_same_page(facts: RunFacts, tmp_path: Path, count: int) -> None:
    pages = [write_comparison(tmp_path / str(n), [facts] * count).read_bytes() for n in range(2)]
    assert pages[0] == pages[1]


def test_long_name_in_a_header_wraps_and_is_escaped(facts: RunFacts, tmp_path: Path) -> None:
    runs = [dataclasses.replace(facts, name=name) for name in ("lora_rank_8", "<b>")]
    page = write_comparison(tmp_path, runs).read_text("utf-8")
    assert "lora_<wbr>rank_<wbr>8</th>" in page
    assert "&lt;b&gt;</th>" in page
    assert "<b>" not in page.split("<main")[1].split("</main>")[0]

"""Facts about a run come from its folder; damaged or missing parts are reported."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from continual_petl import InputError, Run, learn
from continual_petl.report.figures.scores import flatness
from continual_petl.report.page.verdict import verdict
from continual_petl.report.read_facts import Reader, read_facts
from continual_petl.report.results import Results
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.folder.progress import Position
from continual_petl.store.ledger.lines import Status
from continual_petl.store.verify.certificate import check_task
from tests.report.made import rows_of
from tests.store.fabricated import Looks, multiply
from tests.store.tampering import change_tensors, nudge
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def said(facts: RunFacts) -> tuple[str, str]:
    more = verdict(facts).more
    return more["verdict"], more["mood"]


def cells(folder: Path) -> dict[tuple[str, str], float]:
    """Return every score by (after, task), parsed from the file without the package."""
    lines = [json.loads(line)["line"] for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return {
        (line["after"], cell["task"]): cell["value"]
        for line in lines
        if line["type"] == "row"
        for cell in line["cells"]
    }


def test_averages_match_the_results_file(learned: Path, facts: RunFacts) -> None:
    R, tasks = cells(learned), ["one", "two", "multilabel", "four"]
    for count in facts.steps:
        last = tasks[count - 1]
        mean = sum(R[last, name] for name in tasks[:count]) / count
        assert facts.after(count)["ACC"] == pytest.approx(mean, abs=1e-12)
        if count == 1:
            assert math.isnan(facts.after(count)["BWT"])
            continue
        earlier = tasks[: count - 1]
        back = sum(R[last, name] - R[name, name] for name in earlier) / len(earlier)
        best = {name: max(R[row, name] for row in tasks[tasks.index(name) : count - 1]) for name in earlier}
        drop = sum(best[name] - R[last, name] for name in earlier) / len(earlier)
        assert facts.after(count)["BWT"] == pytest.approx(back, abs=1e-12)
        assert facts.after(count)["forgetting"] == pytest.approx(drop, abs=1e-12)
    results = Run(learned).results
    assert facts.after(4) == {"ACC": results.acc, "BWT": results.bwt, "forgetting": results.forgetting}
    assert facts.changes == {name: 0.0 for name in tasks[:3]}


def test_parameters_and_bytes_match_the_files(learned: Path, facts: RunFacts) -> None:
    for task_facts in facts.tasks:
        folder = learned / "banks" / task_facts.name
        parts: dict[str, Any] = {"modifications": 0, "own": 0, "head": 0}
        with safe_open(folder / "bank.safetensors", "np") as file:
            for name in file.keys():  # noqa: SIM118
                parts[name.split(".")[0]] += file.get_tensor(name).size
        assert task_facts.certificate.parameters == parts
        whole = sum(path.stat().st_size for path in folder.iterdir())
        assert task_facts.num_bytes == whole
        assert task_facts.routing_bytes == (folder / "router.safetensors").stat().st_size
        on_disk = {part: 4 * number for part, number in parts.items()}
        on_disk["routing"] = (folder / "router.safetensors").stat().st_size
        assert task_facts.bytes_by_part == {**on_disk, "certificate": whole - sum(on_disk.values())}
    assert facts.growth[-1].stored == sum(t.num_parameters for t in facts.tasks)
    assert facts.growth[-1].cumulative_bytes == sum(t.num_bytes for t in facts.tasks)
    assert facts.growth[-1].cumulative_routing_bytes == sum(t.routing_bytes for t in facts.tasks)


def test_unchanged_run_is_reported_as_unchanged(facts: RunFacts) -> None:
    assert facts.ok
    assert said(facts) == ("4 tasks learned, 4 certificates checked, nothing changed.", "good")


@pytest.mark.parametrize("damage", ["tensor", "certificate", "history", "gone", "results", "pin", "predecessor"])
def test_damage_is_reported_and_the_rest_is_read(learned: Path, tmp_path: Path, damage: str) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    bank = run / "banks" / "two"
    match damage:
        case "tensor":
            change_tensors(bank / "bank.safetensors", nudge("head.output.bias"))
        case "certificate":
            (bank / "bank.json").write_bytes((bank / "bank.json").read_bytes()[:-9])
        case "history":
            (bank / "history.json").write_bytes(b"{}")
        case "gone":
            shutil.rmtree(bank)
        case "results":
            content = (run / "ledger.jsonl").read_bytes()
            (run / "ledger.jsonl").write_bytes(content.replace(b'"two"', b'"TWO"', 1))
        case "pin":
            (run / "backbone.json").write_bytes(b"{")
        case "predecessor":
            shutil.copytree(bank, run / "banks" / "copy")
    facts = read_facts(run)
    assert not facts.ok
    text, mood = said(facts)
    assert mood == "bad"
    assert "This run does not match its certificates" in text
    assert len(facts.tasks) == (3 if damage in {"certificate", "gone"} else 4)
    told = " ".join(problem for check in facts.checks for problem in check.problems)
    assert {"results": "ledger.jsonl", "pin": "backbone.json", "predecessor": "copy"}.get(damage, "two") in told
    # Findings that need no backbone are also reported by `verify`.
    found = {text for check in Run(run).verify() for text in check.problems}
    here = {text for check in facts.others for text in check.problems}
    assert here <= found


def test_answers_and_results_need_no_history(learned: Path, tmp_path: Path) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    texts = ["w0 w20", "w1 w30 w40"]
    before, results = Run(run).predict(texts, task="one"), Run(run).results.to_json()
    for file in (run / "banks").rglob("history.json"):
        file.write_bytes(b"no")
    assert Run(run).predict(texts, task="one") == before
    assert Run(run).results.to_json() == results
    check = check_task(Run(run).store, "one", None)
    assert not check.ok
    assert "No prediction depends on it" in " ".join(check.problems)


def test_single_task_has_no_forgetting_yet(backbone_folder: Folder, tmp_path: Path) -> None:
    learn(stream(backbone_folder(), [task("one", num_rows=16)], training={"epochs": 1}), tmp_path / "run")
    facts = read_facts(tmp_path / "run")
    assert said(facts) == ("1 task learned, 1 certificate checked, nothing changed.", "good")
    assert math.isnan(facts.after(1)["forgetting"])
    shutil.rmtree(tmp_path / "run/banks")
    (tmp_path / "run/ledger.jsonl").unlink()
    empty = read_facts(tmp_path / "run")
    assert said(empty) == ("No task has been learned yet.", "warn")
    assert (empty.tasks, empty.growth, empty.steps) == ((), [], ())


def test_tasks_using_a_later_shared_bank_are_not_called_unchanged(shared: Path) -> None:
    facts = read_facts(shared)
    text, mood = said(facts)
    assert facts.ok, "must be ok, since the banks are as they were committed"
    assert mood == "warn"
    assert "but 1 task uses the shared bank as task 'one' left it" in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run here"):
        read_facts(tmp_path)


def test_second_read_loads_only_changes(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    looked: list[str] = []

    def noted(store: Any, name: str, backbone: Any) -> Any:
        looked.append(name)
        return check_task(store, name, backbone)

    monkeypatch.setattr("continual_petl.report.read_facts.check_task", noted)
    reader = Reader(run)
    first = reader.read()
    assert sorted(looked) == ["four", "multilabel", "one", "two"]
    assert reader.read().tasks == first.tasks
    assert len(looked) == 4
    change_tensors(run / "banks/two/bank.safetensors", nudge("head.output.bias"))
    assert not reader.read().ok
    assert looked[4:] == ["two"]


def test_change_detection_opens_no_file_and_stats_each_once(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = multiply(shutil.copytree(learned, tmp_path / "run"), 40)
    reader = Reader(run)
    before = reader.state()
    looks = Looks(run, monkeypatch)
    with looks.fresh():
        assert reader.state() == before
        assert looks.opened == []
        assert len(looks.asked) == len(set(looks.asked))
    (run / "banks/.half.new").mkdir()
    (run / "report").mkdir()
    assert reader.state() == before, "neither a half-written bank nor the report itself may count as a change"
    weights = run / "banks/copy17/bank.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert reader.state() != before
    (run / "banks").rename(run / "elsewhere")
    away = reader.state()
    (run / "banks").symlink_to(run / "elsewhere")
    assert reader.state() not in (before, away), "a symbolic link must count as a change, since the page reports it"


def test_remeasured_scores_are_counted(facts: RunFacts) -> None:
    def words(count: int, *, moved: bool = False, certified: int = 0) -> str:
        R = torch.full((count + 1, count + 1), math.nan, dtype=torch.float64)
        R.fill_diagonal_(0.5)
        R[-1] = 0.5
        if moved:
            R[-1, 0] = 0.25
        status: list[list[Status]] = [["measured"] * (count + 1) for _ in range(count + 1)]
        status[-1][:certified] = ["certified"] * certified
        names = tuple(f"t{number}" for number in range(count + 1))
        results = Results(
            tasks=names, metrics=names, splits=("test",) * len(names), rows=rows_of(R, status), seconds={}
        )
        return flatness(dataclasses.replace(facts, results=results, tasks=facts.tasks[:1] * (count + 1)))

    assert words(1) == "The one score that was measured again is identical."
    assert words(2) == "Both scores that were measured again are identical."
    assert words(7) == "All 7 scores that were measured again are identical."
    assert words(2, certified=1) == (
        "The one score that was measured again is identical. 1 earlier score was certified instead of measured again."
    )
    assert words(2, certified=2) == "2 earlier scores were certified instead of measured again."
    assert words(7, moved=True) == "1 of 7 later scores changed, by -0.2500."


def test_page_shows_the_progress_of_the_current_task(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    reader, at = Reader(run), Position(checkpoint="0", epoch=2, num_epochs=5, step=20, num_steps=50, seconds=8.0)
    before = reader.state()
    monkeypatch.setattr("continual_petl.report.read_facts.half_learned", lambda store: {"five": at, "six": None})
    assert reader.state() != before, "the change must cause a served page to be redrawn"
    lines = verdict(reader.read()).lines
    left = "about 12 s of training left"
    assert f"Task 'five' is half learned: at its last checkpoint epoch 2 of 5, step 20 of 50; {left}." in lines
    assert "Task 'six' is half learned." in lines

"""Adding a task to a run with many tasks checks only a sample of the certificates."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.scoring import result_row
from continual_petl.streams.stream_file.dump import dump_stream
from tests.learned import LearnedRuns
from tests.store.fabricated import Looks, multiply
from tests.store.tampering import change_tensors, edit, nudge
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
QUICK = {"epochs": 1}


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    tasks = stream(backbone_folder(), [task("one", num_rows=8)], training=QUICK, evaluate="certified")
    return learned_runs(tasks)


@pytest.fixture
def many(first: Path, tmp_path: Path) -> Callable[[int], Path]:
    return lambda count: multiply(shutil.copytree(first, tmp_path / str(count)), count)


@pytest.fixture(autouse=True)
def _two_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_row, "_CHECKED", 2)


def learn_at_the_command_line(folder: Path, name: str = "new") -> int:
    (folder.parent / "new.yaml").write_text(json.dumps(task(name, num_rows=8)))
    return main(["learn", str(folder), str(folder.parent / "new.yaml"), "--quiet", "--check", "digests"])


@pytest.mark.slow
def test_number_of_banks_read_does_not_depend_on_the_number_of_tasks(
    many: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for count in (60, 90):
        folder = many(count)
        with monkeypatch.context() as patch:
            looks = Looks(folder, patch)
            assert learn_at_the_command_line(folder) == 0
            found[count] = sum(path.endswith("bank.safetensors") for path in looks.opened)
    # `NoForgetting` checks a sample of 20 after every task; the row of R and the verdict check a few more.
    assert 20 <= found[60] <= 26
    assert found[60] == found[90]


@pytest.mark.slow
def test_verdict_says_what_was_checked_and_carried_over(
    many: Callable[[int], Path], capsys: pytest.CaptureFixture[str], backbone_folder: Folder
) -> None:
    folder = many(6)
    assert learn_at_the_command_line(folder) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "mean score over all tasks at the end, 4 of 7 carried over from earlier rows" in printed
    assert "verified 2 of 2 tasks unchanged" in printed
    assert "2 of 7 certificates were checked, and the whole chain; `continual-petl verify` checks the rest" in printed
    results = Run(folder).results
    assert results.carried == 4
    scores = [Run(folder).store.certificate(name).score for name in results.tasks]
    assert results.acc == pytest.approx(sum(score or 0.0 for score in scores) / 7)
    assert math.isnan(results.bwt), "BWT must be unknown, since some tasks have no later score"
    assert sum(status != "not measured" for status in results.row_status(6)) == 3
    # If a command learns enough tasks, it checks all certificates.
    tasks = [task(f"more{number}", num_rows=16) for number in range(6)]
    run = learn(stream(backbone_folder(), tasks, training=QUICK, evaluate="certified"), folder)
    assert (run.results.carried, run.results.bwt) == (0, 0.0)
    assert len(run.verify()) == 13


def test_complete_row_carries_nothing_over(many: Callable[[int], Path]) -> None:
    folder = many(2)
    assert learn_at_the_command_line(folder) == 0
    results = Run(folder).results
    assert (results.carried, results.row_status(2)) == (0, ["certified", "certified", "measured"])


def test_verify_sample_checks_some_certificates_and_the_whole_chain(many: Callable[[int], Path]) -> None:
    folder = many(30)
    run = Run(folder)
    some = {check.task for check in run.verify(limit=4)}
    assert len(some) == 4
    assert "copy29" in some, "the newest task must be in the sample"
    assert len(run.verify(limit=30)) == len(run.verify()) == 30
    left = next(name for name in run.store.tasks[1:] if name not in some)
    change_tensors(folder / "banks" / left / "bank.safetensors", nudge("head.output.bias"))
    assert all(check.ok for check in Run(folder).verify(limit=4)), "a certificate outside the sample was checked"
    assert [check.task for check in Run(folder).verify() if not check.ok] == [left]
    # A broken chain and another certificate are found anywhere, even outside the sample.
    ledger = (folder / "ledger.jsonl").read_bytes()
    edit(folder / "banks" / left / "bank.json", sealed=True, notices=("nothing to see here",))
    assert "(ledger.jsonl)" in {check.task for check in Run(folder).verify(limit=4) if not check.ok}
    (folder / "ledger.jsonl").write_bytes(ledger)
    assert left in {check.task for check in Run(folder).verify(limit=4) if not check.ok}
    after = f"copy{int(left.removeprefix('copy')) + 1}"
    shutil.rmtree(folder / "banks" / after)
    assert after in {check.task for check in Run(folder).verify(limit=4) if not check.ok}


def test_repeated_run_checks_a_sample(
    many: Callable[[int], Path], capsys: pytest.CaptureFixture[str], backbone_folder: Folder
) -> None:
    folder = many(30)
    tasks = stream(backbone_folder(), [task("one", num_rows=8)], training=QUICK, evaluate="certified")
    (folder.parent / "stream.yaml").write_text(dump_stream(tasks.spec))
    assert main(["run", str(folder.parent / "stream.yaml"), "--run-dir", str(folder), "--quiet"]) == 0
    assert "2 of 30 certificates were checked" in " ".join(capsys.readouterr().out.split())

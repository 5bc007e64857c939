"""Each policy of NoForgetting detects what it claims to, and its checks and their cost are recorded."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from continual_petl import ForgettingError, NoForgetting, learn
from continual_petl.callbacks import Progress
from continual_petl.cli.main import main
from continual_petl.engine.scoring.result_row import measure_row
from continual_petl.engine.task import finish_task
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import SplitScores
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.verify.certificate import rotating
from continual_petl.streams.stream_file.dump import dump_stream
from tests.callbacks.test_stream_callbacks import Ends
from tests.store.tampering import change_tensors, edit, nudge
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
NAMES = ("one", "two", "three")


def tasks_of(backbone: Path, *names: str, **more: Any) -> Any:
    tasks = [task(name, num_rows=8) for name in names or NAMES]
    return stream(backbone, tasks, training=QUICK, **more)


@given(limit=st.integers(1, 25), start=st.integers(0, 120), last=st.integers(1, 120))
def test_every_task_is_checked_in_rotation(limit: int, start: int, last: int) -> None:
    """There are ``start`` tasks at first, and every turn adds one."""
    waited: dict[str, int] = {}
    for turn in range(start, start + last):
        tasks = [str(number) for number in range(turn)]
        chosen = rotating(tasks, turn, limit)
        assert len(chosen) <= limit
        assert len(chosen) == len(tasks) or len(chosen) > limit // 2 - 1
        waited = {name: 0 if name in chosen else waited.get(name, 0) + 1 for name in tasks}
        assert max(waited.values(), default=0) <= max(1, 4 * len(tasks) / limit)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="policy: got 'often'; allowed: digests, probe, full"):
        NoForgetting("often")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit: got 0; at least one earlier task has to be checked"):
        NoForgetting(limit=0)


@pytest.mark.parametrize(
    ("policy", "how", "kind"),
    [
        ("digests", "digests", "digests"),
        ("probe", "digests and probe, bit for bit", "probe"),
        ("full", "digests and probe, bit for bit", "full"),
    ],
)
def test_checks_and_their_cost_are_recorded_and_reported(
    backbone_folder: Folder, tmp_path: Path, policy: Any, how: str, kind: str
) -> None:
    buffer = io.StringIO()
    ends = Ends()
    callbacks = [NoForgetting(policy), ends, Progress(Console(file=buffer, width=200))]
    run = learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=callbacks)
    assert {check.how for check in ends.tasks["three"].checks} == {how}
    done = {line.task: line for line in run.store.results() if isinstance(line, FinishedLine)}
    assert [done[name].checks for name in NAMES] == [{}, {kind: 1}, {kind: 2}]
    assert done["three"].seconds["verify"] > 0
    assert "certificates of earlier tasks hold: 2 by digests" in buffer.getvalue()
    assert "of the training time" in buffer.getvalue()


@pytest.mark.parametrize(
    "policy", ["probe", *(pytest.param(policy, marks=pytest.mark.slow) for policy in ("digests", "full"))]
)
def test_every_policy_detects_a_changed_bank_and_a_broken_chain(
    backbone_folder: Folder, tmp_path: Path, policy: Any
) -> None:
    learn(tasks_of(backbone_folder(), "one", "two"), tmp_path / "run")
    certificate = tmp_path / "run" / "banks" / "one" / "bank.json"
    whole, ledger = certificate.read_bytes(), (tmp_path / "run" / "ledger.jsonl").read_bytes()
    edit(certificate, sealed=True, notices=("nothing to see here",))
    more = tasks_of(backbone_folder(), evaluate="certified")
    with pytest.raises(StoreError, match=r"ledger\.jsonl:4: it is entry 1 of a chain and names the predecessor"):
        learn(more, tmp_path / "run", callbacks=[NoForgetting(policy)])
    certificate.write_bytes(whole)
    (tmp_path / "run" / "ledger.jsonl").write_bytes(ledger)
    change_tensors(tmp_path / "run" / "banks" / "two" / "bank.safetensors", nudge("head.output.bias"))
    with pytest.raises(ForgettingError, match=r"task 'two'.*tensor head\.output\.bias"):
        learn(more, tmp_path / "run", callbacks=[NoForgetting(policy)])


def test_files_lost_after_the_commit_are_detected(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_and_steal(session: Any, task: str) -> Any:
        row = measure_row(session, task)
        if task == "two":
            shutil.rmtree(tmp_path / "run" / "banks" / "one")
        return row

    monkeypatch.setattr(finish_task, "measure_row", measure_and_steal)
    with pytest.raises(
        ForgettingError, match=r"task 'one' was learned as entry 0 of the chain, but its bank is missing"
    ):
        learn(tasks_of(backbone_folder()), tmp_path / "run")


@pytest.mark.slow
def test_full_policy_distinguishes_missing_rows_from_changed_answers(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(tasks_of(backbone_folder(), "one"), tmp_path / "run")
    ends = Ends()
    learn(tasks_of(backbone_folder(), "two"), tmp_path / "run", callbacks=[NoForgetting("full"), ends])
    assert ends.tasks["two"].num_checks == {"probe": 1}, "the rows of the first task are no longer in the stream"

    certificate = tmp_path / "run" / "banks" / "two" / "bank.json"
    scores = json.loads(certificate.read_text())["scores"]
    scores["test"]["predictions"] = "0" * 64
    edit(certificate, sealed=True, scores={split: SplitScores.model_validate(value) for split, value in scores.items()})
    with pytest.raises(
        ForgettingError, match="task 'two': some predictions for its test rows differ from those certified"
    ):
        learn(tasks_of(backbone_folder(), "two", "three"), tmp_path / "run", callbacks=[NoForgetting("full")])


def test_policy_can_be_chosen_on_the_command_line(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stream.yaml").write_text(dump_stream(tasks_of(backbone_folder(), "one", "two").spec))
    arguments = ["run", str(tmp_path / "stream.yaml"), "--run-dir", str(tmp_path / "run"), "--check", "full"]
    assert main(arguments) == 0
    assert "1 by digests, probe and test rows" in capsys.readouterr().err

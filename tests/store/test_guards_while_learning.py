"""Changes to a run's folder before it resumes, and scores that differ when measured again, are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import ForgettingError, Run, learn
from continual_petl.engine.scoring import result_row
from continual_petl.engine.task import learn_task
from continual_petl.errors import StoreError
from continual_petl.learner.guards import LossWatch
from continual_petl.store.certificate.values import SplitScores
from tests.store.tampering import QUICK, TASKS, change_tensors, learn_one_more, nudge, problems
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def test_changed_accuracy_with_unchanged_rows_is_detected(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., SplitScores] = vars(result_row)["evaluate"]

    def one_row_less(*args: Any) -> SplitScores:
        scores = real(*args)
        changed = {**scores.scores, "accuracy": scores.scores["accuracy"] - 1 / scores.num_examples}
        return scores.model_copy(update={"scores": changed})

    monkeypatch.setattr(result_row, "evaluate", one_row_less)
    with pytest.raises(
        ForgettingError, match=r"task 'one': its accuracy on its test split was .* and is .* after 'four'"
    ):
        learn_one_more(backbone_folder(), folder)
    monkeypatch.undo()
    assert learn_one_more(backbone_folder(), folder).results.forgetting == 0.0


@pytest.mark.slow
def test_changed_validation_accuracy_is_detected(
    tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(name, num_rows=16) for name in ("one", "two")]
    for spec in tasks:
        del spec["data"]["test"]
    real: Callable[..., SplitScores] = vars(result_row)["evaluate"]
    monkeypatch.setattr(
        result_row, "evaluate", lambda *args: real(*args).model_copy(update={"scores": {"accuracy": 0.123}})
    )
    with pytest.raises(ForgettingError, match="task 'one': its accuracy on its validation split"):
        learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")


@pytest.mark.slow
def test_changed_rows_are_not_measured(folder: Path, backbone_folder: Folder) -> None:
    changed = [dict(spec) for spec in TASKS]
    changed[1] = {**changed[1], "data": {**changed[1]["data"], "test": changed[1]["data"]["test"][1:]}}
    four = task("four", num_rows=16)
    run = learn(stream(backbone_folder(), [*changed, four], training=QUICK), folder)
    assert run.results.status[3] == ("measured", "certified", "measured", "measured")
    found = {check.task: check for check in run.verify(data=True)}
    assert not found["two"].ok
    assert "not those it was certified on" in found["two"].problems[0]


def test_changed_bank_is_detected_without_measuring(folder: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    """The last row of R is missing, the stream contains only the last task, and the first bank was changed meanwhile."""
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["line"]["type"] == "finished"
    (folder / "ledger.jsonl").write_text("".join(lines[:-1]))
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    with pytest.raises(ForgettingError, match=r"task 'one'.*head\.output\.bias"):
        learn(stream(backbone_folder(), TASKS[2:], training=QUICK), folder)


@pytest.mark.parametrize("policy", ["certified", "sample"])
def test_failed_certificate_is_an_error_not_unmeasured(
    folder: Path, backbone_folder: Folder, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_row, "_SAMPLE", 0)
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    tasks = stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK, evaluate=policy)
    with pytest.raises(ForgettingError, match=r"task 'one'.*tensor head.output.bias"):
        learn(tasks, folder)


@pytest.mark.slow
def test_diverged_bank_counts_as_unchanged(
    tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Disable the checks that now prevent a diverged bank from being committed.
    monkeypatch.setattr(learn_task, "check_finite", lambda *_: None)
    monkeypatch.setattr(LossWatch, "check", lambda *_: None)
    wild = {"learning_rate": 1e30, "optimizer": "sgd", "gradient_clip": None, "warmup": 0.0, "epochs": 1}
    run = learn(stream(backbone_folder(), TASKS[:2], training=wild), tmp_path / "run")
    assert run.store.tensors("one")["head.output.bias"].isnan().all()
    history = run.store.history("one")
    assert history is not None
    assert history.curve.losses[-1].loss is None
    assert all(check.ok for check in run.verify())


def test_run_without_learned_tasks(folder: Path) -> None:
    shutil.rmtree(folder / "banks")
    (folder / "ledger.jsonl").unlink()
    run = Run(folder)
    found = run.results.to_json()
    assert (found["tasks"], found["R"], found["acc"], found["bwt"], found["forgetting"]) == ([], [], None, None, None)
    assert run.growth == []
    assert run.verify() == []


def test_stream_on_another_backbone_does_not_change_the_run(folder: Path, backbone_folder: Folder) -> None:
    before = (folder / "stream.yaml").read_bytes()
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        learn_one_more(backbone_folder("electra"), folder)
    assert (folder / "stream.yaml").read_bytes() == before
    assert problems(folder) == {}

"""Test rows do not influence any choice: the test split is not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, NoForgetting, TaskStream, learn
from continual_petl.cli.commands.sweep import show
from continual_petl.store.ledger.lines import RowLine
from continual_petl.streams.preparation import prepare
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import Outcome
from tests.streams_in_code import classification_rows, stream, task, write_rows
from tests.sweep.sweeps import TRAINING, ended, small_stream, small_sweep, without_time

Folder = Callable[..., Path]


def on_disk(backbone: Path, folder: Path) -> TaskStream:
    return stream(backbone, [{"name": "one", "kind": "classification", "data": str(folder)}], training=TRAINING)


@pytest.mark.slow
def test_unreadable_test_rows_do_not_change_the_choice(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def read(*given: Any, **more: Any) -> Any:
        asked.append(given[3])
        return read_splits(*given, **more)

    monkeypatch.setattr(prepare, "read_splits", read)
    write_rows(tmp_path / "data", "one")
    tasks = on_disk(backbone_folder(), tmp_path / "data")
    first = sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "good")
    (tmp_path / "data" / "test.jsonl").write_text('{"text": "w1", "label": "garbage"}\nno JSON at all')
    second = sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "bad")
    assert asked
    assert all("test" not in splits for splits in asked)
    assert second.chosen == first.chosen
    for role in ("search", "seed"):
        found = without_time(ended(tmp_path / "bad", role=role))
        assert found == without_time(ended(tmp_path / "good", role=role))
    assert all(set(line["data"]) == {"train", "validation"} for line in ended(tmp_path / "bad"))
    with pytest.raises(InputError):
        learn(TaskStream(second.chosen), tmp_path / "run")  # learning does read them


def test_run_without_test_splits_scores_validation_rows(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(small_stream(backbone_folder()), tmp_path / "run", test=False)
    certificate = run.store.certificate("one")
    assert set(certificate.scores) == {"validation"}
    assert run.results.R[0, 0] == certificate.scores["validation"].scores["accuracy"]
    assert not any("no test split" in notice for notice in certificate.notices)


CARVED = "the data has no validation split, so each seed held out its own rows from train"
DRAWN = "limits.validation lets each seed draw its own validation rows"


@pytest.mark.parametrize("with_split", [True, False])
@pytest.mark.parametrize("limit", [None, 8])
def test_reason_for_different_validation_rows_is_reported(
    backbone_folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    with_split: bool,
    limit: int | None,
) -> None:
    def as_if(setup: Any, record: Any) -> Outcome:
        rows = str(record.seed) if limit or not with_split else "the same"
        return Outcome(state="complete", score=0.5, data={"validation": rows})

    monkeypatch.setattr(runner, "carried_out", as_if)
    write_rows(tmp_path / "data", "one")
    if not with_split:
        (tmp_path / "data" / "validation.jsonl").unlink()
    one = {"name": "one", "kind": "classification", "data": str(tmp_path / "data")}
    limits = {} if limit is None else {"limits": {"validation": limit}}
    tasks = stream(backbone_folder(), [one | limits], training=TRAINING)
    show(sweep(tasks, small_sweep(trials=1, seeds=2), folder=tmp_path / "sweep"))
    shown = capsys.readouterr().out
    assert (CARVED in shown, DRAWN in shown) == (not with_split, limit is not None)
    assert ("The spread over seeds includes this." in shown) == (not with_split or limit is not None)


@pytest.mark.slow
def test_held_out_validation_rows_per_seed_are_reported(backbone_folder: Folder, tmp_path: Path) -> None:
    rows = classification_rows("one", 60)
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = on_disk(backbone_folder(), tmp_path / "one.jsonl")
    result = sweep(tasks, small_sweep(trials=1, seeds=2), folder=tmp_path / "sweep")
    assert not result.tasks["one"].same_rows
    write_rows(tmp_path / "data", "one")
    result = sweep(on_disk(backbone_folder(), tmp_path / "data"), small_sweep(trials=1, seeds=2), folder=tmp_path / "2")
    assert result.tasks["one"].same_rows


@pytest.mark.slow
def test_rows_that_changed_between_two_trials_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    write_rows(tmp_path / "data", "one")
    tasks = on_disk(backbone_folder(), tmp_path / "data")
    sweep(tasks, small_sweep(trials=1), folder=tmp_path / "sweep")
    lines = (tmp_path / "data" / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data" / "train.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(InputError, match="task 'one': its train rows differ from those of the earlier trials"):
        sweep(tasks, small_sweep(), folder=tmp_path / "sweep")
    assert len(ended(tmp_path / "sweep")) == 1


@pytest.mark.parametrize(
    ("evaluate", "status"), [("auto", "certified"), ("sample", "certified"), ("all", "not measured")]
)
def test_run_without_test_splits_does_not_read_earlier_ones(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate: str, status: str
) -> None:
    asked: list[Any] = []

    def read(*given: Any, **more: Any) -> Any:
        asked.extend(given[3])
        return read_splits(*given, **more)

    given = [task(name, num_rows=20) for name in ("one", "two")]
    first = stream(backbone_folder(), given[:1], training=TRAINING, evaluate=evaluate)
    run = learn(first, tmp_path / "run")
    score = run.store.certificate("one").scores["test"].scores["accuracy"]
    monkeypatch.setattr(prepare, "read_splits", read)
    both = stream(backbone_folder(), given, training=TRAINING, evaluate=evaluate)
    run = learn(both, tmp_path / "run", test=False, callbacks=[NoForgetting(policy="full")])
    assert asked
    assert "test" not in asked
    row = next(line for line in run.store.results() if isinstance(line, RowLine) and line.after == "two")
    cell = row.cells[0]
    assert (cell.task, cell.split, cell.status) == ("one", "test", status)
    assert cell.value == (score if status == "certified" else None)
    assert row.cells[1].split == "validation"

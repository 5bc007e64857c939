"""A task's training history is stored with its bank; it is bounded, certified, and the same after an interruption."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from continual_petl import Interrupted, Run, StoreError, learn
from continual_petl.engine.scoring.evaluate import MAX_CELLS, MAX_POINTS, _confusion, _points, _spaced
from continual_petl.engine.task import learning_curve
from continual_petl.engine.task.learn_task import curve_of
from continual_petl.store.certificate.certificate import HISTORY, Certificate
from continual_petl.store.certificate.history import (
    Confusion,
    Curve,
    History,
    PerLabel,
    Points,
    Samples,
    read_history,
    write_history,
)
from tests.engine.test_resume import SignalAt
from tests.streams_in_code import regression_task, stream, task, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]


def test_history_has_the_losses_and_scores_of_a_fit(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=24)], training={"batch_size": 5, "epochs": 3})
    run = learn(tasks, tmp_path / "run")
    history = run.store.history("one")
    assert [point.step for point in history.curve.losses] == list(range(1, 16))
    assert [(point.epoch, point.step) for point in history.curve.scores] == [(1, 5), (2, 10), (3, 15)]
    certificate = run.store.certificate("one")
    best = max(point.scores["accuracy"] for point in history.curve.scores)
    first = next(point.step for point in history.curve.scores if point.scores["accuracy"] == best)
    assert history.kept == first
    assert certificate.scores["validation"].scores["accuracy"] == pytest.approx(best)


@pytest.mark.slow
def test_history_of_a_long_fit_is_thinned(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_curve, "MAX_LOSSES", 20)
    tasks = stream(backbone_folder(), [task("one", num_rows=21)], training={"batch_size": 3, "epochs": 5})
    history = learn(tasks, tmp_path / "run").store.history("one")
    losses = history.curve.losses
    assert [point.step for point in losses] == [*range(2, 35, 2), 35], "the last point covers the rest"


@pytest.mark.slow
@pytest.mark.parametrize("at", few([7, 3, 12]))
def test_interrupted_fit_has_the_same_history(backbone_folder: Folder, tmp_path: Path, at: int) -> None:
    training = {"batch_size": 5, "epochs": 3, "checkpoint_every": 2, "head_dropout": 0.3}
    tasks = stream(backbone_folder(), [task("one", num_rows=24)], training=training)
    learn(tasks, tmp_path / "whole")
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "stopped", callbacks=[SignalAt(at, signal.SIGTERM)])
    learn(tasks, tmp_path / "stopped")
    one, other = (tmp_path / run / "banks/one/history.json" for run in ("whole", "stopped"))
    assert one.read_bytes() == other.read_bytes()


def test_gradient_accumulation_does_not_change_the_recorded_loss(backbone_folder: Folder, tmp_path: Path) -> None:
    curves = []
    for number, training in enumerate(({"batch_size": 4}, {"batch_size": 2, "accumulate": 2})):
        tasks = stream(
            backbone_folder(),
            [task("one", num_rows=16)],
            training={**training, "epochs": 1, "learning_rate": 1e-9, "head_dropout": 0.0},
        )
        history = learn(tasks, tmp_path / str(number)).store.history("one")
        curves.append(sum(point.loss or 0.0 for point in history.curve.losses) / len(history.curve.losses))
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_confusion_matrix_adds_up_to_rows_and_accuracy(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [task("one")]), tmp_path / "run")
    history, scores = run.store.history("one"), run.store.certificate("one").scores
    for split, answered in history.answered.items():
        assert isinstance(answered, Confusion)
        assert sum(count for *_, count in answered.cells) == scores[split].num_examples
        right = sum(count for true, said, count in answered.cells if true == said)
        assert right / scores[split].num_examples == pytest.approx(scores[split].scores["accuracy"])


def test_large_confusion_matrix_keeps_its_largest_cells() -> None:
    draw = torch.Generator().manual_seed(0)
    labels, said = (torch.randint(300, (50_000,), generator=draw) for _ in range(2))
    found = _confusion(labels, said, 300)
    assert len(found.cells) == MAX_CELLS
    assert sum(count for *_, count in found.cells) + found.others == 50_000


def test_history_pairs_targets_and_predictions(backbone_folder: Folder, tmp_path: Path) -> None:
    history = learn(stream(backbone_folder(), [regression_task("one")]), tmp_path / "run").store.history("one")
    points = history.answered["test"]
    assert isinstance(points, Points)
    assert len(points.pairs) == 16


def test_non_finite_predictions_are_stored_as_unknown() -> None:
    said = torch.tensor([0.5, torch.nan, torch.inf])
    assert _points(torch.tensor([1.0, 2.0, 3.0]), said).pairs == ((1.0, 0.5), (2.0, None), (3.0, None))
    many = _points(torch.arange(2000.0), torch.arange(2000.0)).pairs
    assert len(many) == MAX_POINTS
    assert many[:2] == ((0.0, 0.0), (4.0, 4.0))


def test_multilabel_counts_are_per_label(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [task_of_kind("multilabel", num_rows=20)])
    run = learn(tasks, tmp_path / "run")
    history = run.store.history("multilabel")
    counted = history.answered["test"]
    assert isinstance(counted, PerLabel)
    right, wrong, missed = (sum(part) for part in zip(*counted.counts, strict=True))
    f1 = 2 * right / max(1, 2 * right + wrong + missed)
    assert f1 == pytest.approx(run.store.certificate("multilabel").scores["test"].scores["micro_f1"])


@pytest.mark.parametrize("keeps", [False, True])
def test_target_texts_are_stored_only_if_the_probe_has_rows(
    backbone_folder: Folder, tmp_path: Path, keeps: bool
) -> None:
    more = {"probe": "validation"} if keeps else {}
    folder = backbone_folder("bart")
    tasks = stream(folder, [task_of_kind("seq2seq", num_rows=12)], **{"backbone": {"name": str(folder)}}, **more)
    history = learn(tasks, tmp_path / "run").store.history("seq2seq")
    samples = history.answered["test"]
    assert isinstance(samples, Samples)
    assert 0 < len(samples.texts) <= 5
    assert all((sample.reference is not None) is keeps for sample in samples.texts)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_changed_history_is_reported(backbone_folder: Folder, tmp_path: Path, damage: str) -> None:
    learn(stream(backbone_folder(), [task("one")]), tmp_path / "run")
    file = tmp_path / "run/banks/one/history.json"
    if damage == "gone":
        file.unlink()
    else:
        content = json.loads(file.read_text())
        content["curve"]["losses"][0]["loss"] *= 2
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    run = Run(tmp_path / "run")
    (check,) = run.verify()
    assert not check.ok
    assert "history.json" in check.problems[0]
    with pytest.raises(StoreError, match="restore it from a copy"):
        run.store.history("one")


def test_history_with_many_labels_roundtrips(tmp_path: Path) -> None:
    counts = PerLabel(counts=((1_000_000, 1_000_000, 1_000_000),) * 60_000)
    made = History(task="wide", curve=Curve(losses=(), scores=()), kept=None, answered={"test": counts})
    certificate = SimpleNamespace(task="wide", files={HISTORY: write_history(tmp_path / HISTORY, made)})
    assert read_history(tmp_path / HISTORY, cast(Certificate, certificate)) == made


@pytest.mark.parametrize("content", ["{", '{"losses": 1}', "{}\n"])
def test_damaged_curve_error_says_how_to_keep_the_task(tmp_path: Path, content: str) -> None:
    (tmp_path / "curve.json").write_text(content)
    with pytest.raises(StoreError, match=r"curve\.json: .*if there is no copy, remove it, and the task is kept"):
        curve_of(tmp_path)


def test_points_are_spaced_evenly() -> None:
    assert _spaced(3, 5) == [0, 1, 2]
    assert _spaced(10, 5) == [0, 2, 4, 6, 8]

"""The page shows and updates the learning curve of an unfinished task."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Interrupted, learn
from continual_petl.report import read_facts as facts_module
from continual_petl.report.page import sections as sections_module
from continual_petl.report.page.sections import half_learned
from continual_petl.report.read_facts import Reader, read_facts
from continual_petl.report.write import write_report
from continual_petl.store.certificate.history import CURVE
from continual_petl.store.files.atomic import write_json
from tests.engine.test_resume import SignalAt
from tests.report.test_page import Page
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
FIT = {"batch_size": 5, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def stopped(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a learned task, and a task that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    one, two = task("one", num_rows=8, training={**FIT, "epochs": 1}), task("two", num_rows=24, training=FIT)
    learn(stream(backbone_folder(), [one]), folder)
    with pytest.raises(Interrupted):
        learn(stream(backbone_folder(), [one, two]), folder, callbacks=[SignalAt(7)])
    return folder


def test_partial_curve_is_drawn_like_a_complete_one(stopped: Path, tmp_path: Path) -> None:
    page = Page(write_report(tmp_path / "report", read_facts(stopped)))
    assert "half" in page.ids
    assert "Training of two so far" in page.texts
    loss, score = page.figures["half-0"]["data"]
    assert (loss["x"], score["x"]) == ([1, 2, 3, 4, 5], [5]), (
        "must be as written at the validation after the first epoch"
    )
    assert score["name"] == "validation accuracy"
    assert any("epoch 2 of 2, step 8 of 10" in text and "Training loss" in text for text in page.texts)


def test_partial_curve_is_drawn_before_the_first_commit(stopped: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    shutil.rmtree(run / "banks")
    (run / "ledger.jsonl").unlink()
    assert "half-0" in Page(write_report(tmp_path / "report", read_facts(run))).figures


def test_served_page_updates_with_new_curve_points(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    reader = Reader(run)
    before = reader.state()
    reader.read()
    assert reader.state() == before
    points = [{"step": step, "loss": 0.5} for step in range(1, 9)]
    write_json(run / ".progress/two" / CURVE, {"losses": points, "scores": []})
    assert reader.state() != before
    assert len(reader.read().so_far["two"][1].losses) == 8
    # The page of a long run takes seconds to draw, so it is redrawn only at checkpoints.
    monkeypatch.setattr(facts_module, "MAX_TASKS", 0)
    reader.read()
    before = reader.state()
    write_json(run / ".progress/two" / CURVE, {"losses": points[:4], "scores": []})
    assert reader.state() == before


@pytest.mark.parametrize("content", [None, "{", '{"losses": 1}', '{\n  "losses": [],\n  "scores": []\n}\n'])
def test_unreadable_curve_has_no_figure(stopped: Path, tmp_path: Path, content: str | None) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    file = run / ".progress/two" / CURVE
    file.unlink()
    if content is not None:
        file.write_text(content)
    facts = read_facts(run)
    assert list(facts.half_learned) == ["two"]
    assert half_learned(facts) == []
    assert "half" not in Page(write_report(tmp_path / "report", facts)).ids


def test_only_the_first_of_many_unfinished_tasks_are_drawn(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections_module, "MAX_CURVES", 0)
    assert half_learned(read_facts(stopped)) == []

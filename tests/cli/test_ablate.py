"""``ablate``: a table by default, JSON for programs, one page for people, without changing the run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli import _console
from continual_petl.engine.ablation.result import Ablation
from tests.cli.bench import Bench

SPANS = [(0, 0), (0, 1), (1, 1)]


def test_ablate_prints_a_table_json_and_a_page(bench: Bench, capsys: Any) -> None:
    before = bench.learned()
    assert bench.main("ablate", "FOLDER/run", "--output", "FOLDER/a.json", "--html", "FOLDER/a.html") == 0
    shown = capsys.readouterr().out
    for fragment in ("single: ", "from\\to", "rows were predicted again", "its own LayerNorms", "wrote "):
        assert fragment in shown
    assert bench.main("ablate", "FOLDER/run", "--task", "single", "--json") == 0
    told = capsys.readouterr()
    assert told.err == ""
    found = json.loads(told.out)
    assert found == json.loads((bench.folder / "a.json").read_text())
    assert found["left_out"] == {}
    (ablation,) = map(Ablation.from_json, found["ablations"])
    assert [(cell.first, cell.last) for cell in ablation.cells] == SPANS
    assert "heatmap" in (bench.folder / "a.html").read_text("utf-8")
    assert bench.learned() == before


def test_spans_and_split_can_be_chosen(bench: Bench, capsys: Any) -> None:
    for words, spans in ((["single"], [(0, 0), (1, 1)]), (["1", "0-1"], [(0, 1), (1, 1)]), (["all"], SPANS)):
        assert bench.main("ablate", "FOLDER/run", "--split", "test", "--json", "--spans", *words) == 0
        (found,) = json.loads(capsys.readouterr().out)["ablations"]
        assert [(cell["first"], cell["last"]) for cell in found["cells"]] == spans
        assert found["split"] == "test"


@pytest.mark.slow
def test_tasks_without_modified_layers_are_skipped_and_reported(bench: Bench, capsys: Any) -> None:
    assert (
        bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--quiet", "--tasks.other.bank", "probe")
        == 0
    )
    capsys.readouterr()
    assert bench.main("ablate", "FOLDER/run") == 0
    shown = capsys.readouterr().out
    assert "single: " in shown
    assert "left out: task 'other': its bank has no modification in any layer" in shown
    assert bench.main("ablate", "FOLDER/run", "--json", "--spans", "single") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["task"] for each in found["ablations"]] == ["single"]
    assert list(found["left_out"]) == ["other"]
    # Naming such a task is an error, and so is a run without any task that can be ablated.
    assert bench.main("ablate", "FOLDER/run", "--task", "single", "other") == 2
    assert "task 'other': its bank has no modification" in capsys.readouterr().err
    shutil.rmtree(bench.folder / "data" / "single")
    assert bench.main("ablate", "FOLDER/run") == 2
    said = capsys.readouterr().err
    assert "no task of this run can be ablated:" in said
    assert "its validation rows are not available" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--task", "sngle"], "learned tasks: single"),
        (["--spans", "0-7"], "'0-7' is not a valid span of layers.*has layers 0 to 1"),
        (["--spans", "all", "0"], "spans: all cannot be combined with other spans; give it alone"),
        (["--spans", "0-1", "single"], "spans: single cannot be combined with other spans; give it alone"),
        (["--output", "FOLDER/a.txt"], "ends in '.txt'; give a name that ends in .json"),
        (["--html", "FOLDER/a.json"], "ends in '.json'; give a name that ends in .html"),
        (["--html", "FOLDER/none/a.html"], "there is no folder .*none; create it"),
        (["--output", "FOLDER/folder.json"], "this is a folder; write elsewhere"),
        (["--output", "FOLDER/run/a.json"], "inside the run folder, which ablate only reads"),
        (["--html", "FOLDER/run/banks/a.html"], "inside the run folder, which ablate only reads"),
    ],
)
def test_invalid_request_is_refused_before_evaluating(
    bench: Bench, capsys: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing should be measured")

    monkeypatch.setattr("continual_petl.engine.ablation.measure.evaluate", never)
    (bench.folder / "folder.json").mkdir()
    before = bench.learned()
    assert bench.main("ablate", "FOLDER/run", *words) == 2
    said = capsys.readouterr().err
    assert re.search(says, said), said
    assert bench.learned() == before


def test_run_without_learned_tasks_is_reported(bench: Bench, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(bench.folder / "run" / "stream.yaml", tmp_path / "run")
    assert bench.main("ablate", str(tmp_path / "run")) == 0
    assert "no task has been learned yet" in capsys.readouterr().out


def test_progress_bar_is_drawn_on_a_terminals_standard_error(
    bench: Bench, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "can_draw", lambda console: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert bench.main("ablate", "FOLDER/run", "--json") == 0
    told = capsys.readouterr()
    assert "4/4" in told.err
    assert json.loads(told.out)["left_out"] == {}

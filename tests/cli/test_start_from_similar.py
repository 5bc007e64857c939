"""``--start-from`` and ``continual-petl similar`` on the command line, and how a run reports where a bank started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run
from continual_petl.store.store import Store
from tests.cli.bench import Bench

TASK = """\
name: third
kind: classification
data: data/single
training: {epochs: 1}
"""


@pytest.fixture(scope="module")
def both(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a bench whose run holds both tasks, with routing statistics; tests take copies."""
    bench = Bench(tmp_path_factory.mktemp("both"), backbone_folder())
    (bench.folder / "stream.yaml").write_text(bench.stream.replace(", routing: off", ""))
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--quiet") == 0
    return bench


@pytest.fixture
def bench(both: Bench, tmp_path: Path) -> Bench:
    return both.copy(tmp_path / "bench")


def learned(bench: Bench, *words: str, text: str = TASK) -> int:
    (bench.folder / "task.yaml").write_text(text)
    return bench.main("learn", "FOLDER/run", "FOLDER/task.yaml", *words)


def test_learn_starts_from_the_best_bank(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert learned(bench, "--start-from", "auto") == 0
    said = capsys.readouterr().out
    store = Store(bench.folder / "run")
    start = store.certificate("third").start
    assert start is not None
    assert len(start.candidates) > 2
    assert "mean gain over a fresh bank after short fits (1 of" in said
    # The bank's settings are those of the run's stream.
    assert store.certificate("third").bank.modifications == store.certificate("single").bank.modifications
    assert bench.main("show", "FOLDER/run", "third") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "validation scores after" in shown
    assert start.taken.in_words in shown
    results = Run(bench.folder / "run").results
    assert results.gains == {"third": start.gain}
    assert results.to_json()["gains"] == results.gains


@pytest.mark.parametrize(("value", "parents"), [("single", ["single"]), ("single,other", ["single", "other"])])
def test_learn_starts_from_named_tasks(bench: Bench, value: str, parents: list[str]) -> None:
    assert learned(bench, "--start-from", value) == 0
    certificate = Store(bench.folder / "run").certificate("third")
    if len(parents) > 1:
        assert certificate.start is not None
        assert [parent.task for parent in certificate.start.taken.parents] == parents
    else:
        assert certificate.parent is not None
        assert certificate.parent.task == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("singel", "there is no task 'singel' (did you mean 'single'?)"),
        ("single,single", "--start-from: got ['single', 'single']; allowed: names of distinct tasks"),
        ("third", "a bank can only start from the bank of an earlier task"),
    ],
)
def test_unusable_start_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str], value: str, said: str) -> None:
    assert learned(bench, "--start-from", value) == 2
    assert said in capsys.readouterr().err
    assert not (bench.folder / "run" / "banks" / "third").exists()


@pytest.mark.slow
def test_stream_starts_every_bank_automatically(bench: Bench) -> None:
    folder = bench.folder / "fresh"
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", str(folder), "--start-from", "auto") == 0
    store = Store(folder)
    starts = {task: store.certificate(task).start for task in store.tasks}
    assert [0 if start is None else len(start.candidates) for start in starts.values()] == [1, 2]


def test_similar_ranks_learned_tasks(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capsys.readouterr()
    assert bench.main("similar", "FOLDER/run", "single", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["task"] for each in found} == set(Store(bench.folder / "run").tasks) - {"single"}
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nw1 w2\nw3\n")
    assert bench.main("similar", "FOLDER/run", str(rows), "--top", "1") == 0
    assert "and 1 more: --top 2 shows all" in capsys.readouterr().out
    assert list(Run(bench.folder / "run").similar(["w1 w2", "w3"])) == list(
        Run(bench.folder / "run").similar(["w3", "w1 w2"])
    )


def test_similar_needs_a_task_or_a_file(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main("similar", "FOLDER/run", "singel") == 2
    said = capsys.readouterr().err
    assert "singel: it is neither a learned task (did you mean 'single'?) nor a file with rows" in said

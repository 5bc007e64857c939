"""`run.generate` and `predict --stream` give the text of `predict` in pieces; other requests are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.errors import InputError
from tests.learned import LearnedRuns
from tests.small import small
from tests.streams_in_code import generating_stream, stream, task_of_kind

Folder = Callable[..., Path]
SAMPLED = {"max_new_tokens": 12, "min_new_tokens": 8, "do_sample": True, "temperature": 3.0, "stop": ["9 w"]}
TRAINING = {"epochs": 1, "batch_size": 16, "learning_rate": 0.02, "precision": "fp32"}
ROWS = ["w10 w20", "w3 w1 w41 w7", "w11", "w30 w31"]


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    """Return a run with two tasks that generate text and one that does not."""
    tasks = generating_stream(backbone_folder("llama"), SAMPLED, training=TRAINING, bank=small("lora"))
    return Run(learned_runs(tasks))


def test_pieces_join_to_the_prediction(run: Run) -> None:
    most = 0
    for row in ROWS:
        pieces = list(run.generate(row, "texts"))
        assert "".join(pieces) == run.predict(row, "texts").value
        assert all(pieces)
        most = max(most, len(pieces))
    assert most > 2


def test_seq2seq(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task_of_kind("seq2seq", "texts", generation=SAMPLED)]
    run = learn(stream(backbone_folder("t5"), tasks, training=TRAINING, bank=small("lora")), tmp_path / "run")
    assert ["".join(run.generate(row, "texts")) for row in ROWS] == [each.value for each in run.predict(ROWS, "texts")]


def test_closing_the_iterator_stops_the_generation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run.generate("w10 w20", "texts")
    next(first)
    first.close()  # type: ignore[attr-defined]
    assert all(thread.name != "generate" for thread in threading.enumerate())
    assert run.predict("w10 w20", "texts").value  # no bank is left attached


def test_error_while_generating_is_raised_where_the_pieces_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> None:
        raise RuntimeError("out of memory: 9 GiB")

    monkeypatch.setattr("continual_petl.predictor.generate.respond", fails)
    with pytest.raises(Exception, match="task 'texts': memory ran out in a batch of 1 row"):
        next(run.generate("w10 w20", "texts"))


@pytest.mark.parametrize(
    ("name", "row", "fragment"),
    [
        ("labels", "w1", "task 'labels' is a classification task, which generates no text.*causal-lm and seq2seq"),
        ("beams", "w1", "task 'beams' generates with 2 beams, and only at the end is it known which one"),
        ("none", "w1", "'none' is not learned"),
        ("texts", ["w1", "w2"], "row: got a list of 2 rows; give a single row"),
        ("texts", " ", "row 1 is ' ' .empty.; each row"),
    ],
)
def test_what_cannot_be_generated_in_pieces(run: Run, name: str, row: Any, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):  # raised by the call, not by the first piece
        run.generate(row, name)


def test_command_prints_the_prediction(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", str(run.store.folder), "--task", "texts", "w10 w20"]
    assert main(command) == 0
    whole = capsys.readouterr().out
    assert main([*command, "--stream"]) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--task", "texts", "w1", "--json"], "--stream, --json: both were given"),
        (["--task", "texts", "w1", "--output", "out.jsonl"], "--stream, --output: both were given"),
        (["--task", "texts", "--input", "rows.txt"], "--stream, --input: both were given"),
        (["w1"], "--stream: the task is not named"),
        (["--task", "texts"], "--stream: got 0 texts as arguments; give exactly one TEXT"),
        (["--task", "texts", "w1", "w2"], "--stream: got 2 texts"),
        (["--task", "labels", "w1"], "task 'labels' is a classification task, which generates no text"),
        (["--task", "beams", "w1"], "task 'beams' generates with 2 beams"),
    ],
)
def test_command_refuses(run: Run, capsys: pytest.CaptureFixture[str], options: list[str], fragment: str) -> None:
    assert main(["predict", str(run.store.folder), "--stream", *options]) == 2
    assert fragment in " ".join(capsys.readouterr().err.split())

"""Untrusted names and texts cannot control a terminal: they are escaped for people and unchanged for programs."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from continual_petl import learn
from continual_petl.callbacks import Progress
from continual_petl.cli.main import main
from continual_petl.cli.predictions_out import line_of
from continual_petl.errors import printable
from continual_petl.heads.predictions import Prediction
from continual_petl.report.growth import GrowthRow
from continual_petl.report.results import Results
from continual_petl.report.terminal import check_table, print_report
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.store import Store
from tests.callbacks.test_terminal import watched
from tests.cli.bench import Bench
from tests.report.made import rows_of
from tests.streams_in_code import stream, task

EVIL = "\x1b[2J\x1b]0;x\x07\r\u202e<b>[bold]"
SHOWN = r"\x1b[2J\x1b]0;x\x07\r\u202e<b>[bold]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (EVIL, SHOWN),
        ("a\nb\tc\0\x7f\x85\x9b", r"a\nb\tc\x00\x7f\x85\x9b"),
        ("\u2066\u200f\u2028\udcff", r"\u2066\u200f\u2028\udcff"),
        ("Zürich, 東京 \u3000 \u200d \U0001f600", "Zürich, 東京 \u3000 \u200d \U0001f600"),
    ],
)
def test_terminal_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_intended_line_feeds_are_kept() -> None:
    assert printable("a\nb\r", keep="\n") == "a\nb\\r"


def console() -> tuple[Console, io.StringIO]:
    buffer = io.StringIO()
    return Console(file=buffer, width=200), buffer


def check(task: str, problem: str) -> TaskCheck:
    return TaskCheck(
        task=task, findings=(Finding(message=problem),), how=EVIL, largest_difference=math.nan, seconds=0.0
    )


def test_tables_and_problems_are_escaped() -> None:
    shown, buffer = console()
    shown.print(check_table([check(EVIL, "")]))
    results = Results(
        tasks=(EVIL,), metrics=(EVIL,), splits=("test",), rows=rows_of(torch.ones(1, 1).double()), seconds={}
    )
    growth = GrowthRow(
        task=EVIL,
        trainable=1,
        active=1,
        share=0.1,
        stored=1,
        num_bytes=1,
        cumulative_bytes=1,
        routing_bytes=0,
        cumulative_routing_bytes=0,
        full_copies=1,
    )
    print_report(shown, results, [growth], [check("a", f"problem {EVIL}")])
    assert buffer.getvalue().count(SHOWN) == 2 + 3 + 1 + 1
    assert not set("\x1b\x07\r\u202e") & set(buffer.getvalue())


def test_notices_of_a_run_are_escaped() -> None:
    shown, buffer = console()
    Progress(shown).on_run_start(watched(EVIL))
    assert buffer.getvalue() == f"{SHOWN}\n"


@pytest.fixture(scope="module")
def evil_run(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose only task has two labels with terminal control sequences."""
    made = task("a", num_rows=16, training={"epochs": 1})
    for rows in made["data"].values():
        for row in rows:
            row["label"] = f"{EVIL}{row['label']}"
    folder = tmp_path_factory.mktemp("evil") / "run"
    backbone = backbone_folder()
    learn(stream(backbone, [made], backbone={"name": str(backbone)}), folder)
    return folder


def test_answers_are_escaped(evil_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["predict", str(evil_run), "--task", "a", "w10 w11"]
    capsys.readouterr()
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(SHOWN)
    assert shown.count("\t") == 1
    assert main([*argv, "--json"]) == 0
    plain = capsys.readouterr().out
    assert not set("\x1b\x07\r\u202e") & set(plain)
    assert json.loads(plain)[0]["answer"].startswith(EVIL)
    assert main([*argv, "--output", str(tmp_path / "x.jsonl")]) == 0
    written = (tmp_path / "x.jsonl").read_text("utf-8")
    assert json.loads(written)["answer"].startswith(EVIL)


@pytest.mark.parametrize("words", [["show", "RUN", "a"], ["list", "RUN"], ["diff", "RUN", "RUN"]])
def test_task_facts_are_escaped(evil_run: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([str(evil_run) if word == "RUN" else word for word in words]) == 0
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\r\u202e") & set(shown)
    assert (words[0] == "show") == (r"\x1b[2J\x1b]0;x\x07\r\u202e<b>[bold]no" in shown)


@pytest.mark.parametrize(
    ("kind", "value", "line"),
    [
        ("multilabel", [EVIL], f"{SHOWN} 0.7500"),
        ("token-classification", [EVIL, "O"], f"{SHOWN} O"),
        ("seq2seq", EVIL, SHOWN),
        ("regression", 0.10000000149011612, "0.1"),
        ("regression", -2.3456789016723633, "-2.34568"),
        ("regression", 12345678.0, "1.23457e+07"),
    ],
)
def test_answers_of_other_kinds_are_escaped(
    evil_run: Path, kind: str, value: list[str] | str | float, line: str
) -> None:
    certificate = Store(evil_run).certificate("a").model_copy(update={"kind": kind, "labels": (EVIL, "O")})
    shares = {EVIL: 0.75, "O": 0.25} if kind == "multilabel" else None
    assert line_of(Prediction(value=value, probabilities=shares), certificate) == line


def test_errors_are_escaped(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    path = bench.folder / "evil.yaml"
    path.write_text(json.dumps({"name": "a", "backbone": "minilm", "tasks": [], EVIL: 1}))
    assert main(["run", str(path)]) == 2
    shown = capsys.readouterr().err
    assert f"key {SHOWN}: unknown key" in shown
    assert not set("\x1b\x07\r\u202e") & set(shown)
    assert shown.count("\n") >= 3  # line breaks of the message itself are kept


def test_internal_errors_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("continual_petl.cli.commands.schema.execute", fail)
    assert main(["schema"]) == 3
    shown = capsys.readouterr().err
    assert f"RuntimeError: {SHOWN}" in shown
    assert "\x1b" not in shown

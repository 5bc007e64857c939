"""``report``: invalid combinations are reported before anything is drawn."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.commands.report import _wrong
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.report.wrong_predictions import WrongPredictions
from tests.cli.bench import Bench
from tests.store.tampering import change_tensors, edit_stream, nudge

RUN = "FOLDER/run"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([RUN, "--json", "--open"], "--json prints a report instead of writing one"),
        ([RUN, "--rows", "--serve"], "--rows evaluates on the test rows of one run, once: leave out --serve"),
        ([RUN, "FOLDER/other", "--rows"], "--rows evaluates on the test rows of one run"),
        ([RUN, "--beside", "FOLDER/a.jsonl", "--serve"], "--beside compares one run with other packages: leave out"),
        ([RUN, "--beside", "FOLDER/a.jsonl", "--rows"], "--beside compares one run with other packages: leave out"),
        ([RUN, "FOLDER/other", "--beside", "FOLDER/a.jsonl"], "--beside compares one run with other packages"),
        ([RUN, "--beside", "FOLDER/none.jsonl"], "none.jsonl: cannot be read"),
        ([RUN, "--beside", "FOLDER/none.jsonl", "--json"], "none.jsonl: cannot be read"),
        ([RUN, "--port", "80"], "--port: needs --serve"),
        ([RUN, "--serve", "--port", "99999"], "--port: got 99999; allowed: 1 to 65535"),
        ([RUN, "FOLDER/data/../run"], "run was given twice"),
        ([RUN, "--output", "FOLDER/stream.yaml"], "this is a file, but a report is a folder"),
        ([RUN, "--output", RUN], "this is a run or part of one"),
        ([RUN, "--output", "FOLDER/run/banks/single"], "this is a run or part of one"),
        (["FOLDER/data"], "no run here"),
    ],
)
def test_invalid_report_request_is_reported(bench: Bench, words: list[str], says: str, capsys: Any) -> None:
    before = bench.learned()
    assert bench.main("report", *words) == 2
    assert says in capsys.readouterr().err
    assert bench.learned() == before


def test_report_is_written_to_the_output_folder(bench: Bench, capsys: Any) -> None:
    assert bench.main("report", RUN, "--output", "FOLDER/page") == 0
    page = bench.folder / "page" / "index.html"
    assert f"report: {page}" in capsys.readouterr().out
    assert page.is_file()
    assert not (bench.folder / "run" / "report").exists()


@pytest.mark.parametrize("name", ["banks/single/history.json", "banks/single/bank.json", "ledger.jsonl"])
def test_damaged_run_is_reported_with_what_can_be_read(bench: Bench, name: str, capsys: Any) -> None:
    file = bench.folder / "run" / name
    file.write_bytes(file.read_bytes().replace(b"single", b"SINGLE"))
    assert bench.main("report", RUN) == 1
    shown = capsys.readouterr()
    assert "report: " in shown.out
    readable = name != "banks/single/bank.json"  # the only task of the run
    assert ("verified    1 of 1" in shown.out) == (name == "ledger.jsonl")
    assert ("What each task cost" in shown.out) == readable
    assert "no task has been learned yet" not in shown.out
    assert str(file.relative_to(bench.folder)) in shown.out.replace("\n", "")
    assert shown.err == ""


def test_comparison_is_printed_as_json(bench: Bench, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(bench.folder / "run", tmp_path / "again")
    assert bench.main("report", RUN, str(tmp_path / "again"), "--json") == 0
    assert [load["stream"] for load in json.loads(capsys.readouterr().out)] == ["files", "files"]


def test_results_of_other_packages_appear_beside_the_run(bench: Bench, capsys: Any) -> None:
    file = bench.folder / "others.jsonl"
    line = {"method": "EWC", "package": "avalanche-lib 0.6.0", "tasks": ["single"], "matrix": [[0.25]]}
    file.write_text(json.dumps(line))
    assert bench.main("report", RUN, "--beside", str(file)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    # In a narrow terminal, the words of a cell are on several lines.
    assert all(word in shown for word in ("EWC", "avalanche-lib", "verified", "0.2500"))
    assert "not verified by this package" in (bench.folder / "run/report/comparison/index.html").read_text()
    assert bench.main("report", RUN, "--beside", str(file), "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["beside"]
    assert (found["acc"], found["bwt"], found["verified"]) == (0.25, None, False)
    file.write_text(json.dumps(line | {"tasks": ["other"]}))
    assert bench.main("report", RUN, "--beside", str(file)) == 2
    assert "its tasks are other, those of the run single" in capsys.readouterr().err


def test_wrong_predictions_are_included_on_request(bench: Bench, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = bench.folder / "run/report/index.html"
    assert bench.main("report", RUN) == 0
    assert 'id="wrong-predictions"' not in page.read_text()
    assert bench.main("report", RUN, "--rows") == 0
    assert 'id="wrong-predictions"' in page.read_text()
    capsys.readouterr()
    assert bench.main("report", RUN, "--rows", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["wrong_predictions"]
    assert (found["task"], found["num_rows"], found["why_none"]) == ("single", 4, None)
    assert len(found["rows"]) == found["num_wrong"]

    def gone(*args: Any) -> None:
        raise InputError("the file is <gone>")

    monkeypatch.setattr(Session, "rows", gone)
    assert bench.main("report", RUN, "--rows") == 0
    assert "no rows are shown: its test rows are not available: the file is &lt;gone&gt;." in page.read_text()


def test_only_the_newest_of_many_tasks_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.report.wrong_predictions.MAX_TASKS", 1)
    run = Asked()
    assert [found.task for found in _wrong(run, ["one", "two"])] == ["two"]  # type: ignore[arg-type]


class Asked:
    """Stands in for a run."""

    def wrong_predictions(self, task: str) -> WrongPredictions:
        return WrongPredictions(task=task, split="test")


def test_occupied_port_is_reported(bench: Bench, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert bench.main("report", RUN, "--serve", "--port", port) == 2
    assert f"--port: {port} cannot be used" in capsys.readouterr().err


@pytest.mark.slow
def test_served_page_follows_changes_of_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run, page = bench.folder / "run", bench.folder / "run/report/index.html"
    bank = run / "banks/single"

    def damage() -> None:
        change_tensors(bank / "bank.safetensors", nudge("head.output.bias"))

    def restore() -> None:
        shutil.rmtree(bank, ignore_errors=True)
        shutil.copytree(bench.folder / "kept", bank)

    def rename() -> None:
        edit_stream(run, "name: files", "name: renamed")

    changes: list[tuple[Callable[[], object], str]] = [
        (damage, "This run does not match its certificates"),
        (restore, "1 certificate checked, nothing changed."),
        (lambda: (bank / "history.json").unlink(), "This run does not match its certificates"),
        (restore, "1 certificate checked, nothing changed."),
        (lambda: shutil.rmtree(bank), "but its bank is missing"),
        (restore, "1 certificate checked, nothing changed."),
        (
            lambda: (run / "backbone.json").rename(bench.folder / "pin"),
            "it records which backbone the run was learned on",
        ),
        (lambda: (bench.folder / "pin").rename(run / "backbone.json"), "1 certificate checked, nothing changed."),
        (rename, "<title>renamed</title>"),
        (lambda: bench.main("forget", RUN, "single", "--yes"), "No task has been learned yet"),
    ]

    class Looking:
        address = "http://127.0.0.1:1/"

        def __init__(
            self, folder: Path, port: int, again: Callable[[], None], *, on_failure: Callable[[str], None]
        ) -> None:
            self._again = again

        def run(self) -> None:
            for change, says in changes:
                before = page.stat().st_mtime_ns
                self._again()
                assert page.stat().st_mtime_ns == before, "nothing has changed, so the page is not written again"
                assert says not in page.read_text()
                change()
                self._again()
                assert says in page.read_text()

    shutil.copytree(bank, bench.folder / "kept")
    monkeypatch.setattr("continual_petl.report.serve.Server", Looking)
    assert bench.main("report", RUN, "--serve") == 0
    assert not bank.exists()


def test_code_of_the_user_is_allowed_with_and_without_rows(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main("report", RUN, "--remote-code", "--output", "FOLDER/page") == 0
    capsys.readouterr()
    assert bench.main("report", RUN, "--remote-code", "--rows", "--json") == 0
    assert "wrong_predictions" in json.loads(capsys.readouterr().out)

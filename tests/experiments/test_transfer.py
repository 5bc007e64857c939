"""The study of starting points: its page, and the whole command on made-up rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.made_up import make_up
from experiments.studies.tiny import make_tiny
from experiments.transfer import __main__ as command
from experiments.transfer import streams
from experiments.transfer.cases import cases_of
from experiments.transfer.ledger import HERE, Ledger
from experiments.transfer.page import page

COMMITTED = Ledger(HERE / "results" / "cases.ndjson")
SHORTER = Ledger(HERE / "results" / "short_fits.ndjson")


def test_page_is_that_of_the_committed_ledger() -> None:
    lines = COMMITTED.lines()
    assert lines
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(lines, SHORTER.lines())
    keys = [line.key for line in lines if "auto" not in line.found or "starts" in line.found]
    assert len(set(keys)) == len(keys)
    text = COMMITTED.file.read_text(encoding="utf-8")
    assert "/work" not in text
    assert "/tmp" not in text


def test_auto_takes_one_of_the_starts_that_were_learned() -> None:
    for case in cases_of(COMMITTED.lines()):
        assert case.taken in case.starts
        assert case.by_hand in case.starts.values()


def test_page_says_what_was_not_measured() -> None:
    assert "**Not measured yet: all rows.**" in page([])


def test_command_without_data_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse([])
    assert "--data is missing: give the folder that has one subfolder of rows per task" in capsys.readouterr().err


def test_tasks_with_fewer_rows_are_not_learned_again_and_every_draw_has_a_bank_for_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: dict[str, object] = {"learned": {"task": 0.5}, "at the end": {"task": 0.25}}
    measured: list[tuple[object, ...]] = []

    def case(stream: str, number: int, size: str, draw: int, *rest: object) -> dict[str, object]:
        measured.append((stream, number, size, draw))
        return {"starts": {"fresh": {"test": 0.5, "seconds": 1.0}}, "auto": {"taken": "fresh", "seconds": 1.0}}

    def sequential(stream: str, draw: int, *rest: object) -> dict[str, object]:
        measured.append((stream, draw))
        return scores

    monkeypatch.setattr(command, "case", case)
    monkeypatch.setattr(command, "sequential", sequential)
    monkeypatch.setattr(command, "page", lambda lines, shorter: "page")
    words = ["--data", str(tmp_path), "--runs", str(tmp_path), "--out", str(tmp_path), "--stream", "topics", "reviews"]
    assert command.main([*words, "--size", "200", "--draw", "2", "3", "--sequential"]) == 0
    cases = [("reviews", number, "200", draw) for draw in (2, 3) for number in (1, 2)]
    assert measured == [*cases, ("topics", 2), ("reviews", 2), ("topics", 3), ("reviews", 3)]
    del measured[:]
    assert command.main([*words, "--size", "4000", "--draw", "1"]) == 0
    assert measured == [("topics", 2, "4000", 1), ("reviews", 1, "4000", 1), ("reviews", 2, "4000", 1)]


def test_a_case_that_was_cut_off_while_it_was_written_is_measured_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "cases.ndjson")
    for draw in (1, 2):
        ledger.add("topics", "yelp", "20", draw, "pfeiffer", {"auto": {}})
    before = ledger.file.read_bytes()
    ledger.file.write_bytes(before[:-20])
    assert [line.draw for line in ledger.lines()] == [1]
    ledger.add("topics", "yelp", "20", 2, "pfeiffer", {"auto": {}})
    assert [line.draw for line in ledger.lines()] == [1, 2]
    assert ledger.file.read_bytes().startswith(before[: before.index(b"\n") + 1])


@pytest.mark.slow
def test_the_command_measures_made_up_rows_and_learns_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = make_up(tmp_path / "data"), tmp_path / "out"
    tree, tiny = streams.stream_of, str(make_tiny(tmp_path / "tiny", width=72))
    monkeypatch.setattr("experiments.transfer.measure.stream_of", lambda name, data, bank: tree(name, data, bank, tiny))
    words = ["--data", str(data), "--out", str(out), "--size", "20", "--draw", "1", "--stream", "reviews"]
    monkeypatch.setattr(streams, "BANKS", {"pfeiffer": {"preset": "pfeiffer", "bottleneck": 4}})
    monkeypatch.setattr(command, "BANKS", streams.BANKS)
    assert command.main(words) == 0
    ledger = Ledger(out / "results" / "cases.ndjson")
    (yelp, amazon) = cases_of(ledger.lines())
    assert list(yelp.starts) == ["fresh", "sst2"]
    assert list(amazon.starts) == ["fresh", "sst2", "yelp", "average", "fusion"]
    before = ledger.file.read_bytes()
    assert command.main(words) == 0
    assert ledger.file.read_bytes() == before
    assert (out / "README.md").read_text(encoding="utf-8") == page(ledger.lines())
    assert str(tmp_path) not in before.decode()
    assert command.main([*words, "--choose-again"]) == 0
    again = ledger.lines()[2:]
    assert [(line.task, list(line.found)) for line in again] == [("yelp", ["auto"]), ("amazon", ["auto"])]
    assert [case.starts for case in cases_of(ledger.lines())] == [yelp.starts, amazon.starts]
    assert [case.choosing for case in cases_of(ledger.lines())] == [
        line.found["auto"]["seconds"] - line.found["auto"]["sums"] for line in again
    ]

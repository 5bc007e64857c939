"""Logging never blocks, and dropped lines are counted."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl.serve.logs import LOGGER, JsonLines, NeverWaits


def _line(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"levelname": "INFO", "msg": text})


def _handler(descriptor: int, **more: Any) -> NeverWaits:
    handler = NeverWaits(descriptor, **more)
    handler.setFormatter(JsonLines())
    return handler


def test_all_lines_arrive_in_order_before_the_handler_closes(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        handler = _handler(file.fileno())
        for number in range(500):
            handler.emit(_line(f"line {number}"))
        handler.close()
    messages = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert messages == [f"line {number}" for number in range(500)]
    assert handler.num_dropped == 0


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    reader, writer = os.pipe()
    handler = _handler(writer, max_bytes=5_000)
    for _ in range(100):  # more than the pipe and the handler hold
        handler.emit(_line("x" * 4_000))
    assert 50 < handler.num_dropped < 100

    def end() -> None:
        handler.close()
        os.close(writer)

    ending = threading.Thread(target=end)
    ending.start()
    with os.fdopen(reader) as lines:
        messages = [json.loads(line)["message"] for line in lines]
    ending.join()
    notes = [message for message in messages if "x" not in message]
    assert len(messages) - len(notes) + handler.num_dropped == 100
    assert sum(int(note.split()[0]) for note in notes) == handler.num_dropped
    assert notes[-1].endswith(
        "lines of the log were dropped here: standard error was not read fast enough, or was full"
    )


def test_closed_standard_error_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    handler = _handler(writer)
    handler.emit(_line("a line"))
    handler.close()
    os.close(writer)
    assert not handler._thread.is_alive()


def test_lines_for_which_the_disk_has_no_room_are_counted_and_reported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    full, written = [True], bytearray()

    def write(descriptor: int, content: bytes) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.extend(content)
        return len(content)

    monkeypatch.setattr(os, "write", write)
    handler = _handler(-1)
    for number in range(1, 4):
        handler.emit(_line("lost"))
        while handler.num_dropped < number:
            time.sleep(0.001)
    full[0] = False
    handler.emit(_line("kept"))
    handler.close()
    messages = [json.loads(line)["message"] for line in written.decode().splitlines()]
    note = "lines of the log were dropped here: standard error was not read fast enough, or was full"
    assert messages == ["kept", f"3 {note}"]
    assert handler.num_dropped == 3


def test_disk_that_stays_full_does_not_keep_the_process_running() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    handler = _handler(descriptor)
    handler.emit(_line("lost"))
    handler.close()
    os.close(descriptor)
    assert not handler._thread.is_alive()
    assert handler.num_dropped == 1


def test_dropped_lines_are_counted_in_a_metric(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "continual_petl_dropped_log_lines_total"
    assert f"{name} 0.0" in client.get("/metrics").text
    handler = NeverWaits()
    monkeypatch.setattr(logging.getLogger(LOGGER), "handlers", [handler])
    handler.num_dropped = 3
    assert f"{name} 3.0" in client.get("/metrics").text
    handler.close()

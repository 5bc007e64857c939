"""``serve`` as a process: it starts, answers, and stops without losing a request."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from continual_petl import Run
from continual_petl.cli.main import main
from continual_petl.serve import Client
from continual_petl.serve.server import _listener
from continual_petl.serve.settings import ServeSettings
from tests.processes import Forked


def started(words: list[str], *, fresh: bool) -> subprocess.Popen[str] | Forked:
    """Start a command in a fresh interpreter, as users do, or in a process that is forked from this one."""
    if not fresh and hasattr(os, "fork"):
        return Forked(partial(main, words))
    command = [sys.executable, "-m", "continual_petl", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(folder: Path, *options: str, fresh: bool = False) -> Iterator[tuple[subprocess.Popen[str] | Forked, str]]:
    """Start the command, and yield its process and its address."""
    with started(["serve", str(folder), "--port", "0", *options], fresh=fresh) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " at http://127.0.0.1:" in line, line + (process.stderr.read() if process.stderr else "")
            yield process, line.split(" at ")[1].split()[0]
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_answers_accepted_requests(learned: Path, run: Run, number: int) -> None:
    texts = [f"w{one} w{two} w1" for one in range(10, 20) for two in range(20, 60)]
    wanted = [answer.value for answer in run.predict(texts, "first")]
    fresh = number == signal.SIGTERM
    with served(learned, "--window-ms", "500", fresh=fresh) as (process, address), Client(address) as client:
        assert client.predict(texts[0], "first")["answer"] == wanted[0]
        found: list[str] = []
        asking = threading.Thread(
            target=lambda: found.extend(record["answer"] for record in client.predict(texts, "first"))
        )
        asking.start()
        with Client(address) as watching:
            while asking.is_alive() and 'waiting_rows{queue="labels"} 0.0' in watching.get("/metrics").text:
                pass
        process.send_signal(number)
        asking.join(60)
        assert found == wanted
        assert process.wait(60) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]  # every line of the log is JSON
    assert any(line.get("path") == "/v1/predict" and line["rows"] == len(texts) for line in lines)


@pytest.mark.slow
def test_unfinished_request_does_not_keep_the_process_running(learned: Path) -> None:
    with served(learned, "--timeout", "0.5", fresh=True) as (process, address):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            with Client(address) as client:
                assert client.predict("w1 w2", "first")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.slow
def test_unread_log_does_not_block_requests(learned: Path) -> None:
    with served(learned) as (process, address), Client(address) as client:
        for _ in range(2_000):  # a pipe holds only a few hundred lines of the log
            assert client.get("/health/live").json() == {"live": True}
        assert client.predict("w1 w2", "first")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "code", "fragment"),
    [
        (["--host", "0.0.0.0"], 2, "continual-petl: --host: 0.0.0.0 can be reached from other machines"),
        (["--batch-rows", "0"], 2, "continual-petl: --batch-rows: got 0"),
        (["--timeout", "0"], 2, "continual-petl: --timeout: got 0"),
        (["--token-file", "none"], 2, "token_file: none cannot be read"),
        (["--replicas", "2"], 2, "only the ray engine supports replicas"),
    ],
)
def test_bad_options(
    learned: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, fragment: str
) -> None:
    assert main(["serve", str(learned), *options]) == code
    assert fragment in capsys.readouterr().err


def test_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_port_in_use(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(learned), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6 and IPv4 on one socket")
def test_all_addresses_of_ipv6_take_ipv4_too() -> None:
    with (
        _listener(ServeSettings(host="::", port=0, allowed_hosts=("x",))) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5),
    ):
        pass


def test_missing_extra_is_named(
    learned: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi_offline", None)
    assert main(["serve", str(learned)]) == 2
    assert "pip install 'continual-petl[serve]'" in capsys.readouterr().err

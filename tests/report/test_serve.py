"""The report server listens only on this machine, serves only the report, and copes with a run that is being written."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from continual_petl.errors import InputError, StoreError
from continual_petl.report.serve import Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a report, which also holds files that are not part of the report."""
    report = tmp_path / "report"
    (report / "tasks").mkdir(parents=True)
    (report / "index.html").write_text("the page")
    (report / "stamp").write_text("0123")
    (report / "tasks/000001.js").write_text("details")
    (report / "tasks/000002.js").symlink_to(tmp_path / "secret")
    for place in (tmp_path, report, report / "tasks"):
        (place / "secret").write_text("none of your business")
    return report


@contextmanager
def served(folder: Path, again: Callable[[], None] = lambda: None, told: list[str] | None = None) -> Iterator[Server]:
    said: list[str] = [] if told is None else told
    server = Server(folder, 0, again, on_failure=said.append, seconds=0.01)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def answer(server: Server, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    port = int(server.address.rstrip("/").rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", (host or "127.0.0.1:PORT").replace("PORT", str(port)))
    connection.endheaders()
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    return response.status, text


def test_only_report_files_are_served(folder: Path) -> None:
    with served(folder) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert answer(server, "/") == (200, "the page")
        assert answer(server, "/index.html") == (200, "the page")
        assert answer(server, "/stamp") == (200, "0123")
        assert answer(server, "/tasks/000001.js?0123abc") == (200, "details")
        assert answer(server, "/stamp", method="HEAD") == (200, "")
        for path in (
            "/secret", "/tasks/secret", "/tasks/", "/tasks", "/../secret", "/tasks/../../secret", "/%2e%2e/secret",
            "/..%2fsecret", "//etc/passwd", "/tasks/000002.js", "/tasks/000001.js/../../../secret", "/index.html/", "*",
        ):  # fmt: skip
            status, text = answer(server, path)
            assert status == 404, path
            assert "business" not in text
        assert answer(server, "/", method="POST")[0] == 501


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:PORT"]
)
def test_requests_with_another_host_name_are_refused(folder: Path, host: str) -> None:
    with served(folder) as server:
        status, text = answer(server, "/", host)
        assert status == 403
        assert "the page" not in text
        assert answer(server, "/", "localhost:PORT")[0] == 200


def test_occupied_port_error_suggests_a_free_one(folder: Path) -> None:
    with served(folder) as server:
        port = int(server.address.rstrip("/").rsplit(":", 1)[1])
        with pytest.raises(InputError, match=rf"--port: {port} cannot be used \(.+\); \d+ is free, and 0 means any"):
            Server(folder, port, lambda: None, on_failure=print)
    with pytest.raises(InputError, match="--port: 70000 cannot be used"):
        Server(folder, 70_000, lambda: None, on_failure=print)


def test_temporarily_unreadable_run_is_reported_once_and_retried(folder: Path) -> None:
    tries, told, enough = list[int](), list[str](), threading.Event()

    def again() -> None:
        tries.append(len(tries))
        if len(tries) in (1, 2, 3):
            raise StoreError("half a line")
        if len(tries) == 5:
            raise StoreError("half a line")
        if len(tries) > 6:
            enough.set()

    with served(folder, again, told) as server:
        assert enough.wait(30)
        assert answer(server, "/") == (200, "the page")
    assert told == ["the page was not updated: half a line"] * 2, "must be reported once per series of failures"


def test_other_errors_stop_the_server_and_close_the_port(folder: Path) -> None:
    def again() -> None:
        raise KeyboardInterrupt

    server = Server(folder, 0, again, on_failure=print, seconds=0.01)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    with pytest.raises(ConnectionError):
        answer(server, "/")

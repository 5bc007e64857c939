"""If a backbone does not exist, the Hub is queried at most once, and a similar name is suggested."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from continual_petl.backbones.available import check_available, similar_name
from continual_petl.backbones.backbone import load_backbone
from continual_petl.cli.main import main
from continual_petl.errors import InputError


class Hub(ThreadingHTTPServer):
    """A local Hub that records its requests."""

    def __init__(self) -> None:
        self.status, self.code = 404, "RepoNotFound"
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        if not self.path.startswith("/api/agent"):  # huggingface_hub sends this request by itself
            self.server.asked.append(f"{self.command} {self.path}")
        self.send_response(self.server.status)
        self.send_header("X-Error-Code", self.server.code)
        self.send_header("Content-Length", "0")
        self.send_header("ETag", '"etag"')
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def _connect(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _connect(monkeypatch, server.server_address[1])
        yield server
        server.shutdown()


ASKED = ["HEAD /minlm/resolve/main/config.json"]


@pytest.mark.parametrize("words", [["--dry-run"], ["--quiet"]])
@pytest.mark.parametrize(
    ("status", "says"), [(404, "the Hub has no such model"), (503, "cannot be reached (HfHubHTTPError: ")]
)
def test_hub_is_queried_once_per_stream(
    hub: Hub, tmp_path: Path, words: list[str], status: int, says: str, capsys: Any
) -> None:
    hub.status, hub.code = status, "RepoNotFound" if status == 404 else ""
    row = "{text: some words, label: a}"
    tasks = "".join(
        f"  - {{name: {name}, kind: classification, data: {{train: [{row}]}}}}\n" for name in ("one", "two", "three")
    )
    (tmp_path / "s.yaml").write_text(f"name: s\nbackbone: {{name: minlm}}\ntasks:\n{tasks}")
    assert main(["run", str(tmp_path / "s.yaml"), "--run-dir", str(tmp_path / "run"), *words]) == 2
    told = capsys.readouterr().err
    assert "backbone 'minlm' cannot be loaded (did you mean 'minilm'?): There is no folder of this name, and" in told
    assert says in told
    assert hub.asked == ASKED


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("RevisionNotFound", "the model on the Hub has no revision 'v1'"),
        ("EntryNotFound", "the repository on the Hub has no config.json"),
        ("GatedRepo", "the model on the Hub is gated"),
    ],
)
def test_hub_errors_are_reported(hub: Hub, code: str, says: str) -> None:
    hub.code, hub.status = code, 403 if code == "GatedRepo" else 404
    with pytest.raises(InputError, match=says):
        load_backbone("some-user/some-model", revision="v1")
    assert hub.asked == ["HEAD /some-user/some-model/resolve/v1/config.json"]
    hub.asked.clear()
    with pytest.raises(InputError, match="it is not a valid model id on the Hub either"):
        check_available("a/b/c", None)
    assert not hub.asked


def test_existing_hub_model_is_left_to_the_loader(hub: Hub) -> None:
    hub.status, hub.code = 200, ""
    check_available("minlm", None)
    assert hub.asked == ASKED


def test_failing_network_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    _connect(monkeypatch, port)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("tried again"))
    with pytest.raises(InputError, match=rf"the Hub \(http://127.0.0.1:{port}\) cannot be reached \(ConnectError"):
        check_available("minlm", None)


def test_offline_mode_does_not_query_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"access to the Hub is disabled \(HF_HUB_OFFLINE\)"):
        load_backbone("minlm")
    assert not hub.asked


def test_local_model_folders_are_suggested(
    backbone_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-bert").symlink_to(backbone_folder())
    Path("my-berd").mkdir()  # contains no model
    assert similar_name("my-bret") == "my-bert"
    assert similar_name("MiniLM") == similar_name("minlm") == "minilm"
    assert similar_name("roberta-large") is None
    check_available("my-bert", None)

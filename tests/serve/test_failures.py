"""The endpoint and the machine's failures: kills, a full disk, a folder that cannot be written, a clock that is put back."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from continual_petl import Run, StoreError, learn
from continual_petl.cli.main import main
from continual_petl.serve import Client, ServeSettings, make_app
from continual_petl.store import store as store_module
from continual_petl.store.store import Store
from tests.processes import Forked
from tests.serve.conftest import TASKS, TRAINING, Open
from tests.serve.test_server import served
from tests.small import small
from tests.streams_in_code import stream, task

TEXT = "w1 w20 w30"
NAMES = ["first", "second", "many"]


def _learn(folder: Path, backbone: Path) -> int:
    learn(stream(backbone, [*TASKS, task("later", num_rows=24)], training=TRAINING), folder, progress=False)
    return 0


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.3, 0.6, 0.9])
def test_kill_while_it_answers_and_a_task_joins(own: Path, backbone_folder: Callable[..., Path], moment: float) -> None:
    """Both processes are killed; afterwards, the endpoint starts again on the same port, and the task can be learned."""
    backbone, port = backbone_folder(), _free_port()
    wanted = [answer.value for answer in Run(own).predict([TEXT] * 3, NAMES)]
    num_answered = 0

    def ask(address: str) -> None:
        nonlocal num_answered
        with Client(address) as client, suppress(httpx2.TransportError):
            while True:
                assert [record["answer"] for record in client.predict([TEXT] * 3, NAMES)] == wanted
                num_answered += 1

    options = ["--port", str(port)]
    with served(own, *options) as (process, address), Forked(partial(_learn, own, backbone)) as learning:
        asking = [threading.Thread(target=ask, args=(address,)) for _ in range(3)]
        for thread in asking:
            thread.start()
        while num_answered < 10 or not list(own.rglob("*later*")):
            assert learning.poll() in (None, 0)
            time.sleep(0.01)
        time.sleep(moment)
        process.kill()
        learning.kill()
        for thread in asking:
            thread.join(60)
    with served(own, *options) as (_, address), Client(address) as client:
        assert [record["answer"] for record in client.predict([TEXT] * 3, NAMES)] == wanted
        _learn(own, backbone)
        later = Run(own).predict(TEXT, "later").value
        while "later" not in [entry["task"] for entry in client.tasks()]:
            time.sleep(0.05)
        assert client.predict(TEXT, "later")["answer"] == later


def _on_a_full_disk(words: list[str]) -> int:
    """Run a command that can write nothing: neither to files nor to its standard error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    return main(words)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk(own: Path, backbone_folder: Callable[..., Path]) -> None:
    with Forked(partial(_on_a_full_disk, ["serve", str(own), "--port", "0"])) as process:
        with Client(process.stdout.readline().split(" at ")[1].split()[0]) as client:
            assert [record["task"] for record in client.predict([TEXT] * 3, NAMES)] == NAMES
            assert len(client.tasks()) == len(TASKS)
            _learn(own, backbone_folder())
            while "later" not in [entry["task"] for entry in client.tasks()]:
                time.sleep(0.05)
            assert client.predict(TEXT, "later")["answer"] == Run(own).predict(TEXT, "later").value
            lost = [
                line for line in client.get("/metrics").text.splitlines() if line.startswith("continual_petl_dropped")
            ]
            assert float(lost[0].split()[1]) > 0
        process.send_signal(15)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_folder_that_cannot_be_written(own: Path) -> None:
    before = sorted(path.relative_to(own) for path in own.rglob("*"))
    folders = [own, *(path for path in own.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    command = [sys.executable, "-m", "continual_petl", "serve", str(own), "--port", "0"]
    if os.geteuid() == 0:  # the superuser may write everywhere, unless this capability is dropped
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv")
        command = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert process.stderr is not None
            assert " at http://" in line, process.stderr.read()
            with Client(line.split(" at ")[1].split()[0]) as client:
                assert [record["task"] for record in client.predict([TEXT] * 3, NAMES)] == NAMES
                assert len(client.tasks()) == len(TASKS)
                assert client.task("first")["task"] == "first"
            process.terminate()
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0
            assert '"level": "error"' not in log
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(path.relative_to(own) for path in own.rglob("*")) == before


def test_clock_that_is_put_back(own: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, while the endpoint runs: times of day are only shown, never compared with each other."""
    client = opened(own, window_ms=50)
    body = {"inputs": [TEXT], "task": "first"}
    assert client.post("/v1/predict", json=body).status_code == 200
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    for path in (own / "banks").iterdir():
        os.utime(path)
    assert client.post("/v1/predict", json=body).status_code == 200
    assert client.get("/health/ready").status_code == 200


def test_missing_replacement_is_reported_at_once_though_the_clock_was_put_back(
    own: Path, backbone_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [task("first", num_rows=24, bank=small("pfeiffer")), *TASKS[1:]]
    learn(stream(backbone_folder(), new, training=TRAINING), own, replace=["first"], progress=False)
    Store(own).bank_folder("first").rename(own / "first")
    now = time.time
    slept: list[float] = []
    fake = SimpleNamespace(time=lambda: now() - 3600, monotonic=time.monotonic, sleep=slept.append)
    monkeypatch.setattr(store_module, "time", fake)
    with pytest.raises(StoreError, match="first"):
        make_app(own, ServeSettings())
    assert slept == []

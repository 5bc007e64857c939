"""Changes that other processes make to the run folder while it is served."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl import InputError, Run, StoreError, forget, learn
from continual_petl.serve import ServeSettings, make_app
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.request_rows import Asked
from continual_petl.serve.served_run import REFUSED_S, ServedRun
from continual_petl.store.model_cache import ModelCache
from tests.serve.conftest import TASKS, TRAINING, Open, until
from tests.small import small
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def _ask(client: TestClient, name: str) -> tuple[int, str]:
    response = client.post("/v1/predict", json={"inputs": ["w1 w20 w30"], "task": name})
    found = response.json()
    return response.status_code, found["error"]["code"] if "error" in found else found["predictions"][0]["answer"]


def test_new_task_is_served_without_a_restart(own: Path, opened: Open, backbone_folder: Folder) -> None:
    client = opened(own)
    assert _ask(client, "later") == (404, "unknown_task")
    learn(stream(backbone_folder(), [*TASKS, task("later", num_rows=24)], training=TRAINING), own)
    until(lambda: _ask(client, "later")[0] == 200)
    assert _ask(client, "later")[1] == Run(own).predict("w1 w20 w30", "later").value
    assert [entry["task"] for entry in client.get("/v1/tasks").json()["tasks"]][-1] == "later"


def test_forgotten_task_is_gone(own: Path, opened: Open) -> None:
    client = opened(own)
    assert _ask(client, "second")[0] == 200
    forget(own, "second")
    until(lambda: _ask(client, "second") == (410, "forgotten"))
    response = client.get("/v1/tasks/second")
    assert response.status_code == 410
    assert "was forgotten on purpose" in response.json()["error"]["message"]
    assert _ask(client, "first")[0] == 200
    response = client.post("/v1/predict", json={"inputs": ["w1"], "reject": "never"})
    assert response.json()["predictions"][0]["task"] != "second"


def test_folder_is_reread_in_another_thread(own: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a while with many tasks."""
    looked: list[threading.Thread] = []
    look = Catalog.refresh

    def watched(catalog: Catalog) -> bool:
        looked.append(threading.current_thread())
        return look(catalog)

    monkeypatch.setattr(Catalog, "refresh", watched)
    client = opened(own)
    assert client.portal is not None
    loop = client.portal.call(threading.current_thread)
    looked.clear()
    forget(own, "second")
    until(lambda: client.get("/v1/tasks/second").status_code == 410)
    assert "second" not in [each["task"] for each in client.get("/v1/tasks").json()["tasks"]]
    assert looked
    assert loop not in looked


def test_forgotten_task_gives_no_predictions_before_the_folder_is_reread(own: Path) -> None:
    with TestClient(make_app(own, ServeSettings(watch_s=1000)), base_url="http://127.0.0.1") as client:
        assert _ask(client, "second")[0] == 200
        forget(own, "second")
        assert _ask(client, "second") == (410, "forgotten")


def test_task_that_is_forgotten_while_it_predicts(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ServedRun(own, ServeSettings(), generates=False)
    jobs = [Asked(["w1 w20"], [name], None, [1]) for name in ("first", "second")]
    assert all(isinstance(found, list) for found in run.answer(jobs))
    load = ModelCache.backbone_of

    def forgotten(models: ModelCache, task: str) -> Any:
        if "second" in Run(own).store.tasks:
            forget(own, "second")
        return load(models, task)

    monkeypatch.setattr(ModelCache, "backbone_of", forgotten)
    first, second = run.answer(jobs)
    assert isinstance(first, list)
    assert isinstance(second, Problem)
    assert second.status == 410
    assert run.num_held[0] == 1, "a forgotten bank must not stay in memory"


def test_rereading_the_folder_keeps_certificates(
    own: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(own)
    before = {name: catalog.certificate(name) for name in catalog.seals}
    learn(stream(backbone_folder(), [*TASKS, task("later", num_rows=24)], training=TRAINING), own)
    assert catalog.refresh()
    monkeypatch.setattr("continual_petl.store.folder_reader.read_certificate", None)
    assert all(catalog.certificate(name) is certificate for name, certificate in before.items())


class Replaced(dict[str, Any]):
    """A mapping that another thread replaces by an empty one between two looks at it."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default) if self.looks == 1 else default

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)


def test_refresh_in_another_thread_never_takes_what_is_being_looked_up(own: Path) -> None:
    catalog = Catalog(own)
    known, taken = catalog.task("first"), catalog.taken()
    catalog._taken, catalog._known = None, Replaced(catalog._known)
    assert catalog.task("first") is known
    assert catalog.taken() == taken


def test_replaced_task_answers_with_its_new_bank(own: Path, opened: Open, backbone_folder: Folder) -> None:
    client = opened(own)
    before = client.get("/v1/tasks/first").json()["seal"]
    assert _ask(client, "first")[0] == 200
    new = [task("first", num_rows=24, bank=small("pfeiffer")), *TASKS[1:]]
    learn(stream(backbone_folder(), new, training=TRAINING), own, replace=["first"])
    until(lambda: client.get("/v1/tasks/first").json()["seal"] != before)
    found = client.post("/v1/predict", json={"inputs": ["w1 w20 w30"], "task": "first"}).json()["predictions"][0]
    now = Run(own).predict("w1 w20 w30", "first")
    assert found["probabilities"] == pytest.approx(dict(now.probabilities or {}), abs=1e-6)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_changed_bank_gives_no_predictions(own: Path, opened: Open) -> None:
    _flip(own / "banks" / "second" / "bank.safetensors")
    client = opened(own)
    assert _ask(client, "second") == (503, "not_verified")
    assert _ask(client, "first")[0] == 200


def test_task_that_failed_verification_is_not_verified_for_every_request(
    own: Path, opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = own / "banks" / "second" / "bank.safetensors"
    _flip(bank)
    client = opened(own)
    with caplog.at_level("ERROR", "continual_petl.serve"):
        assert [_ask(client, "second")[0] for _ in range(3)] == [503] * 3
    assert sum("is not served" in record.message for record in caplog.records) == 1
    _flip(bank)
    assert _ask(client, "second") == (503, "not_verified")
    later = time.monotonic() + REFUSED_S
    monkeypatch.setattr("continual_petl.serve.served_run.time", SimpleNamespace(monotonic=lambda: later))
    assert _ask(client, "second")[0] == 200


def test_changed_probe_gives_no_predictions(own: Path, opened: Open) -> None:
    _flip(own / "banks" / "second" / "probe.safetensors")
    assert _ask(opened(own), "second") == (503, "not_verified")


def test_broken_chain_is_not_served(own: Path) -> None:
    path = own / "banks" / "second" / "bank.json"
    certificate = json.loads(path.read_text())
    certificate["metric"] = "f1"
    path.write_text(json.dumps(certificate))
    with pytest.raises(StoreError):
        make_app(own, ServeSettings())


def test_run_that_breaks_while_it_is_served_is_not_ready(own: Path, opened: Open) -> None:
    client = opened(own)
    assert client.get("/health/ready").json() == {"ready": True, "tasks": 5}
    (own / "banks" / "second").rename(own / "second")
    until(lambda: client.get("/health/ready").status_code == 503)
    assert _ask(client, "first") == (503, "not_ready")
    assert client.get("/health/live").status_code == 200
    (own / "second").rename(own / "banks" / "second")
    until(lambda: client.get("/health/ready").status_code == 200)
    assert _ask(client, "second")[0] == 200


def test_folder_that_goes_away_is_not_an_empty_run(own: Path, opened: Open) -> None:
    """For example, because its disk is no longer mounted."""
    client = opened(own)
    assert _ask(client, "first")[0] == 200
    own.rename(own.with_name("away"))
    until(lambda: client.get("/health/ready").status_code == 503)
    assert _ask(client, "first") == (503, "not_ready")
    own.with_name("away").rename(own)
    until(lambda: _ask(client, "first")[0] == 200)


def test_run_without_routing_asks_for_the_task(backbone_folder: Folder, tmp_path: Path, opened: Open) -> None:
    learn(stream(backbone_folder(), [task("one", num_rows=24, routing="off")], training=TRAINING), tmp_path / "run")
    client = opened(tmp_path / "run")
    for _ in range(2):  # with one task, then without any
        error = client.post("/v1/predict", json={"inputs": ["w1"]}).json()["error"]
        assert error["code"] == "no_routing"
        assert "name the task of every row" in error["message"]
        assert str(tmp_path) not in error["message"]
        forget(tmp_path / "run", "one") if "one" in Run(tmp_path / "run").store.tasks else None
        until(lambda: _ask(client, "one")[0] == 410)


def test_backbone_that_cannot_be_loaded_is_named_in_the_log_only(
    own: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = opened(own)
    message = "backbone '/models/minilm': no such folder"

    def fail(models: ModelCache, task: str) -> None:
        raise InputError(message)

    monkeypatch.setattr(ModelCache, "backbone_of", fail)
    for body in ({"inputs": ["w1"], "task": "first"}, {"inputs": ["w1"]}):
        response = client.post("/v1/predict", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_backbone")
        assert "/models" not in response.text
    assert message in caplog.text


def test_certificate_that_cannot_be_read_is_named_in_the_log_only(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = "/srv/run/banks/first/bank.json cannot be read"

    def fail(catalog: Catalog, task: str) -> None:
        raise StoreError(message)

    monkeypatch.setattr(Catalog, "task", fail)
    response = client.get("/v1/tasks/first")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unreadable")
    assert response.headers["retry-after"] == "1"
    assert "/srv" not in response.text
    assert message in caplog.text
    assert client.get("/v1/tasks").status_code == 503


def test_shared_bank_predicts_only_if_its_newest_body_is_verified(
    backbone_folder: Folder, tmp_path: Path, opened: Open
) -> None:
    tasks = [task("one", num_rows=24), task("two", num_rows=24)]
    shared = {"preset": "houlsby", "bottleneck": 4, "scope": "shared"}
    learn(stream(backbone_folder(), tasks, training=TRAINING, bank=shared), tmp_path / "run")
    _flip(tmp_path / "run" / "banks" / "two" / "probe.safetensors")
    assert _ask(opened(tmp_path / "run"), "one") == (503, "not_verified")


def test_banks_in_memory_stay_within_the_limit(own: Path, opened: Open) -> None:
    client = opened(own, resident_bytes=1)
    for name in ("first", "second", "first", "many"):
        assert _ask(client, name)[0] == 200
    text = client.get("/metrics").text
    assert "continual_petl_banks_in_memory 1.0" in text
    assert 'continual_petl_rows_total{queue="labels"} 4.0' in text
    assert 'continual_petl_requests_total{path="/v1/predict",status="200"} 4.0' in text
    assert "continual_petl_tasks 5.0" in text

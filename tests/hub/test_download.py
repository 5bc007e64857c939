"""Runs on the Hub are downloaded within limits, verified before they predict, and never written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StoreError, SweepSpec, TaskStream, forget, learn, reevaluate
from continual_petl.hub import uploaded_files as hub_files
from continual_petl.hub.address import Address
from continual_petl.sweep import sweep
from tests.hub.conftest import Folder, learn_tasks
from tests.hub.local_hub import LocalHub
from tests.streams_in_code import stream, task

ROW = "w1 w20 w30"


@pytest.fixture
def pushed(hub: LocalHub, folder: Path) -> Run:
    """Return a run that is on the Hub as user/run."""
    run = Run(folder)
    run.push("user/run")
    hub.asked.clear()
    return run


def test_downloaded_run_answers_like_the_one_that_was_pushed(hub: LocalHub, pushed: Run) -> None:
    run = Run.from_hub("user/run")
    assert run.store.tasks == ["one", "two"]
    assert run.predict(ROW, task="one") == pushed.predict(ROW, task="one")
    assert all(check.ok for check in run.verify())
    assert not [path for path in run.store.folder.rglob("*") if path.is_symlink()]
    assert not (run.store.folder / "README.md").exists()


def test_commit_is_downloaded_once(hub: LocalHub, pushed: Run, folder: Path) -> None:
    commit = hub.repos["user/run"].branches["main"][-1]
    first = Run.from_hub("user/run").store.folder
    assert len(hub.sent("GET", "/resolve/")) == 13
    hub.asked.clear()
    assert Run(f"hf://user/run@{commit}").store.folder == Run("hf://user/run").store.folder == first
    assert not hub.sent("GET", "/resolve/")
    forget(folder, "one")
    pushed.push("user/run")
    hub.asked.clear()
    assert Run("hf://user/run").store.tasks == ["two"]
    assert Run(f"hf://user/run@{commit}").store.tasks == ["one", "two"]
    assert len(hub.sent("GET", "/resolve/")) == 2  # stream and ledger; the rest is in the cache


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("banks/one/bank.safetensors", r"task 'one': hf://user/run/banks/one/bank.safetensors: "),
        ("banks/one/probe.safetensors", r"task 'one': .*probe.safetensors"),
        ("banks/two/bank.json", r"bank.json: "),
        ("stream.yaml", r"hf://user/run/stream.yaml: it has changed since it was written"),
        ("ledger.jsonl", r"ledger.jsonl"),
    ],
)
def test_changed_file_is_refused(hub: LocalHub, pushed: Run, name: str, says: str) -> None:
    content = hub.files("user/run")[name]
    middle = (
        len(content) - 3 if name.endswith(".safetensors") else content.rindex(b"e") if name == "stream.yaml" else 100
    )
    hub.change("user/run", {name: content[:middle] + b"7" + content[middle + 1 :]})
    for _ in range(2):  # the first attempt leaves nothing behind that the second would trust
        with pytest.raises(
            StoreError, match=rf"^hf://user/run: it does not match its certificates, so it is not used. .*{says}"
        ):
            Run.from_hub("user/run")


def test_missing_bank_is_refused(hub: LocalHub, pushed: Run) -> None:
    hub.change("user/run", {name: None for name in hub.files("user/run") if name.startswith("banks/one/")})
    with pytest.raises(StoreError, match="does not match its certificates, so it is not used"):
        Run("hf://user/run")


def test_probes_are_replayed_before_anything_is_predicted(
    hub: LocalHub, backbone_folder: Folder, tmp_path: Path
) -> None:
    """Every digest matches, but the backbone has been deleted, which only a replay notices."""
    import shutil

    backbone = shutil.copytree(backbone_folder(), tmp_path / "backbone")
    learn(stream(backbone, [task("one")], training={"epochs": 1}), tmp_path / "own").push("user/own")
    shutil.rmtree(backbone)
    run = Run("hf://user/own")  # checking digests needs no backbone
    assert run.results.tasks == ("one",)
    with pytest.raises(StoreError, match=r"^hf://user/own: it does not match its certificates.*cannot be loaded"):
        run.predict(ROW, task="one")
    with pytest.raises(StoreError, match=r"^hf://user/own: it does not match its certificates"):
        Run.from_hub("user/own")


def test_verified_run_is_not_verified_again(hub: LocalHub, pushed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.from_hub("user/run")
    monkeypatch.setattr(Run, "verify", lambda *_, **__: pytest.fail("verified again"))
    run.predict(ROW, task="one")


def test_code_of_a_backbone_is_not_executed_unasked(hub: LocalHub, pushed: Run, folder: Path) -> None:
    from continual_petl.store.folder.stream_seal import sealed_stream

    text = hub.files("user/run")["stream.yaml"].decode().rpartition("# SHA-256")[0]
    text = text.replace("remote_code: false", "remote_code: true")
    hub.change("user/run", {"stream.yaml": sealed_stream(text)})
    with pytest.raises(InputError, match="remote"):
        Run.from_hub("user/run")


def test_files_that_no_run_has_are_refused(hub: LocalHub, pushed: Run) -> None:
    hub.change("user/run", {"banks/one/code.pkl": b"x", "weights.pkl": b"x"})
    with pytest.raises(StoreError, match=r"unexpected file 'banks/one/code.pkl': in a run"):
        Run("hf://user/run")
    hub.change("user/run", {"banks/one/code.pkl": None})
    folder = Run("hf://user/run").store.folder
    assert not list(folder.rglob("*.pkl"))
    assert not hub.sent("GET", ".pkl")


def test_large_files_are_refused_before_they_are_downloaded(
    hub: LocalHub, pushed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hub_files._BANK, "bank.safetensors", 1000)
    with pytest.raises(
        StoreError, match=r"'banks/one/bank.safetensors' takes .* kB, but such a file may take at most 1 kB"
    ):
        Run("hf://user/run")
    monkeypatch.setitem(hub_files._BANK, "bank.safetensors", 10**6)
    monkeypatch.setattr(hub_files, "MAX_BYTES", 1000)
    with pytest.raises(
        StoreError, match=r"13 files, .* in total, exceed the limit for automatic downloads .*`hf download`"
    ):
        Run("hf://user/run")
    assert not hub.sent("GET", "/resolve/")


def test_cached_run_is_read_offline(hub: LocalHub, pushed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Run.from_hub("user/run")
    hub.asked.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Run.from_hub("user/run").store.tasks == ["one", "two"]
    with pytest.raises(
        InputError, match=r"access to the Hub is disabled \(HF_HUB_OFFLINE\) and its cache has no complete copy"
    ):
        Run.from_hub("user/other")
    assert not hub.asked


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("hf://user/other", "the Hub has no such repository"),
        ("hf://user/run@v9", "the repository has no revision 'v9'"),
        ("hf://run", "this is not the address of a run on the Hub; expected hf://USER/RUN"),
        ("hf://user/run/banks", "this is not the address of a run on the Hub"),
    ],
)
def test_missing_runs_are_reported(hub: LocalHub, pushed: Run, address: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Run(address)


def test_repository_without_a_run_is_reported(hub: LocalHub, pushed: Run) -> None:
    hub.change("user/run", {"stream.yaml": None, "adapter_config.json": b"{}"})
    with pytest.raises(InputError, match=r"holds no run \(no stream.yaml in it\), but a peft adapter: load it with"):
        Run("hf://user/run")


def test_hub_that_cannot_be_reached_is_reported(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"it cannot be downloaded: the Hub \(http://127.0.0.1:9\) cannot be reached"):
        Run("hf://user/run")


def test_runs_on_the_hub_are_only_read(hub: LocalHub, backbone_folder: Folder, tmp_path: Path) -> None:
    says = r"a run on the Hub can only be read.*`hf download user/run --local-dir runs/run`"
    for address in ("hf://user/run@v1", Path("hf://user/run")):
        with pytest.raises(InputError, match=says):
            forget(address, "one")
        with pytest.raises(InputError, match=says):
            reevaluate(address)
        with pytest.raises(InputError, match=says):
            learn(stream(backbone_folder(), [task("one")]), address)
        with pytest.raises(InputError, match=says):
            sweep(stream(backbone_folder(), [task("one")]), SweepSpec(space={"training.epochs": [1]}), folder=address)
    assert not hub.asked


def test_downloaded_run_is_not_changed(hub: LocalHub, pushed: Run, tmp_path: Path) -> None:
    run = Run.open("hf://user/run")
    changes: list[Callable[[], Any]] = [
        lambda: run.learn({"name": "new"}),
        lambda: run.forget("one"),
        lambda: run.reevaluate(),
        lambda: run.import_adapter(tmp_path, "new"),
        lambda: Run.create(TaskStream(pushed.spec), "hf://user/run"),
    ]
    for change in changes:
        with pytest.raises(
            InputError, match=r"hf://user/run: a run on the Hub can only be read.*`hf download user/run"
        ):
            change()
    assert run.store.tasks == pushed.store.tasks


def test_revision_is_given_once() -> None:
    assert Address.of("user/run", "v1") == Address.of("hf://user/run@v1") == Address.of(Path("hf://user/run@v1"))
    with pytest.raises(InputError, match=r"revision: got 'v2', but user/run@v1 already names one"):
        Run.from_hub("user/run@v1", revision="v2")


def test_downloaded_folder_can_be_learned_on_and_pushed(
    hub: LocalHub, pushed: Run, backbone_folder: Folder, tmp_path: Path
) -> None:
    """The folder is as `hf download` leaves it: with README.md and .cache."""
    from huggingface_hub import snapshot_download

    folder = tmp_path / "again"
    snapshot_download("user/run", local_dir=folder)
    assert {"README.md", ".cache"} <= {path.name for path in folder.iterdir()}
    assert all(check.ok for check in Run(folder).verify())
    learn_tasks(backbone_folder(), ("one", "two", "three"), folder)
    Run(folder).push("user/run")
    assert Run.from_hub("user/run").store.tasks == ["one", "two", "three"]
    with pytest.raises(InputError, match="or this run with more tasks learned or dropped"):
        pushed.push("user/run")

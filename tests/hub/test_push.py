"""Pushing a run: what is uploaded, what is not, and what a broken upload leaves behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StoreError, forget, learn
from continual_petl.hub.uploaded_files import limit_of
from continual_petl.store.files.lock import RunLock
from tests.hub.conftest import Folder, learn_tasks
from tests.hub.local_hub import LocalHub
from tests.streams_in_code import stream, task

BANK = ("bank.json", "bank.safetensors", "history.json", "probe.safetensors", "router.safetensors")
TOP = ("backbone.json", "ledger.jsonl", "stream.yaml")
IN_RUN = {*TOP, *(f"banks/{name}/{file}" for name in ("one", "two") for file in BANK)}


def test_only_what_belongs_to_the_run_is_uploaded(hub: LocalHub, folder: Path) -> None:
    (folder / "logs").mkdir()
    for name in ("logs/x.csv", "notes.txt", "banks/one/.bank.json.1.new"):
        (folder / name).write_text("x")
    (folder / ".progress" / "three").mkdir(parents=True)
    done = Run(folder).push("user/run")
    files = hub.files("user/run")
    assert done.changed
    assert done.url == f"{hub.address}/user/run"
    assert set(files) == {".gitattributes", "README.md", *IN_RUN}
    assert all(files[name] == (folder / name).read_bytes() for name in IN_RUN)
    assert hub.repos["user/run"].commits[done.commit]["banks/one/bank.safetensors"].lfs
    assert len(hub.repos["user/run"].commits) == 2  # the whole run is one commit


def test_unchanged_run_is_not_uploaded_again(hub: LocalHub, folder: Path) -> None:
    first = Run(folder).push("user/run")
    hub.asked.clear()
    again = Run(folder).push("user/run")
    assert (again.commit, again.changed) == (first.commit, False)
    assert not hub.sent("PUT")
    assert not hub.sent("POST", "/commit/")


def test_only_new_and_changed_files_are_uploaded(
    hub: LocalHub, folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(folder).push("user/run")
    learn_tasks(backbone_folder(), ("one", "two", "three"), folder)
    hub.asked.clear()
    committed: list[str] = []
    from huggingface_hub import _commit_api

    send = _commit_api._prepare_commit_payload

    def noted(operations: Any, *rest: Any, **more: Any) -> Any:
        committed.extend(operation.path_in_repo for operation in operations)
        return send(operations, *rest, **more)

    monkeypatch.setattr(_commit_api, "_prepare_commit_payload", noted)
    Run(folder).push("user/run")
    assert len(hub.sent("PUT")) == 3  # bank, probe and routing statistics of the new task
    assert set(committed) == {
        "README.md",
        "ledger.jsonl",
        "stream.yaml",
        *(f"banks/three/{file}" for file in BANK),
    }


def test_broken_upload_is_resumed(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", _one_by_one())
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    run = Run(folder)
    hub.break_after = 2  # the third upload breaks off, however often it is retried
    with pytest.raises(
        InputError, match=r"hf://user/run: it cannot be pushed: .*Run the same command again to continue"
    ):
        run.push("user/run")
    assert set(hub.files("user/run")) == {".gitattributes"}  # no part of a run is visible
    uploaded = set(hub.lfs)
    assert len(uploaded) == 2
    hub.break_after = None
    hub.asked.clear()
    run.push("user/run")
    assert len(hub.sent("PUT")) == 4
    assert not {each.rpartition("/")[2] for each in hub.sent("PUT")} & uploaded
    assert set(hub.files("user/run")) == {".gitattributes", "README.md", *IN_RUN}


def _one_by_one() -> Any:
    """Return a function that uploads LFS files one after the other, so that the test knows which have arrived."""
    from huggingface_hub import _commit_api

    upload = _commit_api._upload_lfs_files

    def serial(*, actions: Any, num_threads: int, **rest: Any) -> None:
        for action in actions:
            upload(actions=[action], num_threads=1, **rest)

    return serial


def test_forgotten_task_is_removed_and_leaves_a_tombstone(hub: LocalHub, folder: Path) -> None:
    Run(folder).push("user/run")
    forget(folder, "one")
    Run(folder).push("user/run")
    files = {name for name in hub.files("user/run") if limit_of(name) is not None}
    assert files == {name for name in IN_RUN if not name.startswith("banks/one/")}


def test_outdated_copy_does_not_bring_back_a_dropped_task(hub: LocalHub, folder: Path, tmp_path: Path) -> None:
    Run(folder).push("user/run")
    behind = shutil.copytree(folder, tmp_path / "behind")
    forget(folder, "one")
    Run(folder).push("user/run")
    with pytest.raises(InputError, match="this run with more tasks learned or dropped"):
        Run(behind).push("user/run")


def test_repository_can_be_private_and_have_branches(
    hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Run(folder).push("user/run", private=True, revision="v1")
    assert hub.repos["user/run"].private
    assert done.url.endswith("/user/run/tree/v1")
    assert set(hub.files("user/run")) == {".gitattributes"}
    assert set(hub.files("user/run", "v1")) >= IN_RUN
    assert b'Run.from_hub("user/run", revision="v1")' in hub.files("user/run", "v1")["README.md"]
    assert Run.from_hub("user/run", revision="v1").store.tasks == ["one", "two"]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
    with pytest.raises(InputError, match=r"the Hub has no such repository \(if it is private, log in"):
        Run("hf://user/run@v1")


def test_private_push_to_a_public_repository_is_refused(hub: LocalHub, folder: Path) -> None:
    Run(folder).push("user/run")
    hub.asked.clear()
    with pytest.raises(
        InputError, match="the repository user/run already exists and is public, so nothing was uploaded"
    ):
        Run(folder).push("user/run", private=True)
    assert not hub.sent("PUT")


def test_another_run_is_never_overwritten(hub: LocalHub, folder: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    Run(folder).push("user/run")
    other = tmp_path / "other"
    learn(stream(backbone_folder(), [task("one")], training={"epochs": 1}, seed=5), other)
    with pytest.raises(
        InputError, match=r"holds another run, or this run with more tasks learned or dropped.*hf download"
    ):
        Run(other).push("user/run")
    hub.change("user/run", {"ledger.jsonl": hub.files("user/run")["ledger.jsonl"] + b"{}\n"})
    with pytest.raises(InputError, match="holds another run, or this run with more tasks learned or dropped"):
        Run(folder).push("user/run")


def test_long_results_are_compared_too(hub: LocalHub, folder: Path) -> None:
    Run(folder).push("user/run")
    hub.repos["user/run"].commits[hub.repos["user/run"].branches["main"][-1]]["ledger.jsonl"].lfs = True
    Run(folder).push("user/run")
    hub.repos["user/run"].commits[hub.repos["user/run"].branches["main"][-1]]["ledger.jsonl"].content = b"x"
    with pytest.raises(InputError, match="holds another run"):
        Run(folder).push("user/run")


def test_repository_with_another_model_is_refused(hub: LocalHub, folder: Path) -> None:
    Run(folder).push("user/run")
    hub.change("user/run", {"stream.yaml": None, "config.json": b"{}"})
    with pytest.raises(InputError, match=r"user/run: this repository holds another model \(config.json\)"):
        Run(folder).push("user/run")


def test_concurrent_commit_is_not_overwritten(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from continual_petl.hub import push

    def meanwhile(*given: Any) -> None:
        hub.change("user/run", {"LICENSE": b"theirs"})

    monkeypatch.setattr(push, "_check_continues", meanwhile)
    with pytest.raises(
        InputError, match=r"the repository has changed in the meantime. Nothing was committed; push again"
    ):
        Run(folder).push("user/run")


def test_damaged_run_is_not_pushed(hub: LocalHub, folder: Path) -> None:
    bank = folder / "banks" / "one" / "bank.safetensors"
    bank.write_bytes(bank.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match=r"it does not match its certificates, so it is not used. task 'one'"):
        Run(folder).push("user/run")
    assert not hub.asked


def test_run_that_is_written_to_is_not_pushed(hub: LocalHub, folder: Path) -> None:
    import threading

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with RunLock(folder):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        with pytest.raises(StoreError, match="another process is writing to this run"):
            Run(folder).push("user/run")
    finally:
        done.set()
        thread.join()
    assert not hub.asked


def test_push_needs_a_token(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no-token"))
    with pytest.raises(InputError, match=r"it cannot be pushed: .*hf auth login"):
        Run(folder).push("user/run")


def test_name_of_a_repository_is_checked_first(hub: LocalHub, folder: Path) -> None:
    with pytest.raises(InputError, match="run: this is not the name of a repository on the Hub; expected USER/NAME"):
        Run(folder).push("run")
    assert not hub.asked


def test_push_offline_is_refused_at_once(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match=r"hf://user/run: it cannot be pushed: access to the Hub is disabled \(HF_HUB_OFFLINE\)"
    ):
        Run(folder).push("user/run")
    assert not hub.asked

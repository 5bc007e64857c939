"""What a faulty server or disk left in a cache is removed, so that the next attempt gets it from a healthy one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StoreError, forget
from continual_petl._hub_cache import damaged_files, remove
from continual_petl.backbones.backbone import load_backbone
from continual_petl.backbones.tokenizer import load_tokenizer
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.data_spec import DataSpec
from continual_petl.streams.schema.task_spec import TaskSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.hub.conftest import Folder, learn_tasks
from tests.hub.local_hub import File, LocalHub, Repo

ROW = "w1 w20 w30"


@pytest.fixture
def pushed(hub: LocalHub, folder: Path) -> Run:
    """Return a run that is on the Hub as user/run."""
    run = Run(folder)
    run.push("user/run")
    return run


def flipped(content: bytes) -> bytes:
    """Return other bytes of the same number."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "name", ["banks/one/bank.safetensors", "banks/one/bank.json", "stream.yaml", "ledger.jsonl", "backbone.json"]
)
def test_corrupt_download_does_not_stay(hub: LocalHub, pushed: Run, name: str, tmp_path: Path) -> None:
    mine = tmp_path / "hf" / "hub" / "models--user--other" / "blobs" / ("0" * 40)
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"of another repository")
    hub.served[name] = flipped(hub.files("user/run")[name])
    with pytest.raises(
        StoreError, match=rf"a download is damaged: .*Removed from the Hub's cache: '{name}' in .*again"
    ):
        Run.from_hub("user/run")
    hub.served.clear()
    hub.asked.clear()
    assert Run.from_hub("user/run").predict(ROW, task="one") == pushed.predict(ROW, task="one")
    assert [each.partition("/resolve/")[2].partition("/")[2] for each in hub.sent("GET", "/resolve/")] == [name]
    assert mine.read_bytes() == b"of another repository"


def test_shorter_download_does_not_stay(hub: LocalHub, pushed: Run) -> None:
    hub.served["ledger.jsonl"] = hub.files("user/run")["ledger.jsonl"][:-5]
    with pytest.raises((StoreError, InputError), match=r"ledger\.jsonl|size"):
        Run.from_hub("user/run")
    hub.served.clear()
    assert Run.from_hub("user/run").store.tasks == ["one", "two"]


def test_server_that_also_lists_a_wrong_digest_does_no_lasting_harm(hub: LocalHub, pushed: Run) -> None:
    files = hub.repos["user/run"].commits[hub.repos["user/run"].branches["main"][-1]]
    name = "banks/two/bank.safetensors"
    healthy, files[name] = files[name], File(flipped(files[name].content), lfs=True)
    with pytest.raises(
        StoreError, match=rf"does not match its certificates.*Removed from the Hub's cache: '{name}' in"
    ):
        Run.from_hub("user/run")
    files[name] = healthy
    assert Run.from_hub("user/run").predict(ROW, task="two") == pushed.predict(ROW, task="two")


@pytest.mark.parametrize("name", ["banks/one/bank.json", "banks/one/bank.safetensors"])
def test_run_that_was_damaged_on_disk_is_downloaded_again(hub: LocalHub, pushed: Run, name: str) -> None:
    damaged = Run.from_hub("user/run").store.folder / name
    damaged.chmod(0o600)
    with damaged.open("r+b") as file:  # a large file is a hard link: its copy in the cache of the Hub is damaged too
        content = flipped(file.read())
        file.seek(0)
        file.write(content)
    if name.endswith(".safetensors"):
        with pytest.raises(StoreError, match=rf"Removed from the Hub's cache: '{name}' in"):
            Run.from_hub("user/run")
    assert Run.from_hub("user/run").predict(ROW, task="one") == pushed.predict(ROW, task="one")


def test_what_a_killed_download_left_is_removed_after_a_day(hub: LocalHub, pushed: Run, tmp_path: Path) -> None:
    old, new = (tmp_path / "hf" / "continual-petl" / "user--run" / name for name in (".new-old", ".new-now"))
    for folder in (old, new):
        (folder / "commit").mkdir(parents=True)
    os.utime(old, (0, 0))
    Run.from_hub("user/run")
    assert new.is_dir()
    assert not old.exists()


def test_damaged_card_is_not_uploaded_again(hub: LocalHub, pushed: Run, folder: Path) -> None:
    hub.change("user/run", {"README.md": hub.files("user/run")["README.md"] + b"written by hand"})
    hub.served["README.md"] = flipped(hub.files("user/run")["README.md"])
    forget(folder, "one")
    with pytest.raises(InputError, match=r"a download is damaged: .*'README\.md' in"):
        Run(folder).push("user/run")
    hub.served.clear()
    Run(folder).push("user/run")
    assert hub.files("user/run")["README.md"].endswith(b"written by hand")


def publish(hub: LocalHub, folder: Path, name: str) -> None:
    """Put a backbone on the Hub."""
    files = {path.name: File(path.read_bytes(), path.suffix == ".safetensors") for path in folder.iterdir()}
    hub.repos[name] = Repo(private=False)
    hub.repos[name].commit("main", files)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_corrupt_backbone_is_not_used_and_does_not_stay(hub: LocalHub, backbone_folder: Folder, name: str) -> None:
    folder = backbone_folder()
    publish(hub, folder, "user/tiny")
    hub.served[name] = content = flipped((folder / name).read_bytes())
    assert len(content) == (folder / name).stat().st_size
    with pytest.raises(InputError, match=rf"backbone 'user/tiny': a download is damaged: .*cache: '{name}' in .*again"):
        load_backbone("user/tiny")
    hub.served.clear()
    assert load_backbone("user/tiny").digest == load_backbone(str(folder)).digest


def test_corrupt_tokenizer_is_not_used_and_does_not_stay(hub: LocalHub, backbone_folder: Folder) -> None:
    folder = backbone_folder()
    publish(hub, folder, "user/tiny")
    text = (folder / "tokenizer.json").read_bytes()
    hub.served["tokenizer.json"] = text.replace(b'"w20"', b'"w2x"')  # a valid file with other words
    with pytest.raises(InputError, match=r"backbone 'user/tiny': a download is damaged: .*cache: 'tokenizer.json' in"):
        load_tokenizer("user/tiny")
    hub.served.clear()
    assert load_tokenizer("user/tiny")(ROW)["input_ids"] == load_tokenizer(str(folder))(ROW)["input_ids"]


def test_nothing_outside_of_the_cache_is_removed(
    hub: LocalHub, pushed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.from_hub("user/run")
    (snapshot,) = (tmp_path / "hf" / "hub" / "models--user--run" / "snapshots").iterdir()
    outside = tmp_path / ("0" * 40)
    outside.write_bytes(b"mine")
    link = snapshot / "stream.yaml"
    link.unlink()
    link.symlink_to(outside)
    assert damaged_files(snapshot) == ["stream.yaml"]
    remove(snapshot, ["stream.yaml"])
    assert outside.read_bytes() == b"mine"
    assert not os.path.lexists(link)


def test_file_that_cannot_be_removed_is_named(hub: LocalHub, pushed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.served["stream.yaml"] = flipped(hub.files("user/run")["stream.yaml"])
    removes = Path.unlink

    def fail(path: Path, *options: Any, **more: Any) -> None:
        if "models--user--run" in path.parts and path.name == "stream.yaml":
            raise PermissionError(1, "Operation not permitted")
        removes(path, *options, **more)

    with monkeypatch.context() as only_here:
        only_here.setattr(Path, "unlink", fail)
        with pytest.raises(StoreError, match=r"could not be removed from the Hub's cache \(.*not permitted\): remove"):
            Run.from_hub("user/run")
    hub.served.clear()
    assert Run.from_hub("user/run").store.tasks == ["one", "two"]


def test_offline_a_damaged_cache_is_refused_by_name(
    hub: LocalHub, pushed: Run, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(hub, backbone_folder(), "user/tiny")
    load_backbone("user/tiny")
    (snapshot,) = (tmp_path / "hf" / "hub" / "models--user--tiny" / "snapshots").iterdir()
    weights = (snapshot / "model.safetensors").resolve()
    weights.write_bytes(flipped(weights.read_bytes()))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"backbone 'user/tiny': a download is damaged: .*'model.safetensors' in"):
        load_backbone("user/tiny")


def test_learning_on_a_corrupt_backbone_is_refused(hub: LocalHub, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = backbone_folder()
    publish(hub, folder, "user/tiny")
    hub.served["model.safetensors"] = flipped((folder / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"'model.safetensors' in"):
        learn_tasks(folder, ["one"], tmp_path / "own", "user/tiny")
    hub.served.clear()
    assert learn_tasks(folder, ["one"], tmp_path / "own", "user/tiny").store.tasks == ["one"]


@pytest.mark.parametrize(("readable", "init"), [(True, False), (False, False), (True, True), (False, True)])
def test_corrupt_data_set_is_not_read_and_does_not_stay(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, readable: bool, init: bool
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", hub.address)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    content = b"text,label\none,yes\ntwo,no\n"
    hub.repos["user/rows"] = Repo(private=False)
    hub.repos["user/rows"].commit("main", {"train.csv": File(content, False)})
    hub.served["train.csv"] = content.replace(b"two", b"2wo") if readable else b"\xff" * len(content)
    data, columns = DataSpec(path="user/rows"), TaskSpec(name="x", kind="classification", data="x.csv").columns

    def texts() -> Any:
        if init:
            return inspect_data("user/rows").table["text"]
        return read_splits("x", data, columns, ["train"])["train"].inputs

    place = "user/rows" if init else "task 'x', data"
    with pytest.raises(InputError, match=rf"^{place}: a download is damaged: .*cache: 'train.csv' in .* again;"):
        texts()
    hub.served.clear()
    assert texts() == ["one", "two"]

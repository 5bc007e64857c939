"""Any change in the files of a bank is detected and named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from continual_petl import ForgettingError, Run, load_backbone
from continual_petl.digests import file_digest
from continual_petl.engine.commands import forget
from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import read_certificate
from continual_petl.store.certificate.history import read_history
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import write_sealed
from continual_petl.store.ledger.lines import CommitLine
from tests.store.tampering import change_tensors, edit, learn_one_more, lines_of, nudge, problems

Folder = Callable[..., Path]


def test_unchanged_copy_is_verified(folder: Path) -> None:
    assert problems(folder) == {}


@pytest.mark.parametrize("name", ["head.output.bias", "modifications.0.layer_1.self.up.bias"])
def test_changed_bias_on_disk_is_detected(folder: Path, backbone_folder: Folder, name: str) -> None:
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge(name))
    found = problems(folder)
    assert set(found) == {"one"}
    assert f"tensor {name} has the digest" in found["one"]
    with pytest.raises(StoreError, match=f"task 'one'.*tensor {name}"):
        Run(folder).predict(["w0 w1"], task="one")
    with pytest.raises((ForgettingError, StoreError), match=f"task 'one'.*tensor {name}"):
        learn_one_more(backbone_folder(), folder)
    # The check fails until the bank is repaired.
    with pytest.raises((ForgettingError, StoreError), match=f"task 'one'.*tensor {name}"):
        learn_one_more(backbone_folder(), folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("head.output.bias"), "head.output.bias is in the certificate but not in the file"),
        (lambda t: t.update(extra=torch.zeros(1)), "extra is not in the certificate"),
        (lambda t: t.update({"head.output.bias": t["head.output.bias"].double()}), "head.output.bias has the digest"),
        (lambda t: t.update({"head.output.bias": t["head.output.bias"][None]}), "head.output.bias has the digest"),
    ],
)
def test_swapped_tensors_are_detected(folder: Path, change: Any, named: str) -> None:
    change_tensors(folder / "banks" / "two" / "bank.safetensors", change)
    assert named in problems(folder)["two"]


def test_same_tensors_in_other_bytes_are_detected(folder: Path) -> None:
    path = folder / "banks" / "two" / "bank.safetensors"
    save_file(load_file(path), path, metadata={"written": "again"})
    assert "bank.safetensors: its bytes are not those that were certified" in problems(folder)["two"]


def test_bank_on_another_backbone_is_refused(folder: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    store = Run(folder).store
    with pytest.raises(StoreError, match=r"task 'one' was learned on a backbone with digest .* use that one"):
        store.load_bank("one", load_backbone(str(backbone_folder("electra"))))
    with pytest.raises(
        StoreError, match=r"backbone\.json: this run was learned on backbone .* tensors? differs?; the first is"
    ):
        store.write_backbone(load_backbone(str(backbone_folder("electra"))))
    other = Path(shutil.copytree(backbone_folder(), tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    with pytest.raises(StoreError, match=r"whose config\.json had layer_norm_eps: 1e-12; .* it is 0\.001"):
        store.write_backbone(load_backbone(str(other)))


def test_history_of_another_format_is_refused(folder: Path) -> None:
    store = Run(folder).store
    path, certificate = store.bank_folder("one") / "history.json", store.certificate("one")
    path.write_bytes(json_bytes(json.loads(path.read_bytes()) | {"format_version": 2}))
    files = certificate.files | {path.name: file_digest(path)}
    with pytest.raises(StoreError, match=r"format version 2, this release reads 1\. A newer release wrote it"):
        read_history(path, certificate.model_copy(update={"files": files}))


@pytest.mark.parametrize("file", ["bank.safetensors", "probe.safetensors", "history.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_file_is_reported(folder: Path, file: str, damage: str) -> None:
    path = folder / "banks" / "two" / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    found = problems(folder)
    assert set(found) == {"two"}
    assert file in found["two"]


@pytest.mark.parametrize("name", ["outputs", "input_ids", "attention_mask"])
def test_changed_probe_is_detected(folder: Path, name: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[1] += 1

    change_tensors(folder / "banks" / "two" / "probe.safetensors", change)
    found = problems(folder)
    assert set(found) == {"two"}
    assert "is not the certified probe" in found["two"]


@pytest.mark.parametrize("name", ["one", "three"])
@pytest.mark.parametrize(
    "values", [{"labels": ["yes", "no"]}, {"pooling": "first"}, {"metric": "matthews"}, {"index": 1}]
)
def test_edited_certificate_is_detected(folder: Path, name: str, values: dict[str, Any]) -> None:
    path = folder / "banks" / name / "bank.json"
    if read_certificate(path).labels == tuple(values.get("labels", ())):
        values = {"labels": ["no", "yes"]}
    edit(path, sealed=False, **values)
    assert re.search(f"{name}/bank.json: its content does not match its seal.*task '{name}'", problems(folder)[name])
    with pytest.raises(StoreError, match="seal"):
        Run(folder).predict(["w0"], task=name)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, found list"),
        ('{"format_version": 1}', "byte 1 is not the one that was written"),
        ('{\n  "format_version": 3\n}\n', "format version 3, this release reads 2. A newer release wrote it"),
        ('{\n  "format_version": "2"\n}\n', "format version 2, this release reads 2. The file is damaged"),
        ('{\n  "format_version": 2\n}\n', "does not match its seal"),
        ('{"a": ' * 100_000, "nested too deeply"),
    ],
)
def test_invalid_certificate_is_reported(folder: Path, content: str, match: str) -> None:
    (folder / "banks" / "one" / "bank.json").write_text(content)
    assert re.search(f"(?s)one/bank.json.*{match}", problems(folder)["one"])


def test_unknown_certificate_key_is_refused(folder: Path) -> None:
    edit(folder / "banks" / "one" / "bank.json", sealed=False, extra=1)
    assert "its content does not match its seal" in problems(folder)["one"]
    path = folder / "banks" / "two" / "bank.json"
    content = json.loads(path.read_text()) | {"extra": 1}
    del content["seal"]
    write_sealed(path, content)
    assert "two/bank.json: extra" in problems(folder)["two"]


def test_a_certificate_edited_and_sealed_again_breaks_the_chain(folder: Path) -> None:
    edit(folder / "banks" / "one" / "bank.json", sealed=True, labels=("yes", "no", "perhaps"))
    found = problems(folder)
    assert "names the predecessor" in found["(ledger.jsonl)"]
    # The bank no longer matches the certificate either.
    assert "head.output.bias" in found["one"]


def test_reordered_removed_or_renamed_tasks_are_detected(folder: Path) -> None:
    banks = folder / "banks"
    shutil.copytree(banks, folder / "kept")
    ledger = (folder / "ledger.jsonl").read_bytes()
    edit(banks / "one" / "bank.json", sealed=True, index=1)
    edit(banks / "two" / "bank.json", sealed=True, index=0)
    assert "it is entry 1 of a chain" in problems(folder)["(ledger.jsonl)"]
    (folder / "ledger.jsonl").write_bytes(ledger)
    assert {"one", "two"} <= set(problems(folder))
    shutil.rmtree(banks)
    shutil.copytree(folder / "kept", banks)
    shutil.rmtree(banks / "two")
    assert problems(folder).keys() == {"two"}
    (banks / "three").rename(banks / "two")
    assert "two/bank.json: this is the certificate of task 'three'" in problems(folder)["two"]


def test_certificate_changed_after_reading_is_detected(folder: Path) -> None:
    run = Run(folder)
    assert all(check.ok for check in run.verify())
    edit(folder / "banks" / "two" / "bank.json", sealed=False, metric="matthews")
    checks = {check.task: check for check in run.verify()}
    assert "seal" in checks["two"].problems[0]
    assert checks["one"].ok
    assert checks["three"].ok


def test_missing_results_are_reported(folder: Path) -> None:
    (folder / "ledger.jsonl").unlink()
    (name, told), *more = problems(folder).items()
    assert (name, more) == ("(ledger.jsonl)", [])
    assert "its lines about 'one', 'two' are missing" in told


def test_missing_results_of_a_replacement_are_reported(folder: Path, backbone_folder: Folder) -> None:
    """The lines about the bank that it replaced are still there."""
    learn_one_more(backbone_folder(), folder, replace=["two"])
    path = folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (number,) = [n for n, line in enumerate(lines_of(folder)) if isinstance(line, CommitLine) and line.index == 3]
    path.write_bytes(b"".join(lines[: number + 1]))  # entry 4, the newest, follows from its folder
    assert "its lines about 'two' are missing" in problems(folder)["(ledger.jsonl)"]


def test_missing_newest_bank_is_reported(folder: Path) -> None:
    """No later certificate names it as its predecessor, but ledger.jsonl lists it."""
    for gone, left in (("three", {"one", "two"}), ("two", {"one"}), ("one", set())):
        shutil.rmtree(folder / "banks" / gone)
        checks = {check.task: check for check in Run(folder).verify()}
        assert {name for name, check in checks.items() if check.ok} == left
        assert (
            f"task {gone!r} was learned as entry {len(left)} of the chain, but its bank is missing"
            in (checks[gone].problems[0])
        )


@pytest.mark.parametrize("name", ["stream.yaml", "banks"])
def test_file_folder_mixups_are_reported(folder: Path, backbone_folder: Folder, name: str) -> None:
    run = Run(folder)
    if name == "banks":
        (folder / name).rename(folder / "elsewhere")
        (folder / name).write_text("")
        assert "it should be a folder" in {c.task: c for c in run.verify()}["(banks)"].problems[0]
    else:
        (folder / name).unlink()
        (folder / name).mkdir()
    with pytest.raises(StoreError, match=rf"{name}: (cannot be read|could not be written)"):
        learn_one_more(backbone_folder(), folder)


@pytest.mark.parametrize("link", [".progress", ".progress/three"])
def test_link_instead_of_progress_is_not_followed(folder: Path, backbone_folder: Folder, link: str) -> None:
    mine = folder.parent / "mine" / "three"
    mine.mkdir(parents=True)
    (mine / "kept").write_text("")
    shutil.rmtree(folder / ".progress")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(folder.parent / "mine" / "three" if "/" in link else folder.parent / "mine")
    # As if the run had been killed before the task's row was written: the next command would remove its saved progress.
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(StoreError, match="it is a link, which could lead anywhere"):
        learn_one_more(backbone_folder(), folder)
    with pytest.raises(StoreError, match="it is a link, which could lead anywhere"):
        forget(folder, "three")
    assert Run(folder).store.tasks == ["one", "two", "three"]
    assert [path.name for path in mine.iterdir()] == ["kept"]

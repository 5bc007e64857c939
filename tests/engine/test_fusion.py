"""Fused banks in a run: the banks they read stay unchanged and are named in the certificate, and a lost one is noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, forget, learn
from continual_petl.cli.main import main
from continual_petl.digests import tensor_digests
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.parallel.scheduler import needed
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.heads.predictions import Prediction
from continual_petl.report.page.details import _settings as settings_table
from continual_petl.report.read_facts import read_facts
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.tensor_file import num_bytes
from continual_petl.store.dependencies import read_banks
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task
from tests.desk import bank_digests
from tests.engine.fused import BANK, PARENTS, TRAINING, fused, tasks_of
from tests.store.tampering import bank_files, change_tensors, edit, nudge, problems
from tests.streams_in_code import stream, task, write_rows

Folder = Callable[..., Path]


@pytest.fixture
def parents(parents_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(parents_run, tmp_path / "run"))


@pytest.fixture
def folder(fused_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fused_run, tmp_path / "run"))


def test_certificate_names_the_banks_that_were_read(
    parents_run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(folder)
    certificate, a = store.certificate("f"), store.certificate("a")
    assert {parent.task: parent.digest for parent in certificate.reads} == {
        n: store.certificate(n).digest for n in "ab"
    }
    assert certificate.bank == a.bank.model_copy(update={"fuse": ("a", "b")})
    assert (certificate.parent, a.reads) == (None, ())
    assert b'"reads"' not in bank_files(parents_run, "a")["banks/a/bank.json"]
    # Q, K, V and the gate have 3 D^2 + D + 1 parameters per site, however many banks are read. Those banks are not stored
    # again.
    assert certificate.parameters["modifications"] == 2 * (3 * 16 * 16 + 16 + 1)
    assert bank_files(folder, "a", "b") == bank_files(parents_run, "a", "b")
    assert all(check.ok for check in Run(folder).verify(data=True))
    assert main(["show", str(folder), "f"]) == 0
    assert "the banks of 'a', 'b'" in capsys.readouterr().out
    facts = next(each for each in read_facts(folder).tasks if each.name == "f")
    cells = [cell.text for row in settings_table(facts).rows for cell in row]
    assert cells[cells.index("reads") + 1] == "the banks of 'a', 'b'"


ASK = """
import gc, sys
gc.disable()  # makes the imports faster
from continual_petl import Run
for answer in Run(sys.argv[1]).predict(["w3 w12 w4", "w9"], "f"):
    print(answer.value, *(float(each).hex() for each in answer.probabilities.values()))
"""


@pytest.mark.slow
def test_bank_read_in_a_fresh_process_answers_with_the_same_bits(folder: Path) -> None:
    here = ""
    for answer in Run(folder).predict(["w3 w12 w4", "w9"], "f"):
        assert answer.probabilities is not None
        here += (
            " ".join([str(answer.value), *(float(probability).hex() for probability in answer.probabilities.values())])
            + "\n"
        )
    again = subprocess.run([sys.executable, "-c", ASK, str(folder)], capture_output=True, text=True, check=True)
    assert again.stdout == here


def test_fused_bank_answers_differently_from_the_backbone_alone(folder: Path) -> None:
    run = Run(folder)
    held = run.session.models.held("f")
    gates = [tensor for name, tensor in held.bank.tensors().items() if name.endswith("gate")]
    assert len(gates) == 2
    assert all(gate.abs() > 1e-3 for gate in gates)
    # The size includes the banks that it reads, which are in memory too.
    stored = [num_bytes(run.store.certificate(name).tensors) for name in ("f", "a", "b")]
    assert held.num_bytes == sum(stored)


def numbers(answer: Prediction) -> list[float]:
    return [float(str(answer.value))] if answer.probabilities is None else list(answer.probabilities.values())


def test_rows_of_several_tasks_are_predicted_in_one_call(folder: Path) -> None:
    run = Run(folder)
    rows, tasks = ["w3 w12", "w9", "w5 w40 w2", "w1", "w7 w8"], ["f", "a", "b", "f", "a"]
    for row, name, answer in zip(rows, tasks, run.predict(rows, tasks), strict=True):
        # Batches of different sizes round differently.
        assert numbers(answer) == pytest.approx(numbers(run.predict(row, name)), abs=1e-5)
    for name, answer in run.predict_all("w3 w12", ["a", "f", "b"]).items():
        assert numbers(answer) == pytest.approx(numbers(run.predict("w3 w12", name)), abs=1e-5)


def test_fused_task_waits_for_the_banks_that_it_reads(backbone_folder: Folder, parents: Path) -> None:
    spec = tasks_of(backbone_folder(), task("c"), fused("f", fuse=("c", "a")), task("d")).spec
    needs = needed(Session(spec, Store(parents)), spec.tasks)
    assert needs == {"a": set(), "b": set(), "c": set(), "f": {"a", "c"}, "d": set()}
    # A task does not wait for banks that are already learned.
    assert needed(Session(spec, Store(parents)), spec.tasks[2:])["f"] == {"c"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "b"])
def test_bank_that_is_read_cannot_be_forgotten_or_replaced(
    backbone_folder: Folder, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tasks_of(backbone_folder(), fused(), fused("g", fuse=("b", "a"))), folder)
    before = bank_files(folder, "a", "b", "f")
    says = rf"task '{name}' cannot be {{}}: other tasks have fused banks that read its bank.*: 'f', 'g'\. Forget them"
    with pytest.raises(InputError, match=says.format("forgotten")):
        forget(folder, name)
    with pytest.raises(InputError, match=says.format("replaced")):
        learn(tasks_of(backbone_folder(), fused(), fused("g", fuse=("b", "a"))), folder, replace=[name])
    assert main(["forget", str(folder), name, "--yes"]) == 2
    assert "cannot be forgotten" in capsys.readouterr().err
    assert bank_files(folder, "a", "b", "f") == before
    # The fused tasks can be forgotten, and after them the tasks whose banks they read.
    for each in ("g", "f", name):
        forget(folder, each)
    assert problems(folder) == {}


@pytest.mark.slow
def test_fused_task_can_be_replaced_by_one_that_reads_other_banks(backbone_folder: Folder, folder: Path) -> None:
    third = task("c", num_rows=16)
    tasks = stream(backbone_folder(), [*PARENTS, third, fused(fuse=("c", "b"))], bank=BANK, training=TRAINING)
    run = learn(tasks, folder, replace=["f"])
    assert [parent.task for parent in run.store.certificate("f").reads] == ["c", "b"]
    assert problems(folder) == {}
    forget(folder, "a")
    assert problems(folder) == {}


def test_banks_that_are_not_in_the_stream_can_be_read(backbone_folder: Folder, parents: Path, fused_run: Path) -> None:
    run = learn(stream(backbone_folder(), [fused()], bank=BANK, training=TRAINING), parents)
    assert bank_digests(run)["f"] == bank_digests(Run(fused_run))["f"]
    # The stream's default ``bank`` can be a fused one too.
    learn(stream(backbone_folder(), [task("g", num_rows=16)], bank=fused()["bank"], training=TRAINING), parents)
    assert [parent.task for parent in Run(parents).store.certificate("g").reads] == ["a", "b"]
    assert problems(parents) == {}


def test_command_learns_a_fused_task_from_its_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows", "rows")
    text = f"{{name: h, kind: classification, data: {tmp_path / 'rows'}, bank: {{preset: fusion, fuse: [b, a]}}}}"
    (tmp_path / "h.yaml").write_text(text)
    assert main(["learn", str(folder), str(tmp_path / "h.yaml"), "--quiet"]) == 0, capsys.readouterr().err
    assert [parent.task for parent in Store(folder).certificate("h").reads] == ["b", "a"]
    assert main(["learn", str(folder), str(tmp_path / "h.yaml"), "--bank.fuse", "[a]", "--dry-run"]) == 2
    assert "fuse needs at least two tasks, got 1: to use one bank, write start_from" in capsys.readouterr().err


def test_missing_bank_is_noticed_by_its_readers(folder: Path) -> None:
    shutil.rmtree(folder / "banks" / "a")
    found = problems(folder)
    assert found.keys() == {"a", "f"}
    says = f"task 'f' reads the bank of 'a', which is missing in {folder}. Restore it from a copy of the folder."
    assert found["f"] == says
    # This is also noticed without a backbone, when no probe is replayed.
    assert says in check_task(Store(folder), "f", None).problems
    with pytest.raises(StoreError, match="task 'f' reads the bank of 'a', which is missing"):
        Run(folder).predict("w3", "f")
    assert Run(folder).predict("w3", "b").value is not None


def test_bank_with_another_digest_is_noticed_by_its_readers(folder: Path) -> None:
    store = Store(folder)
    change_tensors(folder / "banks" / "a" / "bank.safetensors", nudge("modifications.0.layer_0.ffn.up.weight"))
    damaged = problems(folder)
    assert damaged.keys() == {"a", "f"}
    assert damaged["f"].startswith("task 'f' reads other banks: task 'a': ")
    # The certificate is sealed again, as an attacker who knows the format could do.
    other = "0" * 64
    edit(folder / "banks" / "a" / "bank.json", sealed=True, onwards=True, digest=other)
    certified = store.certificate("f").reads[0].digest
    says = f"task 'f' reads the bank of 'a' with digest {certified[:12]}, but it now has {other[:12]}, so 'f' would predict"
    assert problems(folder)["f"].startswith(says)
    assert check_task(Store(folder), "f", None, probe=False).problems[0].startswith(says)


def test_certificate_that_names_other_banks_than_its_specification_is_refused(folder: Path) -> None:
    certificate = Store(folder).certificate("f")
    tree = certificate.model_dump(mode="json")
    assert Certificate.model_validate(tree).model_dump() == certificate.model_dump()
    others: list[Any] = [[], tree["reads"][:1], tree["reads"][::-1]]
    for reads in others:
        with pytest.raises(ValueError, match=r"reads: expected the banks of bank\.fuse, a, b"):
            Certificate.model_validate(tree | {"reads": reads})


def test_bank_of_another_form_in_the_place_of_one_that_is_read_is_refused(folder: Path) -> None:
    store = Store(folder)
    wrong = store.certificate("f").bank.model_copy(update={"layers": "0-1"})
    with pytest.raises(StoreError, match="task 'f' reads the bank of 'a', whose modifications or layers differ"):
        read_banks(store, store.certificate("f").model_copy(update={"bank": wrong}), store.certificate("f").reads)


def test_fused_bank_can_be_started_from(backbone_folder: Folder, folder: Path) -> None:
    still = {"learning_rate": 1e-30, "optimizer": "sgd", "weight_decay": 0.0, "select": "last", "epochs": 1}
    child = task("g", num_rows=16, bank={"start_from": "f"}, training=still)
    run = learn(tasks_of(backbone_folder(), fused(), child), folder)
    certificate = run.store.certificate("g")
    assert certificate.parent is not None
    assert (certificate.parent.task, certificate.reads) == ("f", run.store.certificate("f").reads)
    assert tensor_digests(run.store.tensors("g")) == tensor_digests(run.store.tensors("f"))
    assert problems(folder) == {}
    with pytest.raises(InputError, match=r"that read its bank.*: 'f', 'g'"):
        forget(folder, "a")


def test_changed_list_of_banks_is_reported_and_changes_nothing(
    backbone_folder: Folder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bank_files(folder, "a", "b", "f")
    facts = dry_run(Session(tasks_of(backbone_folder()).spec, Store(folder)))
    assert facts[2].parameters["modifications"] == 2 * (3 * 16 * 16 + 16 + 1)
    learn(tasks_of(backbone_folder(), fused(fuse=("b", "a"))), folder, progress=True)
    assert "task 'f' was learned with other settings (bank) and stays unchanged" in capsys.readouterr().err
    assert bank_files(folder, "a", "b", "f") == before

"""Fused banks in a run: what they read is unchanged, is named in the certificate, and cannot be lost unnoticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import ContinualLearner, Run, begin_task, forget, learn, load_backbone
from continual_petl.cli.main import main
from continual_petl.digests import same_bits, tensor_digests
from continual_petl.engine.checks.dry_run import dry_run
from continual_petl.engine.parallel.scheduler import needed
from continual_petl.engine.parallel.staging import commit_staged
from continual_petl.engine.parallel.worker import Worker, brief_of
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.engine.task.finish_task import finish_task
from continual_petl.errors import InputError, StoreError
from continual_petl.heads.words import Answer
from continual_petl.report.facts import read_facts
from continual_petl.report.page.details import _settings as settings_table
from continual_petl.store.certificate.manifest import Manifest
from continual_petl.store.certificate.tensor_file import num_bytes
from continual_petl.store.parents import read_banks
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import SILENT, bank_digests
from tests.engine.parallel_run import DieOnce, files_of
from tests.store.tampering import change_tensors, edit, nudge
from tests.streams_in_code import regression_task, stream, task, write_rows

Folder = Callable[..., Path]
BANK = {"preset": "pfeiffer", "bottleneck": 4}
TRAINING = {"epochs": 2, "batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 2, "head_dropout": 0.3}
PARENTS = [task("a", num_rows=16), regression_task("b", num_rows=16)]


def fused(name: str = "f", *, fuse: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[str, Any]:
    return task(name, num_rows=16, bank={"preset": "fusion", "fuse": list(fuse)}, **more)


def tasks_of(backbone: Path, *tasks: dict[str, Any], **more: Any) -> Any:
    return stream(backbone, [*PARENTS, *(tasks or (fused(),))], **({"bank": BANK, "training": TRAINING} | more))


def bytes_of(folder: Path, *tasks: str) -> dict[str, bytes]:
    return {f"{task}/{path.name}": path.read_bytes() for task in tasks for path in (folder / "banks" / task).iterdir()}


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has learned two tasks to read; tests take copies."""
    folder = tmp_path_factory.mktemp("first") / "run"
    learn(stream(backbone_folder(), PARENTS, bank=BANK, training=TRAINING), folder)
    return folder


@pytest.fixture
def parents(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


@pytest.fixture(scope="module")
def whole(first: Path, backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a fused task; tests take copies."""
    folder = Path(shutil.copytree(first, tmp_path_factory.mktemp("whole") / "run"))
    learn(tasks_of(backbone_folder()), folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def findings(folder: Path) -> dict[str, str]:
    return {check.task: " ".join(check.problems) for check in Run(folder).verify() if not check.ok}


def test_certificate_names_the_banks_that_were_read(
    first: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(folder)
    manifest, a = store.manifest("f"), store.manifest("a")
    assert {parent.task: parent.digest for parent in manifest.reads} == {n: store.manifest(n).digest for n in "ab"}
    assert manifest.bank == a.bank.model_copy(update={"fuse": ("a", "b")})
    assert (manifest.parent, a.reads) == (None, ())
    assert b'"reads"' not in bytes_of(first, "a")["a/bank.json"]
    # Per site 3 D^2 + D + 1 for Q, K, V and the gate, however many banks are read; what is read is not stored again.
    assert manifest.parameters["modifications"] == 2 * (3 * 16 * 16 + 16 + 1)
    assert bytes_of(folder, "a", "b") == bytes_of(first, "a", "b")
    assert all(check.ok for check in Run(folder).verify(data=True))
    assert main(["show", str(folder), "f"]) == 0
    assert "the banks of 'a', 'b'" in capsys.readouterr().out
    facts = next(each for each in read_facts(folder).tasks if each.name == "f")
    cells = [cell.text for row in settings_table(facts).rows for cell in row]
    assert cells[cells.index("reads") + 1] == "'a', 'b'"


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    names=st.permutations(["a", "b", "c"]).map(tuple),
    number=st.integers(2, 3),
    rate=st.sampled_from([1e-3, 0.3]),
    precision=st.sampled_from(["fp32", "bf16"]),
)
def test_learning_a_fused_bank_changes_no_bank_that_it_reads(
    backbone_folder: Folder, first: Path, tmp_path_factory: pytest.TempPathFactory, names: tuple[str, ...], number: int,
    rate: float, precision: str,
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(first, tmp_path_factory.mktemp("property") / "run"))
    third = task("c", num_rows=16)
    learn(tasks_of(backbone_folder(), third), folder)
    before = bytes_of(folder, "a", "b", "c")
    child = fused(fuse=names[:number], training={"learning_rate": rate, "epochs": 1, "precision": precision})
    run = learn(tasks_of(backbone_folder(), third, child), folder)
    assert bytes_of(folder, "a", "b", "c") == before
    assert tuple(parent.task for parent in run.store.manifest("f").reads) == names[:number]
    assert all(check.ok for check in run.verify())


ASK = """
import sys
from continual_petl import Run
for answer in Run(sys.argv[1]).predict(["w3 w12 w4", "w9"], "f"):
    print(answer.value, *(float(each).hex() for each in answer.probabilities.values()))
"""


@pytest.mark.slow
def test_bank_read_in_a_fresh_process_answers_with_the_same_bits(folder: Path) -> None:
    here = ""
    for answer in Run(folder).predict(["w3 w12 w4", "w9"], "f"):
        assert answer.probabilities is not None
        here += " ".join([str(answer.value), *(float(each).hex() for each in answer.probabilities.values())]) + "\n"
    again = subprocess.run([sys.executable, "-c", ASK, str(folder)], capture_output=True, text=True, check=True)
    assert again.stdout == here


def test_fused_bank_answers_otherwise_than_the_backbone_alone(folder: Path) -> None:
    run = Run(folder)
    held = run.session.models.held("f")
    gates = [tensor for name, tensor in held.bank.tensors().items() if name.endswith("gate")]
    assert len(gates) == 2
    assert all(gate.abs() > 1e-3 for gate in gates)
    # What it reads is in memory too.
    stored = [num_bytes(run.store.manifest(name).tensors) for name in ("f", "a", "b")]
    assert held.num_bytes == sum(stored)


def numbers(answer: Answer) -> list[float]:
    return [float(str(answer.value))] if answer.probabilities is None else list(answer.probabilities.values())


def test_rows_of_several_tasks_are_predicted_in_one_call(folder: Path) -> None:
    run = Run(folder)
    rows, tasks = ["w3 w12", "w9", "w5 w40 w2", "w1", "w7 w8"], ["f", "a", "b", "f", "a"]
    for row, name, answer in zip(rows, tasks, run.predict(rows, tasks), strict=True):
        # Batches of different sizes round differently.
        assert numbers(answer) == pytest.approx(numbers(run.predict(row, name)), abs=1e-5)
    for name, answer in run.predict_all("w3 w12", ["a", "f", "b"]).items():
        assert numbers(answer) == pytest.approx(numbers(run.predict("w3 w12", name)), abs=1e-5)


class Stop(L.Callback):
    """End the fused task's training in the middle, as a lost process would."""

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if module.active == "f" and trainer.global_step == 5:
            raise ConnectionError("stop")


@pytest.mark.slow
def test_stopped_fused_task_resumes_to_the_same_bank_unless_a_bank_that_it_reads_changed(
    backbone_folder: Folder, parents: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConnectionError):
        learn(tasks_of(backbone_folder()), parents, callbacks=[Stop()])
    assert (parents / ".progress" / "f" / LAST).exists()
    checkpoint = torch.load(parents / ".progress" / "f" / LAST, weights_only=True)["state_dict"]
    assert not any("down" in name or "up" in name for name in checkpoint)
    stopped = Path(shutil.copytree(parents, tmp_path / "stopped"))
    run = learn(tasks_of(backbone_folder()), parents)
    assert files_of(parents) == files_of(whole)
    # Nothing reads that bank yet, so it may be replaced; the fused task then begins again.
    changed = stream(
        backbone_folder(), [PARENTS[0] | {"training": {"learning_rate": 0.01}}, *PARENTS[1:], fused()], bank=BANK,
        training=TRAINING,
    )  # fmt: skip
    other = learn(changed, stopped, replace=["a"])
    assert bank_digests(other)["f"] != bank_digests(run)["f"]
    assert other.store.manifest("f").reads[0].digest == other.store.manifest("a").digest
    assert all(check.ok for check in other.verify())


@pytest.mark.slow
def test_staged_fused_bank_is_committed_byte_for_byte(backbone_folder: Folder, parents: Path, whole: Path) -> None:
    tasks = tasks_of(backbone_folder())
    session = Session(tasks.spec, Store(parents))
    with session.store.lock():
        session.store.write_stream(dump_stream(tasks.spec))
    report = Worker(brief_of(session, ()), ()).learn("f")
    assert report.state == "learned", report.message
    seconds = commit_staged(session, tasks.spec.tasks[2], report.notices, [], StopRequest())
    finish_task(session, "f", [], seconds, StopRequest())
    # No callback has verified earlier certificates here, which results.jsonl counts.
    assert {k: v for k, v in files_of(parents).items() if k != "results"} == {
        k: v for k, v in files_of(whole).items() if k != "results"
    }


def test_fused_task_waits_for_the_banks_that_it_reads(backbone_folder: Folder, parents: Path) -> None:
    spec = tasks_of(backbone_folder(), task("c"), fused("f", fuse=("c", "a")), task("d")).spec
    needs = needed(Session(spec, Store(parents)), spec.tasks)
    assert needs == {"a": set(), "b": set(), "c": set(), "f": {"a", "c"}, "d": set()}
    # Those learned before are there already.
    assert needed(Session(spec, Store(parents)), spec.tasks[2:])["f"] == {"c"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
@pytest.mark.usefixtures("imported_twice")
def test_two_processes_learn_the_same_fused_bank_after_a_kill(
    backbone_folder: Folder, whole: Path, tmp_path: Path
) -> None:
    run = learn(tasks_of(backbone_folder()), tmp_path / "run", jobs=2, callbacks=[DieOnce(tmp_path / "died", "f")])
    assert (tmp_path / "died").exists()
    assert bank_digests(run) == bank_digests(Run(whole))
    assert {name: data for name, data in files_of(tmp_path / "run").items() if name.startswith("banks/f")} == {
        name: data for name, data in files_of(whole).items() if name.startswith("banks/f")
    }


@pytest.mark.slow
def test_two_devices_share_the_fit_of_a_fused_bank(backbone_folder: Folder, parents: Path, first: Path) -> None:
    trainer = {"devices": 2, "accelerator": "cpu", "strategy": "ddp"}
    run = learn(tasks_of(backbone_folder()), parents, trainer=trainer)
    assert bytes_of(parents, "a", "b") == bytes_of(first, "a", "b")
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "b"])
def test_bank_that_is_read_cannot_be_forgotten_or_replaced(
    backbone_folder: Folder, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tasks_of(backbone_folder(), fused(), fused("g", fuse=("b", "a"))), folder)
    before = bytes_of(folder, "a", "b", "f")
    says = rf"task '{name}' cannot be {{}}: other tasks have fused banks that read its bank.*: 'f', 'g'\. Forget them"
    with pytest.raises(InputError, match=says.format("forgotten")):
        forget(folder, name)
    with pytest.raises(InputError, match=says.format("replaced")):
        learn(tasks_of(backbone_folder(), fused(), fused("g", fuse=("b", "a"))), folder, replace=[name])
    assert main(["forget", str(folder), name]) == 2
    assert "cannot be forgotten" in capsys.readouterr().err
    assert bytes_of(folder, "a", "b", "f") == before
    # The fused tasks themselves can be, and then the others.
    for each in ("g", "f", name):
        forget(folder, each)
    assert findings(folder) == {}


@pytest.mark.slow
def test_fused_task_can_be_replaced_by_one_that_reads_other_banks(backbone_folder: Folder, folder: Path) -> None:
    third = task("c", num_rows=16)
    tasks = stream(backbone_folder(), [*PARENTS, third, fused(fuse=("c", "b"))], bank=BANK, training=TRAINING)
    run = learn(tasks, folder, replace=["f"])
    assert [parent.task for parent in run.store.manifest("f").reads] == ["c", "b"]
    assert findings(folder) == {}
    forget(folder, "a")
    assert findings(folder) == {}


def test_banks_that_are_not_in_the_stream_can_be_read(backbone_folder: Folder, parents: Path, whole: Path) -> None:
    run = learn(stream(backbone_folder(), [fused()], bank=BANK, training=TRAINING), parents)
    assert bank_digests(run)["f"] == bank_digests(Run(whole))["f"]
    # Also as the bank of every task that is added from now on.
    learn(stream(backbone_folder(), [task("g", num_rows=16)], bank=fused()["bank"], training=TRAINING), parents)
    assert [parent.task for parent in Run(parents).store.manifest("g").reads] == ["a", "b"]
    assert findings(parents) == {}


def test_command_learns_a_fused_task_from_its_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows", "rows")
    text = f"{{name: h, kind: classification, data: {tmp_path / 'rows'}, bank: {{preset: fusion, fuse: [b, a]}}}}"
    (tmp_path / "h.yaml").write_text(text)
    assert main(["learn", str(folder), str(tmp_path / "h.yaml"), "--quiet"]) == 0, capsys.readouterr().err
    assert [parent.task for parent in Store(folder).manifest("h").reads] == ["b", "a"]
    assert main(["learn", str(folder), str(tmp_path / "h.yaml"), "--bank.fuse", "[a]", "--dry-run"]) == 2
    assert "fuse needs at least two tasks, got 1: to use one bank, write start_from" in capsys.readouterr().err


def test_banks_in_upper_layers_are_fused_there(backbone_folder: Folder, tmp_path: Path) -> None:
    training = TRAINING | {"prefix_cache": "on", "epochs": 3}
    upper = stream(backbone_folder(), [*PARENTS, fused()], bank=BANK | {"layers": "top-1"}, training=training)
    run = learn(upper, tmp_path / "run")
    assert run.store.manifest("f").bank.layers == "top-1"
    assert {name.split(".")[2] for name in run.store.tensors("f") if "ffn" in name} == {"layer_1"}
    assert all(check.ok for check in run.verify(data=True))
    # Nothing acts in the other layer.
    assert run.ablate("f")[0, 0].relative == 0.0


def test_missing_bank_is_noticed_by_its_readers(folder: Path) -> None:
    shutil.rmtree(folder / "banks" / "a")
    found = findings(folder)
    assert found.keys() == {"a", "b", "f"}  # the chain is broken behind a
    assert "reads the bank" not in found["b"]
    says = f"task 'f' reads the bank of 'a', which is missing in {folder}. Restore it from a copy of the folder."
    assert found["f"] == says
    # Also without the backbone, or without replaying the probe.
    assert says in check_task(Store(folder), "f", None).problems
    with pytest.raises(StoreError, match="task 'f' reads the bank of 'a', which is missing"):
        Run(folder).predict("w3", "f")
    assert Run(folder).predict("w3", "b").value is not None


def test_bank_with_another_digest_is_noticed_by_its_readers(folder: Path) -> None:
    store = Store(folder)
    change_tensors(folder / "banks" / "a" / "bank.safetensors", nudge("modifications.0.layer_0.ffn.up.weight"))
    damaged = findings(folder)
    assert damaged.keys() == {"a", "f"}
    assert damaged["f"].startswith("task 'f' reads other banks: task 'a': ")
    # As someone would change it who knows how certificates are sealed.
    other = "0" * 64
    edit(folder / "banks" / "a" / "bank.json", sealed=True, digest=other)
    certified = store.manifest("f").reads[0].digest
    says = f"task 'f' reads the bank of 'a' with digest {certified[:12]}, but it now has {other[:12]}, so 'f' would predict"
    assert findings(folder)["f"].startswith(says)
    assert check_task(Store(folder), "f", None, probe=False).problems[0].startswith(says)


def test_certificate_that_names_other_banks_than_its_specification_is_refused(folder: Path) -> None:
    manifest = Store(folder).manifest("f")
    tree = manifest.model_dump(mode="json")
    assert Manifest.model_validate(tree).model_dump() == manifest.model_dump()
    others: list[Any] = [[], tree["reads"][:1], tree["reads"][::-1]]
    for reads in others:
        with pytest.raises(ValueError, match=r"reads: expected the banks of bank\.fuse, a, b"):
            Manifest.model_validate(tree | {"reads": reads})


def test_bank_of_another_form_in_the_place_of_one_that_is_read_is_refused(folder: Path) -> None:
    store = Store(folder)
    wrong = store.manifest("f").bank.model_copy(update={"layers": "0-1"})
    with pytest.raises(StoreError, match="task 'f' reads the bank of 'a', whose modifications or layers differ"):
        read_banks(store, "f", wrong, store.manifest("f").reads)


def test_fused_bank_can_be_started_from(backbone_folder: Folder, folder: Path) -> None:
    still = {"learning_rate": 1e-30, "optimizer": "sgd", "weight_decay": 0.0, "select": "last", "epochs": 1}
    child = task("g", num_rows=16, bank={"start_from": "f"}, training=still)
    run = learn(tasks_of(backbone_folder(), fused(), child), folder)
    manifest = run.store.manifest("g")
    assert manifest.parent is not None
    assert (manifest.parent.task, manifest.reads) == ("f", run.store.manifest("f").reads)
    assert tensor_digests(run.store.tensors("g")) == tensor_digests(run.store.tensors("f"))
    assert findings(folder) == {}
    with pytest.raises(InputError, match=r"that read its bank.*: 'f', 'g'"):
        forget(folder, "a")


def test_own_trainer_reads_the_banks_in_memory(backbone_folder: Folder) -> None:
    tasks = tasks_of(backbone_folder())
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    with pytest.raises(
        InputError, match=r"bank\.fuse: the learner has no bank of task 'a' in memory; banks in memory: none"
    ):
        begin_task(learner, tasks, "f")
    for name in ("a", "b"):
        L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=begin_task(learner, tasks, name))
    before = [tensor_digests(learner.bank(name).tensors()) for name in ("a", "b")]
    L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=begin_task(learner, tasks, "f"))
    assert [tensor_digests(learner.bank(name).tensors()) for name in ("a", "b")] == before
    values = dict(learner.bank("f").named_buffers())["modifications.0.layer_1.ffn.up.bias"]
    read = [learner.bank(name).tensors()["modifications.0.layer_1.ffn.up.bias"] for name in ("a", "b")]
    assert same_bits(values, torch.stack(read))
    with pytest.raises(ValueError, match="got 0 banks, but this bank reads 2"):
        learner.add_task(learner.plan.model_copy(update={"name": "g"}))


REFUSED = {
    "later": ([fused("z", fuse=("a", "y")), task("y")], r"task 'z', bank\.fuse: 'y' does not come before this task"),
    "unknown": ([fused(fuse=("a", "bb"))], r"task 'f', bank\.fuse: there is no task 'bb' \(did you mean 'b'\?\), neither"),
    "form": ([task("c", bank="lora"), fused(fuse=("a", "c"))], "the bank of 'c' cannot be fused with others, since its form"),
    "fused": ([fused(), fused("g", fuse=("a", "f"))], "the bank of 'f' cannot be fused with others, since it is itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("act", [learn, lambda tasks, folder: dry_run(Session(tasks.spec, Store(folder)))])
def test_impossible_fusion_is_refused_before_training(
    backbone_folder: Folder, tmp_path: Path, case: str, act: Any
) -> None:
    tasks, says = REFUSED[case]
    with pytest.raises(InputError, match=says):
        act(tasks_of(backbone_folder(), *tasks), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_task_cannot_read_its_own_bank(backbone_folder: Folder) -> None:
    with pytest.raises(ValueError, match=r"tasks\.2\.bank\.fuse: a task cannot read its own bank: name earlier tasks"):
        tasks_of(backbone_folder(), fused(fuse=("a", "f")))


def test_changed_list_of_banks_is_reported_and_changes_nothing(
    backbone_folder: Folder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(folder, "a", "b", "f")
    facts = dry_run(Session(tasks_of(backbone_folder()).spec, Store(folder)))
    assert facts[2].modifications == 2 * (3 * 16 * 16 + 16 + 1)
    learn(tasks_of(backbone_folder(), fused(fuse=("b", "a"))), folder, progress=True)
    assert "task 'f' was learned with other settings (bank) and stays unchanged" in capsys.readouterr().err
    assert bytes_of(folder, "a", "b", "f") == before

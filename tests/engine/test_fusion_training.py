"""Training a fused bank gives the same bank in any process and after a stop; impossible fusions are refused first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import ContinualLearner, Run, learn, load_backbone
from continual_petl.digests import same_bits, tensor_digests
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.parallel.worker import commit_staged, setup_of
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.engine.task.finish_task import finish_task
from continual_petl.errors import InputError
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import SILENT, bank_digests
from tests.engine.fused import BANK, PARENTS, TRAINING, fused, tasks_of
from tests.engine.parallel_run import DieOnce, files_of
from tests.store.tampering import bank_files
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.fixture
def parents(parents_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(parents_run, tmp_path / "run"))


class Stop(L.Callback):
    """Abort the fused task's training halfway, as if the process were lost."""

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if module.active == "f" and trainer.global_step == 5:
            raise ConnectionError("stop")


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    names=st.permutations(["a", "b", "c"]).map(tuple),
    number=st.integers(2, 3),
    rate=st.sampled_from([1e-3, 0.3]),
    precision=st.sampled_from(["fp32", "bf16"]),
)
def test_learning_a_fused_bank_changes_no_bank_that_it_reads(
    backbone_folder: Folder, parents_run: Path, tmp_path_factory: pytest.TempPathFactory, names: tuple[str, ...],
    number: int, rate: float, precision: str,
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(parents_run, tmp_path_factory.mktemp("property") / "run"))
    third = task("c", num_rows=16)
    learn(tasks_of(backbone_folder(), third), folder)
    before = bank_files(folder, "a", "b", "c")
    child = fused(fuse=names[:number], training={"learning_rate": rate, "epochs": 1, "precision": precision})
    run = learn(tasks_of(backbone_folder(), third, child), folder)
    assert bank_files(folder, "a", "b", "c") == before
    assert tuple(parent.task for parent in run.store.certificate("f").reads) == names[:number]
    assert all(check.ok for check in run.verify())


@pytest.mark.slow
def test_stopped_fused_task_resumes_to_the_same_bank_unless_a_bank_that_it_reads_changed(
    backbone_folder: Folder, parents: Path, fused_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConnectionError):
        learn(tasks_of(backbone_folder()), parents, callbacks=[Stop()])
    assert (parents / ".progress" / "f" / LAST).exists()
    checkpoint = torch.load(parents / ".progress" / "f" / LAST, weights_only=True)["state_dict"]
    assert not any("down" in name or "up" in name for name in checkpoint)
    stopped = Path(shutil.copytree(parents, tmp_path / "stopped"))
    run = learn(tasks_of(backbone_folder()), parents)
    assert files_of(parents) == files_of(fused_run)
    # No committed bank reads "a" yet, so "a" may be replaced; the fused task then starts over.
    changed = stream(
        backbone_folder(), [PARENTS[0] | {"training": {"learning_rate": 0.01}}, *PARENTS[1:], fused()], bank=BANK,
        training=TRAINING,
    )  # fmt: skip
    other = learn(changed, stopped, replace=["a"], discard_progress=True)
    assert bank_digests(other)["f"] != bank_digests(run)["f"]
    assert other.store.certificate("f").reads[0].digest == other.store.certificate("a").digest
    assert all(check.ok for check in other.verify())


@pytest.mark.slow
def test_staged_fused_bank_is_committed_byte_for_byte(backbone_folder: Folder, parents: Path, fused_run: Path) -> None:
    tasks = tasks_of(backbone_folder())
    session = Session(tasks.spec, Store(parents))
    with session.store.lock():
        session.store.write_stream(dump_stream(tasks.spec))
    report = setup_of(session).opened(())("f")
    assert report.state == "learned", report.message
    seconds = commit_staged(session, tasks.spec.tasks[2], report.notices)
    finish_task(session, "f", seconds)
    # ledger.jsonl also records how many earlier certificates the callbacks verified, but there are no callbacks here.
    assert {k: v for k, v in files_of(parents).items() if k != "results"} == {
        k: v for k, v in files_of(fused_run).items() if k != "results"
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_two_processes_learn_the_same_fused_bank_after_a_kill(
    backbone_folder: Folder, fused_run: Path, tmp_path: Path
) -> None:
    run = learn(tasks_of(backbone_folder()), tmp_path / "run", jobs=2, callbacks=[DieOnce(tmp_path / "died", "f")])
    assert (tmp_path / "died").exists()
    assert bank_digests(run) == bank_digests(Run(fused_run))
    assert {name: data for name, data in files_of(tmp_path / "run").items() if name.startswith("banks/f")} == {
        name: data for name, data in files_of(fused_run).items() if name.startswith("banks/f")
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_two_devices_share_the_fit_of_a_fused_bank(backbone_folder: Folder, parents: Path, parents_run: Path) -> None:
    trainer = {"devices": 2, "accelerator": "cpu", "strategy": "ddp"}
    run = learn(tasks_of(backbone_folder()), parents, trainer=trainer)
    assert bank_files(parents, "a", "b") == bank_files(parents_run, "a", "b")
    assert all(check.ok for check in run.verify(data=True))


def test_banks_in_upper_layers_are_fused_there(backbone_folder: Folder, tmp_path: Path) -> None:
    training = TRAINING | {"prefix_cache": "on", "epochs": 3}
    upper = stream(backbone_folder(), [*PARENTS, fused()], bank=BANK | {"layers": "top-1"}, training=training)
    run = learn(upper, tmp_path / "run")
    assert run.store.certificate("f").bank.layers == "top-1"
    assert {name.split(".")[2] for name in run.store.tensors("f") if "ffn" in name} == {"layer_1"}
    assert all(check.ok for check in run.verify(data=True))
    # The bank has no changes in layer 0.
    assert run.ablate("f")[0, 0].relative == 0.0


def test_custom_trainer_reads_the_banks_in_memory(backbone_folder: Folder) -> None:
    tasks = tasks_of(backbone_folder())
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    with pytest.raises(
        InputError, match=r"bank\.fuse: the learner has no bank of task 'a' in memory; banks in memory: none"
    ):
        learner.begin(tasks, "f")
    for name in ("a", "b"):
        L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=learner.begin(tasks, name))
    before = [tensor_digests(learner.bank(name).tensors()) for name in ("a", "b")]
    L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=learner.begin(tasks, "f"))
    assert [tensor_digests(learner.bank(name).tensors()) for name in ("a", "b")] == before
    values = dict(learner.bank("f").named_buffers())["modifications.0.layer_1.ffn.up.bias"]
    read = [learner.bank(name).tensors()["modifications.0.layer_1.ffn.up.bias"] for name in ("a", "b")]
    assert same_bits(values, torch.stack(read))
    with pytest.raises(ValueError, match="got 0 banks, but this bank reads 2"):
        learner.add_task(learner.plan.model_copy(update={"task": "g"}))


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
    with pytest.raises(ValueError, match=r"tasks\.2\.bank\.fuse \(task f\): a task cannot read its own bank"):
        tasks_of(backbone_folder(), fused(fuse=("a", "f")))

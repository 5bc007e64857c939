"""Tasks on two DDP processes: both end with the same bank, whose scores are those computed by one process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from continual_petl import ContinualLearner, InputError, Interrupted, IsolationError, learn, load_backbone
from continual_petl.engine.parallel import ddp as ranks_module
from continual_petl.engine.parallel.ddp import LocalRanks
from continual_petl.engine.parallel.processes import WorkerDied
from continual_petl.engine.parallel.worker import Report, setup_of
from continual_petl.engine.session import Session
from continual_petl.engine.sharded import shard
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.trainers import num_processes
from continual_petl.store.store import Store
from tests.small import small
from tests.streams_in_code import regression_task, stream, task, task_of_kind
from tests.tiny import make_model

Folder = Callable[..., Path]

TWO = {"devices": 2, "accelerator": "cpu", "strategy": "ddp"}
TRAINING = {"batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 2, "head_dropout": 0.3, "epochs": 2}
TASKS: list[dict[str, Any]] = [
    task("one", num_rows=24),
    regression_task("two", num_rows=24, bank="bitfit"),
    task("three", num_rows=24, bank={"start_from": "one"}, training={"select": "last"}),
]


class Notes(L.Callback):
    """Record the seed and rows of every step and the validation scores in each process; kill one process on request."""

    def __init__(self, folder: Path, die_in: str = "") -> None:
        self.folder, self.die_in = str(folder), die_in

    def _say(self, trainer: L.Trainer, module: Any, what: str, value: Any) -> None:
        with Path(self.folder, f"{module.plan.name}.{trainer.global_rank}.{what}").open("a") as file:
            file.write(json.dumps(value) + "\n")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._say(trainer, pl_module, "steps", [torch.initial_seed(), batch["index"].tolist()])
        struck = pl_module.plan.name == self.die_in and trainer.global_step == 3 and trainer.global_rank == 1
        marker = Path(self.folder, "died")
        if struck and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        found = {name[4:]: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        self._say(trainer, pl_module, "scores", found)


class Held(L.Callback):
    """Record how many parameters of the backbone each process holds while it trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *arguments: Any) -> None:
        parts = [p.to_local() if hasattr(p, "to_local") else p for p in pl_module.model.parameters()]
        Path(self.folder, f"held.{trainer.global_rank}").write_text(str(sum(part.numel() for part in parts)))


def seen(folder: Path, task: str, what: str) -> list[list[Any]]:
    """Return what each of the two processes recorded."""
    files = [(folder / f"{task}.{rank}.{what}").read_text() for rank in (0, 1)]
    return [[json.loads(line) for line in text.splitlines()] for text in files]


def told(tmp_path: Path, backbone: Path) -> LocalRanks:
    session = Session(stream(backbone, TASKS[:1]).spec, Store(tmp_path / "run"))
    return LocalRanks(setup_of(session), 2)


def test_different_banks_across_ranks_are_an_error(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = told(tmp_path, backbone_folder())
    reports = [Report(task="one", state="learned", digest=digest * 64) for digest in "ab"]
    monkeypatch.setattr(ranks, "_fit", lambda task, request: reports)
    with pytest.raises(IsolationError, match=r"ended with different banks \(digests aaaaaaaaaaaa, bbbbbbbbbbbb\)"):
        ranks.fit("one", StopRequest())


def test_repeatedly_killed_ranks_are_given_up(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, times = told(tmp_path, backbone_folder()), []

    def die(task: str, request: StopRequest) -> list[Report]:
        times.append(task)
        raise WorkerDied

    monkeypatch.setattr(ranks, "_fit", die)
    with pytest.raises(Interrupted, match="task 'one': one of the 2 processes that share it was killed 3 times"):
        ranks.fit("one", StopRequest())
    assert times == ["one"] * 3


def test_ranks_are_killed_if_one_fails_to_start(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Any]] = []

    class Cut:
        """The first process already trains and would wait forever for the second, which never starts."""

        def __init__(self, setup: Any, environment: dict[str, str]) -> None:
            self.rank = environment["LOCAL_RANK"]

        def start(self) -> None: ...

        def submit(self, task: str) -> Future[Report]:
            if self.rank == "1":
                raise KeyboardInterrupt
            return Future()

        def signal(self, number: int) -> None:
            asked.append((self.rank, number))

        def close(self) -> None:
            asked.append((self.rank, "close"))

    monkeypatch.setattr(ranks_module, "Slot", Cut)
    ranks = told(tmp_path, backbone_folder())
    with pytest.raises(KeyboardInterrupt):
        ranks.fit("one", StopRequest())
    ranks.close()
    assert asked == [("0", signal.SIGKILL), ("0", "close"), ("1", signal.SIGKILL), ("1", "close")]


@pytest.mark.parametrize("dies", [True, False])
def test_rank_failing_after_another_was_killed_is_not_a_task_failure(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    class Place:
        """The first process reports a reset connection; a moment later, the second turns out to have been killed."""

        def __init__(self, setup: Any, environment: dict[str, str]) -> None:
            self.rank = environment["LOCAL_RANK"]

        def start(self) -> None: ...

        def submit(self, task: str) -> Future[Report]:
            future: Future[Report] = Future()
            if self.rank == "0":
                future.set_result(Report(task=task, state="failed", error="RuntimeError", message="Connection reset"))
            elif dies:
                threading.Timer(0.3, future.set_exception, [BrokenProcessPool()]).start()
            return future

        def result(self, future: Future[Report]) -> Report:
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise WorkerDied from error

        def signal(self, number: int) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(ranks_module, "Slot", Place)
    monkeypatch.setattr(ranks_module, "_GRACE", 60.0 if dies else 0.0)
    ranks = told(tmp_path, backbone_folder())
    error, message = (Interrupted, "was killed 3 times") if dies else (RuntimeError, "Connection reset")
    with pytest.raises(error, match=message):
        ranks.fit("one", StopRequest())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("imported_twice")
def test_three_tasks_in_sequence_on_two_ranks(
    backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = stream(backbone_folder(), TASKS, training=TRAINING)
    run = learn(tasks, tmp_path / "run", trainer=TWO, callbacks=[Notes(tmp_path, die_in="two")])
    assert (tmp_path / "died").exists()
    assert "task 'two': one of its processes was killed; it resumes" in caplog.text
    assert all(check.ok for check in run.verify(data=True))
    for name in ("one", "two", "three"):
        certificate = run.store.certificate(name)
        assert (
            certificate.notices[-1] == f"task {name!r} was learned by 2 processes: each step took 2 batches of 5 rows"
        )
        first, second = seen(tmp_path, name, "scores")
        assert first == second, "the ranks saw different scores"
        history = run.store.history(name)
        assert history is not None
        assert [point.scores for point in history.curve.scores] == first
        assert [point.step for point in history.curve.losses] == [1, 2, 3, 4, 5, 6]
        last = certificate.training.select == "last"
        chosen = first[-1] if last else max(first, key=lambda scores: scores[certificate.metric])
        # The scores in the certificate were computed by one process, in other batches, so their last bits may differ.
        assert certificate.scores["validation"].scores == pytest.approx(chosen, abs=1e-6)
        steps = seen(tmp_path, name, "steps")
        # 24 rows make five batches of at most 5, so two processes take three steps in each of the two epochs.
        assert [len({seed for seed, _ in step}) for step in steps] == [6, 6]
        assert not {seed for seed, _ in steps[0]} & {seed for seed, _ in steps[1]}, "the ranks share dropout seeds"
        assert all(mine[1] != other[1] for mine, other in zip(*steps, strict=False)), "the ranks got the same rows"


def test_what_cannot_be_divided_is_refused(backbone_folder: Folder) -> None:
    tasks = [task("one", num_rows=24, bank="full")]
    with pytest.raises(InputError, match=r"strategy: got fsdp2, which divides the backbone.*, but devices is 1"):
        num_processes(stream(backbone_folder(), tasks, trainer=TWO | {"devices": 1, "strategy": "fsdp2"}).spec)
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    learner.begin(stream(backbone_folder(), tasks), "one")
    with pytest.raises(InputError, match=r"the bank has its own version of whole matrices .* write strategy: ddp"):
        shard(learner.backbone, learner.active_bank, "cpu", 2)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_steps_of_two_processes_are_those_of_larger_batches(
    backbone_folder: Folder, tmp_path: Path, strategy: str
) -> None:
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "head_dropout": 0.0}
    training = plain | {"epochs": 2, "batch_size": 4, "select": "last", "learning_rate": 0.1}
    tasks = [task_of_kind("causal-lm", "texts", num_rows=17, max_target_length=8, bank=small("lora"))]
    banks, losses = [], []
    # 17 rows make 5 batches, so one of two processes repeats a batch.
    for name, given in (
        ("two", {"trainer": TWO | {"strategy": strategy}, "training": training | {"accumulate": 2}}),
        ("one", {"training": training | {"accumulate": 4}}),
    ):
        run = learn(stream(backbone_folder("llama"), tasks, **given), tmp_path / name, progress=False)
        banks.append(run.store.tensors("texts"))
        losses.append([point.loss for point in run.store.history("texts").curve.losses])
    for name, tensor in banks[1].items():
        # float32: sums are taken in another order
        torch.testing.assert_close(banks[0][name], tensor, atol=1e-5, rtol=1e-4)
    assert len(losses[0]) < len(losses[1]), "a range of the curve is one batch of each process"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_sharded_backbone_trains_the_same_banks(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [
        task_of_kind("causal-lm", "texts", num_rows=21, max_target_length=8, bank=small("lora")),
        task("labels", num_rows=24, training={"gradient_checkpointing": True}),
    ]
    banks, notices, held = [], [], []
    for strategy in ("ddp", "fsdp2"):
        given = {"trainer": TWO | {"strategy": strategy}, "training": {"epochs": 2}}
        run = learn(
            stream(backbone_folder("llama"), tasks, **given),
            tmp_path / strategy,
            callbacks=[Held(tmp_path)],
            progress=False,
        )
        banks.append([run.store.certificate(name).digest for name in ("texts", "labels")])
        notices.append(run.store.certificate("texts").notices)
        held.append([int((tmp_path / f"held.{rank}").read_text()) for rank in (0, 1)])
        assert all(check.ok for check in run.verify(data=True))
    # A gathered matrix has the same bits as the whole one, and sums are taken in the same order.
    assert banks[0] == banks[1]
    layers = make_model("llama").get_submodule("model.layers")
    matrices = sum(p.numel() for p in layers.parameters() if p.ndim > 1)
    assert held[1] == [whole - matrices // 2 for whole in held[0]]
    assert any("each with a part of the backbone (fsdp2)" in notice for notice in notices[1])

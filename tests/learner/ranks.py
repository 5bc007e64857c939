"""Two ranks that learn tasks with `learner.begin` and a custom Trainer.

They are forked, so that torch is not imported again, and connect as under torchrun. Each writes its results to
OUT/STRATEGY.RANK.json, and the warnings that it got to OUT/STRATEGY.RANK.warnings.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch

from continual_petl import ContinualLearner, NoForgetting, commit, load_backbone
from continual_petl.digests import combined_digest, tensor_digests
from tests.desk import SILENT
from tests.streams_in_code import regression_task, stream, task

TASKS = [
    task("one", num_rows=24),
    regression_task("two", num_rows=24, bank="bitfit"),
    task("three", num_rows=24, bank={"start_from": "one"}),
]
TRAINING = {"batch_size": 5, "learning_rate": 0.05, "head_dropout": 0.3}


class Seeds(L.Callback):
    """Record torch's seed in every step."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen.append(torch.initial_seed())


def learn_all(backbone: Path, strategy: str, devices: int, folder: Path | None = None) -> list[dict[str, Any]]:
    """Learn three tasks; return each bank's digest, with the validation scores and seeds in this process.

    The first process commits them into a run folder, if there is one.
    """
    tasks = stream(backbone, TASKS, training=TRAINING)
    learner = ContinualLearner(load_backbone(str(backbone), precision="fp32", pooling="mean"))
    found = []
    for each in tasks:
        data, seeds = learner.begin(tasks, each), Seeds()
        trainer = L.Trainer(
            **SILENT, max_epochs=2, accelerator="cpu", devices=devices, strategy=strategy, num_sanity_val_steps=0,
            callbacks=[seeds, NoForgetting()],
        )  # fmt: skip
        trainer.fit(learner, datamodule=data)
        digest = combined_digest(tensor_digests(learner.active_bank.tensors()))
        scores = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        if folder is not None and trainer.is_global_zero:
            commit(learner, data, folder)
        found.append({"digest": digest, "scores": scores, "seeds": seeds.seen})
    return found


def run_two(backbone: Path, out: Path, *strategies: str) -> None:
    """Run two processes for each strategy."""
    for strategy in strategies:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [_fork(rank, port, backbone, out, strategy) for rank in (0, 1)]
        for child in children:
            os.waitpid(child, 0)


def _fork(rank: int, port: int, backbone: Path, out: Path, strategy: str) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), WORLD_SIZE="2", NODE_RANK="0"
    )
    found: Any = "the process ended without a result"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = learn_all(backbone, strategy, 2, out / f"{strategy}.run")
        (out / f"{strategy}.{rank}.warnings").write_text("\n".join(str(warning.message) for warning in told))
    except Exception as error:
        found = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        try:
            (out / f"{strategy}.{rank}.json").write_text(json.dumps(found))
        finally:
            os._exit(0)  # whatever happens, the child must not continue as a second pytest

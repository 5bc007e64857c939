"""An out-of-memory error names the batch and how to reduce it; the run resumes from its checkpoint."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import ContinualLearner, InputError, learn
from continual_petl.backbones.weights import ran_out
from continual_petl.learner.memory import oom_reported
from continual_petl.predictor import predictor
from continual_petl.streams.stream import TaskStream
from tests.desk import Desk, bank_digests
from tests.streams_in_code import stream, task, task_of_kind

Folder = Callable[..., Path]
ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("not enough memory: you tried to allocate 99 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)
TRAINING = {"batch_size": 5, "eval_batch_size": 7, "accumulate": 2, "checkpoint_every": 1}
TASKS = [task("one", num_rows=20)]


class Fails:
    """Replaces a function; raises an out-of-memory error on its n-th call."""

    def __init__(self, real: Any, error: BaseException, call: int = 1) -> None:
        self._real, self._error, self._left = real, error, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise self._error
        return self._real(*args, **kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else lambda *args, **kwargs: self(owner, *args, **kwargs)


def tasks_of(backbone: Path) -> TaskStream:
    return stream(backbone, TASKS, training=TRAINING)


PLACES: dict[str, tuple[Any, str, int]] = {
    "forward": (ContinualLearner, "_loss", 4),
    "backward": (torch.Tensor, "backward", 4),
    "optimizer step": (torch.optim.AdamW, "step", 2),
    "validation": (ContinualLearner, "_score", 2),
    "evaluation of a split": (ContinualLearner, "_respond", 8),
}
LEARNING = r"task 'one': memory ran out in a batch of 5 rows x \d+ tokens \(the .*training\.batch_size \(it is 5; "
ANSWERING = r"task 'one': memory ran out in a batch of [27] rows x \d+ tokens .*training\.eval_batch_size \(it is 7\)"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_oom_error_reports_the_batch_and_the_run_can_resume(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    whole = bank_digests(learn(tasks_of(backbone_folder()), tmp_path / "whole"))
    where, name, call = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Fails(getattr(where, name), ERRORS[0], call))
        learns = place in ("forward", "backward", "optimizer step")
        with pytest.raises(InputError, match=LEARNING if learns else ANSWERING):
            learn(tasks_of(backbone_folder()), tmp_path / "run")
    assert bank_digests(learn(tasks_of(backbone_folder()), tmp_path / "run")) == whole


def test_oom_error_with_a_custom_trainer(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    monkeypatch.setattr(ContinualLearner, "_loss", Fails(ContinualLearner._loss, ERRORS[2], 2))
    with pytest.raises(InputError, match=LEARNING):
        desk.fit("one")


def test_oom_while_moving_a_batch_is_reported(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    desk.learner.add_task(desk.plans["one"])
    monkeypatch.setattr(torch.Tensor, "to", Fails(torch.Tensor.to, ERRORS[0], 1))
    with pytest.raises(InputError, match=LEARNING):
        desk.learner.transfer_batch_to_device(desk.batch("one") | _five(), torch.device("cpu"), 0)


def _five() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(5, 3, dtype=torch.int64)}


@pytest.mark.slow
def test_oom_during_prediction_and_generation_is_reported(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = stream(backbone_folder("t5"), [task_of_kind("seq2seq", "one", num_rows=8)], training={"epochs": 1})
    with monkeypatch.context() as patch:
        patch.setattr("continual_petl.learner.respond.generate", Fails(None, ERRORS[1], 1))
        with pytest.raises(
            InputError, match=r"MemoryError.*eval_batch_size \(it is 8\), generation\.max_new_tokens or"
        ):
            learn(tasks, tmp_path / "run")
    run = learn(tasks, tmp_path / "run")
    monkeypatch.setattr(predictor, "respond", Fails(None, ERRORS[0], 1))
    with pytest.raises(InputError, match=r"a batch of 2 rows x \d+ tokens .*Lower batch_size \(it is 32\)"):
        run.predict(["a b", "c d"], "one")


@pytest.mark.parametrize("error", ERRORS)
def test_known_oom_messages_are_recognised(error: BaseException) -> None:
    assert ran_out(error)
    with pytest.raises(InputError, match="task 'x': memory ran out in a batch of 2 images of 3 x 4 x 4"):  # noqa: SIM117
        with oom_reported("x", {"pixel_values": torch.zeros(2, 3, 4, 4)}, "this"):
            raise error


def test_other_errors_are_unchanged() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), oom_reported("x", {}, "this"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert not ran_out(ValueError("out of memory"))
    assert [ran_out(OSError(number, "")) for number in (errno.ENOMEM, errno.ENOENT)] == [True, False]

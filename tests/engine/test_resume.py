"""A task interrupted anywhere and resumed ends with the same bank as an uninterrupted one."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from safetensors.torch import load_file

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.engine.task.checkpoint import BEST, LAST
from continual_petl.engine.task.learn_task import _Patience
from continual_petl.errors import Interrupted
from continual_petl.learner import ContinualLearner
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]

# 24 rows in batches of 5: five batches an epoch (0-4 and 5-9), the last with 4 rows.
ROWS, TRAINING = 24, {"batch_size": 5, "learning_rate": 0.05}
DROPOUT = {"backbone_dropout": True, "head_dropout": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout, last bank": {**DROPOUT, "select": "last", "schedule": "constant"},
    "accumulate, dropout": {**DROPOUT, "accumulate": 2},
    "sgd, a checkpoint every step, restarts": {
        "optimizer": "sgd",
        "checkpoint_every": 1,
        "layer_decay": 0.5,
        "schedule": {"name": "cosine_with_restarts", "num_cycles": 2},
    },
    "seven steps": {"max_steps": 7, "select": "last", "schedule": "constant"},
}


class SignalAt(L.Callback):
    """Raise a signal at the start of a training batch, counted over all epochs."""

    def __init__(self, batch: int, number: int = signal.SIGINT) -> None:
        self._batch, self._number = batch, number

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch * trainer.num_training_batches + batch_idx == self._batch:
            signal.raise_signal(self._number)


class Count(L.Callback):
    batches = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.batches += 1


def tasks_of(backbone: Path, settings: str = "plain") -> TaskStream:
    return stream(backbone, [task("one", num_rows=ROWS)], training=TRAINING | SETTINGS[settings])


@pytest.fixture
def uninterrupted(backbone_folder: Folder, learned_runs: LearnedRuns) -> Callable[[str], dict[str, str]]:
    return lambda settings: bank_digests(Run(learned_runs(tasks_of(backbone_folder(), settings))))


def _slow(cases: Sequence[object]) -> list[Any]:
    return [
        pytest.param(*case, marks=pytest.mark.slow)
        if isinstance(case, tuple)
        else pytest.param(case, marks=pytest.mark.slow)
        for case in cases
    ]


# Batches 0, 3 and 4 of the first epoch (first, middle, last), and 5, 7 and 9 of the second.


@pytest.mark.parametrize(
    ("settings", "batch"),
    [
        *[("accumulate, dropout", batch) for batch in (4, 5)],
        *_slow([("accumulate, dropout", batch) for batch in (0, 3, 7, 9)]),
        *_slow([("dropout, last bank", 4), ("dropout, last bank", 9)]),
        ("plain", 4),
        *_slow([("plain", 9)]),
        ("sgd, a checkpoint every step, restarts", 3),
        *_slow([("sgd, a checkpoint every step, restarts", 5)]),
        *[("seven steps", batch) for batch in (4, 6)],
        *_slow([("seven steps", 5)]),
    ],
)
def test_interrupted_run_equals_uninterrupted_run(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str]], settings: str, batch: int
) -> None:
    tasks, run_dir = tasks_of(backbone_folder(), settings), tmp_path / "run"
    number = signal.SIGTERM if batch % 2 else signal.SIGINT
    with pytest.raises(Interrupted, match=r"task 'one' was stopped.*the same command resumes") as stopped:
        learn(tasks, run_dir, callbacks=[SignalAt(batch, number)])
    assert stopped.value.signal_number == number
    assert (run_dir / ".progress" / "one" / LAST).is_file()
    assert Run(run_dir).store.tasks == []
    count = Count()
    assert bank_digests(learn(tasks, run_dir, callbacks=[count])) == uninterrupted(settings)
    # No batch is learned twice. If a step takes two batches, the stop waits for the end of the step.
    waited = settings.startswith("accumulate") and batch in (0, 5, 7)
    assert count.batches == (7 if settings == "seven steps" else 10) - (batch + 1) - waited
    assert not (run_dir / ".progress" / "one").exists()


@pytest.mark.slow
def test_interruption_in_every_batch_gives_the_same_bank(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str]]
) -> None:
    tasks = tasks_of(backbone_folder(), "dropout, last bank")
    for batch in range(10):
        with pytest.raises(Interrupted):
            learn(tasks, tmp_path / "run", callbacks=[SignalAt(batch)])
    assert bank_digests(learn(tasks, tmp_path / "run")) == uninterrupted("dropout, last bank")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [3, 9])
def test_early_stopped_fit_is_not_resumed(backbone_folder: Folder, tmp_path: Path, batch: int) -> None:
    """No epoch improves enough on the first, so training ends after the second of six; the signal comes in one of the two."""
    tasks = stream(
        backbone_folder(), [task("one", num_rows=ROWS)], training={**TRAINING, "epochs": 6, "select": "last"}
    )

    def learned(folder: str, *more: L.Callback) -> dict[str, str]:
        stop = EarlyStopping("val/accuracy", mode="max", patience=1, min_delta=0.9)
        return bank_digests(learn(tasks, tmp_path / folder, callbacks=[stop, *more]))

    count = Count()
    whole = learned("whole", count)
    assert count.batches == 10
    with pytest.raises(Interrupted):
        learned("run", SignalAt(batch))
    assert learned("run") == whole


def test_patience_ends_a_fit_that_no_longer_improves(backbone_folder: Folder, tmp_path: Path) -> None:
    """The rate is too low to change a score, so the first of six epochs stays the best; the signals come in later ones."""

    def learned(folder: str, patience: int | None, *callbacks: L.Callback) -> Run:
        training = {**TRAINING, "epochs": 6, "learning_rate": 1e-9} | (
            {} if patience is None else {"patience": patience}
        )
        tasks = stream(backbone_folder(), [task("one", num_rows=ROWS)], training=training)
        return learn(tasks, tmp_path / folder, callbacks=list(callbacks))

    whole = learned("whole", 2)
    history = whole.store.history("one")
    assert history is not None
    assert len(history.curve.scores) == 3
    assert whole.store.certificate("one").training.patience == 2
    other = learned("lightning", None, EarlyStopping("val/accuracy", mode="max", patience=2))
    assert bank_digests(whole) == bank_digests(other)
    both = learned("both", 2, EarlyStopping("val/accuracy", mode="max", patience=5))
    assert bank_digests(whole) == bank_digests(both)
    for batch in (7, 14):
        with pytest.raises(Interrupted):
            learned(str(batch), 2, SignalAt(batch))
        assert bank_digests(learned(str(batch), 2)) == bank_digests(whole)


def test_patience_counts_anew_while_the_trainer_may_not_stop(backbone_folder: Folder, tmp_path: Path) -> None:
    """Lightning would keep a decision to stop until ``min_epochs``, also if the score is better by then."""
    settings = TRAINING | {"epochs": 12, "batch_size": 5}

    def tasks(**more: Any) -> TaskStream:
        trainer = {"trainer": {"min_epochs": more.pop("min_epochs")}} if more else {}
        return stream(backbone_folder(), [task("one", num_rows=ROWS)], training=settings | more, **trainer)

    def scores(run: Run) -> list[float | None]:
        return [point.scores["accuracy"] for point in run.store.history("one").curve.scores]

    every = scores(learn(tasks(), tmp_path / "every"))
    best, since, may_stop = -1.0, 0, list[bool]()
    for score in every:
        assert score is not None
        best, since = max(best, score), 0 if score > best else since + 1
        may_stop.append(since >= 1)
    # The first epoch that is better than the best one before it, although an earlier one was not.
    least = next(n for n in range(1, len(every)) if not may_stop[n] and any(may_stop[:n])) + 1
    ends = next(n for n in range(least, len(every)) if may_stop[n]) + 1
    whole = learn(tasks(patience=1, min_epochs=least), tmp_path / "whole")
    assert scores(whole) == every[:ends]
    for batch in (5 * least - 7, 5 * least - 1):
        folder = tmp_path / str(batch)
        with pytest.raises(Interrupted):
            learn(tasks(patience=1, min_epochs=least), folder, callbacks=[SignalAt(batch)])
        assert bank_digests(learn(tasks(patience=1, min_epochs=least), folder)) == bank_digests(whole)


def test_patience_keeps_the_decision_of_another_callback() -> None:
    def ended(stop: _Patience, *, asked: bool) -> bool:
        trainer: Any = SimpleNamespace(
            should_stop=asked,
            callback_metrics={"val/accuracy": torch.tensor(0.5)},
            fast_dev_run=False,
            sanity_checking=False,
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision),
            current_epoch=1,
        )
        stop.on_train_epoch_end(trainer, L.LightningModule())
        resumed = _Patience("val/accuracy", mode="max", patience=1)
        resumed.load_state_dict(stop.state_dict())
        resumed.on_train_epoch_start(trainer, L.LightningModule())
        return bool(trainer.should_stop)

    for asked in (False, True):
        stop = _Patience("val/accuracy", mode="max", patience=1)
        stop._check_on_train_epoch_end = True
        assert [ended(stop, asked=asked) for _ in range(3)] == [asked] * 3


def test_patience_without_validation_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(
        backbone_folder(), [task("one", num_rows=ROWS)], training={**TRAINING, "patience": 1, "select": "last"}
    )
    with pytest.raises(InputError, match=r"training\.patience: got 1, but trainer\.limit_val_batches is 0"):
        learn(tasks, tmp_path / "run", trainer={"limit_val_batches": 0})


def test_signal_handlers_are_restored(backbone_folder: Folder, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[SignalAt(2, signal.SIGTERM)])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_second_signal_stops_at_once_and_loses_only_unsaved_steps(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str]]
) -> None:
    tasks = tasks_of(backbone_folder())
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        learn(tasks, tmp_path / "run", callbacks=[SignalAt(7), SignalAt(7)])
    assert signal.getsignal(signal.SIGINT) is before
    assert bank_digests(learn(tasks, tmp_path / "run")) == uninterrupted("plain")


def test_signal_during_validation_takes_effect_after_the_epoch(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str]]
) -> None:
    class InValidation(L.Callback):
        def on_validation_batch_start(self, *args: Any, **kwargs: Any) -> None:
            if args[3] == 0:
                signal.raise_signal(signal.SIGTERM)

    tasks = tasks_of(backbone_folder())
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "run", callbacks=[InValidation()])
    assert bank_digests(learn(tasks, tmp_path / "run")) == uninterrupted("plain")


@pytest.mark.slow
def test_signal_between_two_tasks_stops_the_run(backbone_folder: Folder, tmp_path: Path) -> None:
    class AtTaskEnd(StreamCallback):
        def on_task_end(self, *args: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    tasks = stream(backbone_folder(), [task("one", num_rows=ROWS), task("two", num_rows=ROWS)], training=TRAINING)
    with pytest.raises(Interrupted, match="before task 'two'"):
        learn(tasks, tmp_path / "run", callbacks=[AtTaskEnd()])
    run = learn(tasks, tmp_path / "run")
    assert bank_digests(run) == bank_digests(learn(tasks, tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"training": {"learning_rate": 0.01}},
        *_slow(
            [
                {"bank": "lora"},
                {"backbone": {"max_length": 6}},
                {"data": 1},
                {"training": {"epochs": 3}},
                {"seed": 5},
                {"backbone": {"pooling": "first"}},
                {"backbone": {"attention": "sdpa"}},
                {"training": {"max_tokens": 80}},
                {"trainer": {"limit_train_batches": 3}},
            ]
        ),
    ],
)
def test_progress_of_another_task_is_not_resumed(
    backbone_folder: Folder, tmp_path: Path, change: dict[str, Any]
) -> None:
    more = dict(change)
    backbone = {"name": str(backbone_folder()), "pooling": "mean"} | more.pop("backbone", {})
    rows = ROWS + more.pop("data", 0)
    training = TRAINING | more.pop("training", {})
    changed = stream(backbone_folder(), [task("one", num_rows=rows)], backbone=backbone, training=training, **more)
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[SignalAt(7)])
    fresh = bank_digests(learn(changed, tmp_path / "fresh"))
    heard: list[str] = []

    class Listener(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            heard.extend(task.notices)

    saved = {path: path.read_bytes() for path in (tmp_path / "run" / ".progress").rglob("*") if path.is_file()}
    with pytest.raises(
        InputError, match=r"'one': its saved progress \(.*\) cannot be used, because .* changed .*--discard"
    ) as caught:
        learn(changed, tmp_path / "run")
    assert {path: path.read_bytes() for path in saved} == saved
    again = learn(changed, tmp_path / "run", callbacks=[Listener()], discard_progress=True)
    assert bank_digests(again) == fresh
    # The run reports that it discards the saved progress, and why.
    ((group, value),) = change.items()
    cause = next(iter(value)) if isinstance(value, dict) else group
    assert "'one': its saved progress is no longer valid (" in " ".join(heard)
    assert cause in " ".join(heard)
    assert cause in str(caught.value)


def test_copied_run_folder_with_progress_can_be_resumed(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str]]
) -> None:
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "here", callbacks=[SignalAt(7)])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    run = learn(tasks_of(backbone_folder()), tmp_path / "there")
    assert bank_digests(run) == uninterrupted("plain")
    assert all(check.ok for check in run.verify(data=True))


class Epochs(L.Callback):
    """Record the bank's digest and the validation accuracy after every epoch."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.scores: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, ContinualLearner)
        self.digests.append(combined_digest(tensor_digests(pl_module.active_bank.tensors())))
        self.scores.append(float(trainer.callback_metrics["val/accuracy"]))


@pytest.mark.slow
@pytest.mark.parametrize("select", ["best", "last"])
def test_selected_bank_is_committed(backbone_folder: Folder, tmp_path: Path, select: str) -> None:
    epochs = Epochs()
    training = TRAINING | {"epochs": 5, "learning_rate": 0.4, "schedule": "constant", "select": select}
    run = learn(
        stream(backbone_folder(), [task("one", num_rows=ROWS)], training=training), tmp_path, callbacks=[epochs]
    )
    best = epochs.scores.index(max(epochs.scores))
    assert best != 4, "the last epoch must not be the best for this test"
    assert bank_digests(run)["one"] == epochs.digests[best if select == "best" else 4]
    if select == "best":
        assert run.store.certificate("one").scores["validation"].scores["accuracy"] == epochs.scores[best]


def test_no_validation_leaves_no_best_bank(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"training\.select: got 'best', but trainer\.limit_val_batches is 0, so no validation"
    ):
        learn(tasks_of(backbone_folder()), tmp_path / "run", trainer={"limit_val_batches": 0})
    learn(tasks_of(backbone_folder(), "dropout, last bank"), tmp_path / "last", trainer={"limit_val_batches": 0})


def test_trainer_argument_that_would_break_resuming_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trainer\.val_check_interval: not allowed"):
        learn(tasks_of(backbone_folder()), tmp_path / "run", trainer={"val_check_interval": 2})


def test_a_checkpoint_holds_bank_and_optimizer_but_no_backbone(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[SignalAt(7)])
    folder = tmp_path / "run" / ".progress" / "one"
    checkpoint = torch.load(folder / LAST, weights_only=True)
    bank = load_file(folder / BEST)
    assert {name.partition("one.")[2] for name in checkpoint["state_dict"]} == set(bank)
    # The checkpoint contains the bank, AdamW's two moments and bookkeeping. The backbone alone has 29 kB.
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in bank.values())

    def tensors(value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return [tensor for item in values for tensor in tensors(item)]

    assert sum(t.numel() * t.element_size() for t in tensors(checkpoint)) <= 3 * num_bytes + 1000

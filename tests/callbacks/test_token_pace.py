"""The progress lines report the training tokens per second, not counting padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from rich.console import Console

from continual_petl import Interrupted, learn
from continual_petl.callbacks import Progress, progress
from continual_petl.callbacks.progress import TokenPace
from tests.callbacks.test_terminal import Terminal
from tests.engine.test_resume import SignalAt
from tests.streams_in_code import stream, task, task_of_kind


def test_padding_and_batches_without_tokens_do_not_count() -> None:
    pace = TokenPace()
    pace.begin(10.0)
    assert pace.end(lambda: 11.0) is None
    pace.add({"input_ids": torch.zeros(2, 3), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])})
    pace.add({"input_ids": torch.zeros(1, 8), "num_tokens": torch.tensor(6)})
    pace.add({"pixel_values": torch.zeros(1, 3, 8, 8)})
    pace.add(None)
    assert pace.end(lambda: 12.0) == 5.0
    pace.begin(12.0)
    assert pace.end(lambda: 13.0) is None


@pytest.mark.parametrize("packing", [False, True])
def test_every_epoch_has_its_pace(backbone_folder: Callable[..., Path], tmp_path: Path, packing: bool) -> None:
    file = Terminal()
    tasks = stream(backbone_folder("gpt2"), [task_of_kind("causal-lm", "one")], training={"packing": packing})
    learn(tasks, tmp_path / "run", callbacks=[Progress(Console(file=file, width=200))])
    lines = [line for line in file.getvalue().splitlines() if "epoch " in line]
    assert len(lines) == 2
    assert all("s so far, " in line and line.rstrip().endswith(" tokens per second") for line in lines)


def test_a_resumed_epoch_counts_only_its_own_time(
    backbone_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tokens = [1e6], [0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Ticks(L.Callback):
        """A batch takes two seconds."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            clock[0] += 2.0
            tokens[0] += int(batch["attention_mask"].sum())

    file = Terminal()
    tasks = stream(
        backbone_folder(), [task("one", num_rows=40)], training={"batch_size": 8, "epochs": 1, "checkpoint_every": 1}
    )
    lines = Progress(Console(file=file, width=200))
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "run", callbacks=[lines, SignalAt(1), Ticks()])
    for again in (lines, Progress(Console(file=file, width=200))):  # in the same process, or in a new one
        clock[0], tokens[0] = clock[0] + 5e5, 0
        callbacks = [again, Ticks()] if again is not lines else [again, SignalAt(3), Ticks()]
        if again is lines:
            with pytest.raises(Interrupted):
                learn(tasks, tmp_path / "run", callbacks=callbacks)
        else:
            learn(tasks, tmp_path / "run", callbacks=callbacks)
    (line,) = [line for line in file.getvalue().splitlines() if "tokens per second" in line]
    assert f", {tokens[0] / 2:,.0f} tokens per second" in line, "the last of five batches, in two seconds"

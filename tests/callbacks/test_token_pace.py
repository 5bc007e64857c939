"""The progress lines report the training tokens per second, not counting padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from continual_petl import learn
from continual_petl.callbacks import Progress
from continual_petl.callbacks.pace import TokenPace
from tests.callbacks.test_terminal import Terminal
from tests.streams_in_code import stream, task_of_kind


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

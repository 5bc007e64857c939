"""Backbones whose rotary tables change with the length of rows get a maximum length, or are refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as older_spectral_norm

from continual_petl.backbones.backbone import load_backbone
from continual_petl.backbones.mutable_state import moves_in_training
from continual_petl.errors import InputError
from continual_petl.learner.plan import RowFacts, build_bank, plan_task
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import FAMILIES, make_model

Folder = Callable[..., Path]
HALF = [1.0, 1.0, 1.0, 1.0]
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32,
    "short_factor": HALF, "long_factor": [4.0] * 4,
}  # fmt: skip


def with_tables(folder: Path, to: Path, tables: dict[str, Any]) -> str:
    """Copy a Llama with other rotary parameters."""
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": tables}))
    return str(to)


def answers(model: nn.Module, lengths: list[int]) -> list[torch.Tensor]:
    """Return the states of the first five tokens of the same row, cut to each of several lengths."""
    row = torch.arange(64)[None] % 90 + 5
    with torch.no_grad():
        return [model.model(input_ids=row[:, :n]).last_hidden_state[:, :5] for n in lengths]  # type: ignore[operator]


def test_length_dependent_rotary_tables_change(backbone_folder: Folder, tmp_path: Path) -> None:
    """In transformers, such tables depend on earlier rows, so results would too; the next tests show the refusals."""
    long = load_backbone(with_tables(backbone_folder("llama"), tmp_path / "b", LONG), max_length=32)
    before, _, after = answers(long.model, [5, 40, 5])
    assert torch.equal(before, after)
    assert long.changed() == []
    answers(long.model, [40])
    assert long.changed() == ["model.rotary_emb.inv_freq"]
    dynamic = load_backbone(with_tables(backbone_folder("llama"), tmp_path / "d", DYNAMIC))
    answers(dynamic.model, [64])
    assert dynamic.changed() == []
    with torch.no_grad():
        dynamic.model(input_ids=torch.full((1, 70), 10))
    assert dynamic.changed() == ["model.rotary_emb.inv_freq"]


def test_long_rows_are_refused_if_rotary_tables_would_change(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = with_tables(backbone_folder("llama"), tmp_path / "b", LONG)
    with pytest.raises(InputError, match=r"rows may have 64 positions, but its rotary tables .* recomputed beyond 32"):
        load_backbone(folder)
    with pytest.raises(InputError, match=r"Write backbone: \{name: \.\.\., max_length: 32\}, or less"):
        load_backbone(folder, max_length=33)
    backbone = load_backbone(folder, max_length=32)
    assert (backbone.max_length, backbone.fixed_positions) == (32, 32)
    one, *others = answers(backbone.model, [5, 32, 5, 20])
    for other in others:
        torch.testing.assert_close(other, one, atol=1e-6, rtol=0)  # rows of different lengths are rounded differently
    assert backbone.changed() == []


def test_dynamic_tables_are_constant_up_to_the_models_length(backbone_folder: Folder, tmp_path: Path) -> None:
    backbone = load_backbone(with_tables(backbone_folder("llama"), tmp_path / "b", DYNAMIC))
    assert (backbone.max_length, backbone.fixed_positions) == (64, 64)
    before = answers(backbone.model, [5, 64, 30])
    assert all(map(torch.equal, answers(backbone.model, [5, 64, 30]), before))
    assert backbone.changed() == []


@pytest.mark.parametrize("tables", [LONG, DYNAMIC])
def test_prompts_and_generated_tokens_count_as_positions(
    backbone_folder: Folder, tmp_path: Path, tables: dict[str, Any]
) -> None:
    fixed = 32 if tables is LONG else 64
    backbone = load_backbone(with_tables(backbone_folder("llama"), tmp_path / "b", tables), max_length=fixed - 4)
    for length, fits in ((4, True), (5, False)):
        tasks = stream(Path(backbone.name), [task("one")], bank={"preset": "prompt", "length": length})
        plan = plan_task(tasks.spec, tasks["one"], backbone, RowFacts(("no", "yes")))
        if fits:
            build_bank(plan, backbone)
            continue
        with pytest.raises(
            InputError, match=f"with a prompt of 5: rows may have {fixed + 1} positions.*shorter prompt"
        ):
            build_bank(plan, backbone)
    wordy = task_of_kind("causal-lm", "one") | {"generation": {"max_new_tokens": fixed}}
    tasks = stream(Path(backbone.name), [wordy])
    with pytest.raises(InputError, match=rf"generation\.max_new_tokens is {fixed} .*has positions for {fixed} tokens"):
        plan_task(tasks.spec, tasks["one"], backbone)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_of_known_families_is_not_treated_as_state(family: str) -> None:
    moving = [type(m).__name__ for m in make_model(family).modules() if moves_in_training(m)]
    assert not any(word in name for name in moving for word in ("Dropout", "Attention", "Layer", "Embeddings"))


@pytest.mark.parametrize(
    ("module", "moves"),
    [
        (nn.BatchNorm1d(2), True),
        (older_spectral_norm(nn.Linear(2, 2)), True),
        (parametrizations.spectral_norm(nn.Linear(2, 2)), True),
        (nn.Dropout(), False),
        (nn.LayerNorm(2), False),
        (nn.Linear(2, 2), False),
        (parametrizations.weight_norm(nn.Linear(2, 2)), False),
    ],
)
def test_state_changed_by_training_mode_is_found(module: nn.Module, moves: bool) -> None:
    assert any(map(moves_in_training, module.modules())) == moves
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for part in module.modules():
        part.training = not moves_in_training(part)
    for _ in range(3):
        module(torch.randn(4, 2))
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())

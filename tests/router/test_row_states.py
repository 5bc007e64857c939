"""The states that the router reads are the mean hidden states that transformers computes for each row alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from continual_petl.backbones.backbone import load_backbone
from continual_petl.router import row_states as states_module
from continual_petl.router import task_sums as module
from continual_petl.router.row_states import layers_to_read, num_layers_of, row_states
from continual_petl.router.task_sums import rows_read
from continual_petl.streams.encoding.rows import TokenisedRows
from tests.encoding import encode_rows
from tests.tiny import FAMILIES, make_tokenizer
from tests.usual import walk

Folder = Callable[..., Path]
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w2 w2"]


def _rows(family: str) -> TokenisedRows:
    return encode_rows("classification", TEXTS, tokenizer=make_tokenizer(family), max_length=16)


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_states_are_mean_hidden_states_of_each_row_alone(family: str, backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    if family == "vit":
        size = backbone.model.config.image_size
        images = np.random.default_rng(0).normal(size=(4, 3, size, size)).astype(np.float32)
        rows = TokenisedRows(
            ids=np.empty(0, np.int32), offsets=np.zeros(5, np.int64), token_types=None, labels=None, pixels=images
        )
    else:
        rows = _rows(family)
    layers = layers_to_read(num_layers_of(backbone), 3)
    seen: list[Any] = []
    paths = [backbone.sites.layers[number - 1].path for number in layers]
    found = row_states(backbone, rows, layers, 0)
    hooks = [
        backbone.model.get_submodule(path).register_forward_hook(
            lambda module, args, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
        for path in paths
    ]
    for number in range(4):
        seen.clear()
        if rows.pixels is not None:
            inputs = {"pixel_values": torch.from_numpy(rows.pixels[number : number + 1].copy())}
        else:
            ids = torch.from_numpy(rows.row(number).ids.astype(np.int64))[None]
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            base = backbone.model.base_model
            whole = base.get_submodule("encoder") if len(backbone.anatomy.stacks) > 1 else base
            whole(**inputs)
        states = [state.double().mean(1).squeeze(0) for state in seen]
        expected = torch.cat([state / state.norm() for state in states])
        torch.testing.assert_close(torch.from_numpy(found[number]), expected, rtol=1e-4, atol=1e-5)
    for hook in hooks:
        hook.remove()
    assert backbone.changed() == []


def test_only_some_rows_are_read_and_always_the_same_ones(
    backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(str(backbone_folder()))
    rows = _rows("bert")
    all_states = row_states(backbone, rows, (1,), 0)
    np.testing.assert_allclose(row_states(backbone, rows.take([3, 0]), (1,), 0), all_states[[3, 0]], atol=1e-6)
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    plan: Any = SimpleNamespace(seed=5, kind="regression")
    first, second = (rows_read(backbone, rows, rows, plan, (1,), 0) for _ in range(2))
    assert len(first.train_NF) == 3
    assert np.array_equal(first.train_NF, second.train_NF)
    assert len(first.validation_NF) == len(rows)


def test_wide_states_are_projected_and_keep_their_distances(
    backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(str(backbone_folder()))
    rows, width = _rows("bert"), backbone.hidden_size
    assert width <= states_module.MAX_WIDTH
    whole = row_states(backbone, rows, (1,), 0)
    monkeypatch.setattr(states_module, "MAX_WIDTH", width - 4)
    states_module.projection.cache_clear()
    projected = row_states(backbone, rows, (1,), 0)
    matrix = states_module.projection(width)
    states_module.projection.cache_clear()
    assert projected.shape == (len(rows), width - 4)
    expected = whole @ matrix
    np.testing.assert_allclose(projected, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)


def test_projection_of_wide_states_hardly_changes_distances() -> None:
    points = np.random.default_rng(1).normal(size=(20, 2000))
    moved = points @ states_module.projection(2000)
    ratio = np.linalg.norm(moved[1:] - moved[0], axis=1) / np.linalg.norm(points[1:] - points[0], axis=1)
    assert abs(ratio - 1).max() < 0.15

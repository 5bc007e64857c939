"""Each pooling does what its name says, with padding on either side, and is refused where it is meaningless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import load_backbone, pool
from continual_petl.errors import InputError
from tests.tiny import FAMILIES

Folder = Callable[..., Path]

MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_matches_its_name(dtype: torch.dtype) -> None:
    states = torch.randn(4, 4, 3).to(dtype)
    output = SimpleNamespace(last_hidden_state=states, pooler_output=states[:, 0] + 1)
    assert torch.equal(pool(output, MASK, "first"), states[:, 0].float())
    assert torch.equal(pool(output, MASK, "pooler"), (states[:, 0] + 1).float())
    assert torch.equal(
        pool(output, MASK, "last"), torch.stack([states[n, t] for n, t in enumerate((2, 3, 3, 1))]).float()
    )
    means = torch.stack([states[n][MASK[n] == 1].float().mean(0) for n in range(4)])
    torch.testing.assert_close(pool(output, MASK, "mean"), means)


def test_pooling_without_mask_uses_all_tokens() -> None:
    output = SimpleNamespace(last_hidden_state=torch.randn(2, 5, 3))
    torch.testing.assert_close(pool(output, None, "mean"), output.last_hidden_state.mean(1))
    assert torch.equal(pool(output, None, "last"), output.last_hidden_state[:, -1])


@pytest.mark.parametrize("family", FAMILIES)
def test_pooling_is_allowed_where_meaningful(backbone_folder: Folder, family: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    allowed = {"first", "mean", "last"}
    if family == "bert":
        allowed.add("pooler")
    elif family == "vit":
        allowed.remove("last")
    elif backbone.anatomy.output_head == "causal":
        allowed.remove("first")
    assert backbone.pooling in allowed
    ways: tuple[Pooling, ...] = ("first", "mean", "last", "pooler")
    for way in ways:
        if way in allowed:
            backbone.check_pooling(way)
        else:
            with pytest.raises(InputError, match=f"pooling: got '{way}', but backbone .*; allowed: '"):
                backbone.check_pooling(way)
    assert set(backbone.poolings()) == allowed


def test_requested_pooling_is_checked_at_loading(backbone_folder: Folder) -> None:
    assert load_backbone(str(backbone_folder("gpt2")), pooling="mean").pooling == "mean"
    with pytest.raises(InputError, match="reads from left to right"):
        load_backbone(str(backbone_folder("gpt2")), pooling="first")

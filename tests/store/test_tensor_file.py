"""Tensors that are read from a file without torch have the same digests and values."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import save

from continual_petl.digests import same_bits, tensor_digest
from continual_petl.store.certificate.tensor_file import read_tensors
from continual_petl.store.certificate.values import Dtype, as_tensors


@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (5,)])
def test_stored_tensor_has_the_same_digest(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    whole = torch.tensor([[0, 1, 0], [1, 1, 0]]) if shape == (2, 3) else torch.ones(shape)
    tensor = whole.to(getattr(torch, dtype))
    (tmp_path / "file").write_bytes(save({"a": tensor, "b": tensor.clone()}))
    stored = read_tensors(tmp_path / "file", 2**20, None, "task 'x'")
    assert stored["a"].digest == tensor_digest(tensor)
    assert same_bits(as_tensors(stored)["b"], tensor)

"""Banks with random values, and mixed batches compared with separate passes of each bank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.mixed.run_mixed import run_mixed
from continual_petl.banks.mixed.stack_cache import StackCache
from tests.tiny import ENCODER_DECODERS, make_bank


def learned_bank(model: PreTrainedModel, choice: Any, seed: int) -> Bank:
    """Return a folded and frozen bank whose values depend on the seed, as if it had been trained."""
    if isinstance(choice, BankSpec):
        bank = Bank(choice, model, Sites(find_anatomy(model.config.model_type), model), nn.Identity())
        bank.initialise(model, seed)
    else:
        bank = make_bank(model, choice, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    bank.fold()
    return bank.requires_grad_(False).eval()


def batch_of(family: str, num_rows: int) -> dict[str, Tensor]:
    """Return padded rows of different lengths."""
    draw = torch.Generator().manual_seed(num_rows)
    if family == "vit":
        return {"pixel_values": torch.randn(num_rows, 3, 8, 8, generator=draw)}
    ids = torch.randint(5, 95, (num_rows, 9), generator=draw)
    mask = (torch.arange(9) < torch.randint(2, 10, (num_rows, 1), generator=draw)).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if family in ENCODER_DECODERS:
        inputs["decoder_input_ids"] = ids.roll(1, dims=1) * mask
    return inputs


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Check that states are equal up to a few float32 rounding errors of values around 1."""
    for mine, own in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, own, atol=1e-6, rtol=2e-6)


def _parts(value: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    return torch.split(value, list(counts))


def together(
    model: PreTrainedModel, family: str, banks: Sequence[Bank], counts: Sequence[int], stacks: StackCache | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the states of each bank's rows from one pass over all rows, and from a separate pass per bank."""
    inputs = batch_of(family, sum(counts))
    found = _parts(run_mixed(model, banks, counts, inputs, stacks).last_hidden_state, counts)
    own: list[Tensor] = []
    with torch.no_grad():
        for bank, *values in zip(banks, *(_parts(value, counts) for value in inputs.values()), strict=True):
            own.append(run(model, bank, dict(zip(inputs, values, strict=True))).last_hidden_state)
    return list(found), own

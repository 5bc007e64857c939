"""A bank's outputs for its rows are the same in every way of running it, and those of its pass computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from continual_petl.backbones.backbone import load_backbone
from continual_petl.banks.attach import run
from continual_petl.banks.states_below import lowest_layer, states_below
from continual_petl.learner.respond import STATES, respond
from continual_petl.learner.task_bank import TaskBank
from tests.learner.passes import task_bank
from tests.learner.test_answer import IDS, MASK, make_bank

Folder = Callable[..., Path]
BATCH = {"input_ids": IDS, "attention_mask": MASK}
BANKS = [
    ("houlsby", "all", "mean", "classification"),
    ("lora", "1", "first", "multilabel"),
    ("lora", "1", "mean", "regression"),
    ("houlsby", "1", "mean", "token-classification"),
    ("full", "1", "mean", "classification"),  # it cannot share a pass
]


@pytest.fixture(scope="module")
def banks(backbone_folder: Folder) -> list[TaskBank]:
    backbone = load_backbone(str(backbone_folder()))
    found = []
    for number, (preset, layers, pooling, kind) in enumerate(BANKS):
        bank = make_bank(backbone, kind, preset, layers=layers)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in bank.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        bank.fold()
        found.append(task_bank(backbone, bank.requires_grad_(False), pooling))
    return found


def by_hand(own: TaskBank) -> Tensor:
    states: Tensor = run(own.backbone.model, own.bank, BATCH).last_hidden_state
    weights = MASK[..., None].float()
    mean = (states * weights).sum(1) / weights.sum(1)
    features = states if own.kind.per_word else states[:, 0] if own.plan.pooling == "first" else mean
    found: Tensor = own.head(features)
    return found


def alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_one_bank_is_computed_as_by_hand(banks: list[TaskBank]) -> None:
    for own in banks:
        (found,) = respond([own], BATCH)
        alike(found, by_hand(own))
        (again,) = respond([own], BATCH, counts=[2])
        assert torch.equal(again, found)


@pytest.mark.parametrize("rows_at_once", [None, 1, 4, 100])
def test_all_banks_on_the_same_rows(banks: list[TaskBank], rows_at_once: int | None) -> None:
    for own, found in zip(banks, respond(banks, BATCH, rows_at_once=rows_at_once), strict=True):
        alike(found, by_hand(own))


def test_each_bank_on_rows_of_its_own(banks: list[TaskBank]) -> None:
    batch = {name: torch.cat([tensor, tensor[1:], tensor]) for name, tensor in BATCH.items()}
    first, second, third = respond([banks[0], banks[1], banks[3]], batch, counts=[2, 1, 2])
    alike(first, by_hand(banks[0]))
    alike(second, by_hand(banks[1])[1:])
    alike(third, by_hand(banks[3]))
    with pytest.raises(ValueError, match="since it has its own weights: run it alone"):
        respond([banks[0], banks[4]], batch, counts=[2, 3])


def test_a_pass_starts_from_states_that_it_can_use(banks: list[TaskBank]) -> None:
    backbone = banks[0].backbone
    states = states_below(backbone.model, backbone.sites, BATCH, 1)
    low, high = banks[0], banks[1]
    given = {**BATCH, STATES: states}
    for layer in (None, 1):
        assert torch.equal(*respond([high], given, states_layer=layer), *respond([high], BATCH))
    assert lowest_layer(low.bank) == 0
    assert torch.equal(*respond([low], given, states_layer=1), *respond([low], BATCH))
    wrong = {**BATCH, STATES: torch.zeros_like(states)}
    assert not torch.allclose(*respond([high], wrong, states_layer=1), *respond([high], BATCH)), "states were not used"
    mixed = respond(
        [low, high], {name: torch.cat([tensor] * 2) for name, tensor in given.items()}, counts=[2, 2], states_layer=1
    )
    for own, found in zip((low, high), mixed, strict=True):
        alike(found, by_hand(own))


def test_texts_are_generated_by_one_bank_alone(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder("gpt2")))
    banks = [task_bank(backbone, make_bank(backbone, kind)) for kind in ("classification", "causal-lm")]
    with pytest.raises(ValueError, match="a causal-lm task cannot share a pass with others: run its bank alone"):
        respond(banks, BATCH, rows_at_once=8)

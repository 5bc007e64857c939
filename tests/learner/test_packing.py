"""Packed rows are learned as if each were alone, for every decoder and every form that supports packing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from continual_petl import InputError, learn
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.heads.generation import GenerationHead
from continual_petl.learner.packing import check_packing
from continual_petl.streams.batches.collate import collate, collate_packed
from continual_petl.streams.batches.packing import Packed
from tests.banks.taken import TAKEN
from tests.desk import Desk, bank_digests
from tests.small import small
from tests.streams.test_packing import rows_of
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import DECODERS, make_bank, make_model
from tests.usual import few, walk

Folder = Callable[..., Path]
CASES = [
    (family, preset) for family, preset in TAKEN if family in DECODERS and preset not in ("prompt", "p_tuning", "probe")
]
TEXT = st.lists(st.integers(4, 90), min_size=1, max_size=6)
TEXTS = st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=6)


def learned(model: Any, bank: Bank, batch: dict[str, Tensor]) -> list[Tensor]:
    """Return the sum of the losses of all target tokens, and the bank's gradients."""
    bank.zero_grad()
    inputs: dict[str, Tensor] = {
        name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch
    }
    logits = run(model, bank, inputs, base=False).logits
    loss = GenerationHead("causal-lm").loss(logits, batch["labels"]) * (batch["labels"][:, 1:] != -100).sum()
    torch.autograd.backward(loss)
    return [loss.detach(), *[torch.zeros(()) if p.grad is None else p.grad.clone() for p in bank.parameters()]]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("family", "preset"), few(CASES, 12))
@settings(max_examples=3, deadline=None, derandomize=True)
@given(texts=TEXTS)
def test_loss_and_gradients_are_sums_over_rows_alone(
    family: str, preset: str, attention: str, texts: list[tuple[list[int], list[int]]]
) -> None:
    model = make_model(family).double().requires_grad_(False)
    model.set_attn_implementation(attention)
    bank = make_bank(model, small(preset)).double()
    for number, parameter in enumerate(bank.parameters()):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        parameter.data.add_(0.05 * noise)
    rows = rows_of(texts)
    order = Packed(lengths=rows.lengths + rows.target_lengths, room=16, batch_size=8, seed=0)
    exact = family == "gpt2" or attention == "sdpa"
    tolerance = 1e-10 if exact else 1e-6
    packed = learned(model, bank, collate_packed(rows, order.epoch(0)[0], 0))
    alone = [learned(model, bank, collate(rows, [number], 0, "causal-lm")) for number in range(len(rows))]
    for found, *parts in zip(packed, *alone, strict=True):
        # Sums over different numbers of rows and keys are rounded differently; eager attention, except GPT-2's, computes the
        # softmax in float32.
        torch.testing.assert_close(found, torch.stack(parts).sum(0), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family", walk(DECODERS, ("gpt2", "llama")))
def test_a_packed_run_is_reproducible_and_recorded(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    tasks = [task_of_kind("causal-lm", "one")]
    packed = stream(backbone_folder(family), tasks, training={"packing": True, "batch_size": 2, "epochs": 2})
    runs = [learn(packed, tmp_path / name) for name in ("a", "b")]
    assert bank_digests(runs[0]) == bank_digests(runs[1])
    assert runs[0].store.certificate("one").training.packing
    assert all(check.ok for check in runs[0].verify(data=True))


def test_a_window_has_several_rows_and_evaluation_has_none(backbone_folder: Folder, tmp_path: Path) -> None:
    training = {"packing": True, "batch_size": 2}
    spec = stream(backbone_folder("gpt2"), [task_of_kind("causal-lm", "one")], training=training)
    session = Desk(spec, tmp_path).session
    task = session.spec.tasks[0]
    module = session.loaders(session.prepare(task), session.spec.merged_training(task))
    batch = next(iter(module.train_dataloader()))
    assert batch["input_ids"].shape[0] <= 2
    assert len(batch["index"]) > 4
    assert "position_ids" not in next(iter(module.val_dataloader()))


def test_a_prompt_is_refused_with_the_reason(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task_of_kind("causal-lm", "one", bank=small("prompt"))]
    with pytest.raises(
        InputError, match=r"task 'one', training\.packing: a prompt precedes every row, but in a window"
    ):
        learn(stream(backbone_folder("gpt2"), tasks, training={"packing": True}), tmp_path)


def test_cached_states_are_refused_with_the_reason(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task_of_kind("causal-lm", "one", bank={"preset": "lora", "layers": "top-1"})]
    training = {"packing": True, "prefix_cache": "on"}
    with pytest.raises(InputError, match=r"cannot be cached: training\.packing puts rows into different windows"):
        learn(stream(backbone_folder("gpt2"), tasks, training=training), tmp_path)


@pytest.mark.parametrize("fault", ["leaks", "takes no positions"])
def test_a_model_that_mixes_rows_is_refused(backbone_folder: Folder, tmp_path: Path, fault: str) -> None:
    spec = stream(backbone_folder("gpt2"), [task_of_kind("causal-lm", "one")])
    backbone = Desk(spec, tmp_path).backbone
    check_packing("one", backbone)
    base: Any = backbone.model.base_model
    forward = base.forward

    def changed(**given: Any) -> Any:
        if fault != "leaks":
            raise TypeError("got an unexpected keyword argument 'position_ids'")
        return forward(**given | {"attention_mask": torch.ones_like(given["input_ids"])})

    base.forward = changed
    with pytest.raises(
        InputError, match=r"task 'one': training\.packing is on, but backbone .* does not keep the rows"
    ):
        check_packing("one", backbone)


def test_packing_has_no_effect_on_other_kinds() -> None:
    tasks = [task_of_kind("classification", "one", training={"packing": True})]
    with pytest.raises(ValueError, match=r"packing\s+.*has no effect on a classification task \(it is for causal-lm\)"):
        stream(Path("x"), tasks)


def test_lengths_of_windows_are_those_of_rows() -> None:
    order = Packed(lengths=np.array([5, 5, 2]), room=7, batch_size=4, seed=0)
    assert order.num_windows == 2

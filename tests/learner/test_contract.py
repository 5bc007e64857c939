"""What the engine relies on, for every preset, every family and every kind of task that the family can learn.

A bank can be built, gives outputs of the right shape, takes a step that changes only the bank, can be folded, and is the same
bit for bit after it is stored and loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from continual_petl.banks.config.presets import PRESETS
from continual_petl.digests import module_tensors, same_bits, tensor_digests
from continual_petl.errors import InputError
from continual_petl.kind_registry import find_kind
from continual_petl.learner.plan import allowed_kinds, build_bank
from continual_petl.learner.task_bank import head_of
from tests.banks.taken import refusal
from tests.desk import Desk
from tests.kinds import GENERATIVE, METRICS
from tests.learner.passes import outputs_of
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES

Folder = Callable[..., Path]
TEXT = {name for name in METRICS if name not in GENERATIVE and not find_kind(name).reads_images}


def kinds_of(family: str) -> set[str]:
    if family == "vit":
        return {"image-classification"}
    return TEXT | ({"seq2seq"} if family in ENCODER_DECODERS else {"causal-lm"} if family in DECODERS else set())


USUAL = {
    *(("bert", "pair"), ("bart", "seq2seq"), ("gpt2", "causal-lm"), ("vit", "image-classification")),
}
PAIRS = [(family, kind) for family in FAMILIES for kind in METRICS if kind in kinds_of(family)]


@pytest.mark.parametrize(
    ("family", "kind"), [pair if pair in USUAL else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS]
)
def test_every_preset_on_every_family_for_every_kind(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    folder = backbone_folder(family)
    presets = [preset for preset in PRESETS if refusal(family, preset) is None]
    if kind in GENERATIVE:
        presets.remove("probe")  # it would only have a head, but these tasks use the backbone's
    tasks = [task_of_kind(kind, preset, num_rows=16, bank=small(preset)) for preset in presets]
    desk = Desk(stream(folder, tasks, backbone={"name": str(folder)}), tmp_path)
    backbone = desk.backbone
    assert set(allowed_kinds(backbone)) == kinds_of(family)
    before = tensor_digests(module_tensors(backbone.model))
    for preset in presets:
        plan = desk.plans[preset]
        bank = build_bank(plan, backbone)
        bank.initialise(backbone.model, 1)
        batch = next(iter(desk.data[preset].train_dataloader()))
        start = {name: tensor.clone() for name, tensor in bank.tensors().items()}
        outputs = outputs_of(backbone, bank.train(), plan.pooling, batch)
        loss = head_of(bank).loss(outputs, batch["labels"])
        penalty = bank.penalty()
        torch.autograd.backward(loss if penalty is None else loss + penalty)
        torch.optim.SGD(bank.parameters(), lr=0.1).step()
        moved = [name for name, tensor in bank.tensors().items() if not torch.equal(tensor, start[name])]
        assert moved, preset
        bank.eval()
        bank.fold()
        fresh = build_bank(plan, backbone, folded=True).eval()
        fresh.load_state_dict(load(save(bank.tensors())), strict=True)
        with torch.no_grad():
            ours, theirs = (outputs_of(backbone, each, plan.pooling, batch) for each in (bank, fresh))
        assert ours.dtype == torch.float32
        assert len(ours) == len(batch["index"])
        assert same_bits(ours, theirs), preset
    assert tensor_digests(module_tensors(backbone.model)) == before


@pytest.mark.parametrize(("family", "kind"), [("bart", "seq2seq"), ("gpt2", "causal-lm")])
def test_bank_without_trainable_parameters_is_refused(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    tasks = [task_of_kind(kind, "one", num_rows=16, bank="probe")]
    desk = Desk(stream(backbone_folder(family), tasks, backbone={"name": str(backbone_folder(family))}), tmp_path)
    with pytest.raises(
        InputError, match=r"task 'one', bank: there is nothing to learn.*frozen language-modelling head"
    ):
        build_bank(desk.plans["one"], desk.backbone)

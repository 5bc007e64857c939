"""A backbone's mutable state is frozen, or any change to it is detected and named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as older_spectral_norm

from continual_petl import NoForgetting, learn
from continual_petl.backbones import backbone as backbone_module
from continual_petl.backbones import weights
from continual_petl.banks.attach import run
from continual_petl.digests import module_tensors, same_bits, tensor_digests
from continual_petl.errors import ForgettingError
from continual_petl.learner import ContinualLearner
from tests.desk import Desk
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import make_inputs

Folder = Callable[..., Path]
DENSE = "encoder.layer.1.output.dense"
TWO = [task("one", num_rows=24), task("two", num_rows=24)]


class After(nn.Module):
    """A linear layer followed by another module."""

    def __init__(self, linear: nn.Module, behind: nn.Module) -> None:
        super().__init__()
        self.linear, self.behind = linear, behind
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.behind(self.linear(x_BTD))
        return out


class Norm(nn.BatchNorm1d):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return super().forward(x_BTD.mT).mT


class Counts(nn.Module):
    """A module that changes its own state in every call: a buffer, a new buffer, or an attribute that changes the output."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "counter":
            self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.calls += 1
        if self.how == "counter":
            self.get_buffer("num_calls").add_(1)
        elif self.how == "lazy":
            self.register_buffer("seen", x_BTD.detach().mean((0, 1)))
        elif self.how == "attribute":
            return x_BTD * (1 + 0.01 * self.calls)
        elif self.how == "constant":
            self.table = torch.ones(16)
            return x_BTD * self.table
        return x_BTD


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.lstm(x_BTD)[0]
        return out


def changed_desk(folder: Path, tmp_path: Path, change: Callable[[Any], nn.Module], **more: Any) -> Desk:
    """Return a desk whose backbone has one module replaced, as if it had been loaded that way."""
    desk = Desk(stream(folder, TWO, **more), tmp_path)
    model = desk.backbone.model
    changed = change(model.get_submodule(DENSE))
    model.set_submodule(DENSE, changed.eval().requires_grad_(False))
    desk.backbone = replace(desk.backbone, resident_digests=tensor_digests(module_tensors(model)))
    desk.learner = ContinualLearner(desk.backbone)
    return desk


HELD: dict[str, Callable[[Any], nn.Module]] = {
    "batch norm": lambda linear: After(linear, Norm(16)),
    "spectral norm": parametrizations.spectral_norm,
    "older spectral norm": older_spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "constant made at the first call": lambda linear: After(linear, Counts("constant")),
    "lstm": lambda linear: After(linear, Recurrent()),
}


@pytest.mark.parametrize("dropout", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("held", HELD)
def test_mutable_state_is_frozen_during_training(
    backbone_folder: Folder, tmp_path: Path, held: str, dropout: bool
) -> None:
    training = {"backbone_dropout": dropout}
    desk = changed_desk(backbone_folder(), tmp_path, HELD[held], bank=small("lora"), training=training)
    desk.fit("one", max_epochs=1, callbacks=[NoForgetting()])
    logits, before = desk.logits("one"), desk.backbone_digest()
    desk.fit("two", max_epochs=1, callbacks=[NoForgetting()])
    assert same_bits(desk.logits("one"), logits)
    assert desk.backbone_digest() == before
    assert desk.backbone.changed() == []


@pytest.mark.parametrize("held", ["lstm", "spectral norm", "older spectral norm"])
def test_full_copy_replaces_mutable_part_without_changing_it(
    backbone_folder: Folder, tmp_path: Path, held: str
) -> None:
    desk = changed_desk(backbone_folder(), tmp_path, HELD[held], bank="full")
    inputs = desk.batch("one")
    inputs = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    with torch.no_grad():
        plain = desk.backbone.model(**inputs)[0]
        bank = desk.learner.add_task(desk.plans["one"])
        for own in bank.own.values():
            own.mul_(1.1)
        other = copy.deepcopy(desk.backbone.model)
        other.load_state_dict({n.replace("/", "."): t for n, t in bank.own.items()}, strict=False)
        changed = run(desk.backbone.model, bank.eval(), inputs)[0]
        assert same_bits(changed, other(**inputs)[0])
        assert not torch.equal(changed, plain)
        assert same_bits(desk.backbone.model(**inputs)[0], plain)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("counter", rf"1 tensor differs from what was loaded \(the first is {DENSE}\.behind\.num_calls"),
        ("lazy", rf"1 tensor differs from what was loaded \(the first is {DENSE}\.behind\.seen.* as it runs"),
        (
            "attribute",
            "task 'one': its outputs for fixed inputs changed .* keep state outside its parameters and buffers",
        ),
    ],
)
def test_unexpected_state_change_is_detected(backbone_folder: Folder, tmp_path: Path, how: str, says: str) -> None:
    desk = changed_desk(backbone_folder(), tmp_path, lambda linear: After(linear, Counts(how)), bank=small("lora"))

    def fit_both() -> None:
        for name in ("one", "two"):
            desk.fit(name, max_epochs=1, callbacks=[NoForgetting()])

    with pytest.raises(ForgettingError, match=says):
        fit_both()


@pytest.mark.parametrize("how", ["counter", "attribute"])
def test_run_stops_if_the_backbone_changed(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real = weights.load_weights

    def load(*args: Any, **more: Any) -> Any:
        model, generates = real(*args, **more)
        model.set_submodule(DENSE, After(model.get_submodule(DENSE), Counts(how)))
        return model, generates

    monkeypatch.setattr(backbone_module, "load_weights", load)
    tasks = stream(backbone_folder(), TWO, bank=small("lora"), training={"epochs": 1})
    says = "num_calls" if how == "counter" else "task 'one': probe row .* keeps state outside its parameters"
    with pytest.raises(ForgettingError, match=says):
        learn(tasks, tmp_path / "run")


def test_cached_weights_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    desk = changed_desk(backbone_folder(), tmp_path, HELD["weight norm"], bank="full")
    desk.learner.add_task(desk.plans["one"])
    with (
        parametrize.cached(),
        pytest.raises(RuntimeError, match=r"parametrize\.cached.* predict with another's weights"),
    ):
        desk.logits("one")
    desk.logits("one")


TIED = {"gpt2": ("transformer.wte.weight", "lm_head"), "qwen2": ("model.embed_tokens.weight", "lm_head"),
        "bart": ("model.shared.weight", "lm_head")}  # fmt: skip


@pytest.mark.parametrize("family", TIED)
def test_copy_of_tied_embeddings_applies_at_both_ends(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    name, head = TIED[family]
    kind = "seq2seq" if family == "bart" else "causal-lm"
    desk = Desk(stream(backbone_folder(family), [task_of_kind(kind, "one")], bank="full"), tmp_path)
    model, inputs = desk.backbone.model, make_inputs(family)
    bank = desk.learner.add_task(desk.plans["one"], tokenizer=desk.session.models.tokenizer)
    with torch.no_grad():
        plain = model(**inputs).logits
        bank.own[name.replace(".", "/")].mul_(1.5)
        other = copy.deepcopy(model)
        other.get_parameter(name).mul_(1.5)
        assert other.get_submodule(head).weight is other.get_parameter(name)
        assert same_bits(run(model, bank.eval(), inputs, base=False).logits, other(**inputs).logits)
        assert same_bits(model(**inputs).logits, plain)
    assert model.get_submodule(head).weight is model.get_parameter(name)
    assert desk.backbone.changed() == []


@pytest.mark.slow
@pytest.mark.parametrize("family", TIED)
@pytest.mark.parametrize("preset", ["full", "bitfit", "layernorm", "top_layers"])
def test_tied_embeddings_are_unchanged_while_copies_are_trained(
    backbone_folder: Folder, tmp_path: Path, family: str, preset: str
) -> None:
    name, head = TIED[family]
    kind = "seq2seq" if family == "bart" else "causal-lm"
    tasks = [task_of_kind(kind, "one", num_rows=16), task_of_kind(kind, "two", num_rows=16)]
    desk = Desk(stream(backbone_folder(family), tasks, bank={"preset": preset}), tmp_path)
    desk.fit("one", max_epochs=1, callbacks=[NoForgetting()])
    answers, digests = desk.logits("one"), desk.digests("one")
    desk.fit("two", max_epochs=1, callbacks=[NoForgetting()])
    assert same_bits(desk.logits("one"), answers)
    assert desk.digests("one") == digests
    assert desk.backbone.model.get_submodule(head).weight is desk.backbone.model.get_parameter(name)
    assert desk.backbone.changed() == []

"""For any legal bank on any family, counting, initialising, training, storing and loading are correct, or it is refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec, select_layers
from continual_petl.banks.own_parameters import Reads
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError
from tests.banks import by_hand
from tests.banks.random_banks import banks
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES, make_inputs, make_model
from tests.usual import walk

QUICK = settings(max_examples=4, deadline=None, derandomize=True, database=None)
LONG = settings(QUICK, max_examples=40)


@functools.cache
def _prepared(family: str) -> tuple[PreTrainedModel, Sites, dict[str, str]]:
    model = make_model(family).requires_grad_(False)
    sites = Sites(find_anatomy(model.config.model_type), model)
    return model, sites, tensor_digests(module_tensors(model))


class _Head(nn.Module):
    """Stands in for a head: a vector that is initialised with the bank."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(3))

    @torch.no_grad()
    def initialise(self, generators: Any) -> None:
        self.vector.normal_(generator=generators("vector"))


class Case:
    """The checks of one bank on one family."""

    def __init__(self, family: str, spec: BankSpec, reads: Reads, attention: str) -> None:
        self.family, self.spec, self.reads, self.attention = family, spec, reads, attention
        self.model, self.sites, self.digests = _prepared(family)
        self.model.set_attn_implementation(attention)
        self.layers = select_layers(spec.layers, by_hand.num_layers(family))

    def build(self, *, folded: bool = False, seed: int | None = 0) -> Bank:
        bank = Bank(self.spec, self.model, self.sites, _Head(), reads=self.reads, folded=folded)
        if seed is not None:
            bank.initialise(self.model, seed)
        return bank

    def answer(self, bank: Bank) -> Tensor:
        torch.manual_seed(7)
        output = run(self.model, bank, make_inputs(self.family), base=self.reads != "logits")
        found = {"states": "last_hidden_state", "pooler": "pooler_output", "logits": "logits"}[self.reads]
        answer = output[found]
        assert isinstance(answer, Tensor)
        assert torch.isfinite(answer).all()
        return answer

    def check_count(self) -> None:
        own = by_hand.own(self.family, self.model, self.spec, self.layers, self.reads)
        sparse = any(m.form == "sparse" for m in self.spec.modifications)
        for trained in (True, False):
            forms = sum(
                by_hand.forms(self.family, m, self.layers, own, trained=trained) for m in self.spec.modifications
            )
            bank = self.build(folded=not trained, seed=None)
            expected = {"modifications": forms, "own": 0 if sparse else sum(own.values()), "head": 3}
            assert bank.count() == expected
            if not sparse:
                assert {name.replace("/", ".") for name in bank.own} == set(own)

    def check_draws(self) -> Bank:
        bank = self.build(seed=11)
        torch.manual_seed(12345)
        assert tensor_digests(self.build(seed=11).tensors()) == tensor_digests(bank.tensors())
        assert tensor_digests(self.build(seed=12).tensors()) != tensor_digests(bank.tensors())
        return bank

    def check_step(self, bank: Bank) -> None:
        before = tensor_digests(bank.body())
        bank.train()
        answer = self.answer(bank)
        assert torch.equal(self.answer(bank), answer), "dropout and sampled gates must depend only on torch's generator"
        penalty = bank.penalty()
        loss = (answer * torch.randn_like(answer)).sum() + (0.0 if penalty is None else penalty)
        torch.autograd.backward(loss)
        torch.optim.SGD((p for p in bank.parameters() if p.grad is not None), lr=0.01).step()
        assert tensor_digests(bank.body()) != before
        assert all(p.grad is None for p in self.model.parameters())
        assert tensor_digests(module_tensors(self.model)) == self.digests
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in self.model.modules())
        assert self.model.config._attn_implementation == self.attention

    def check_stored(self, bank: Bank) -> None:
        bank.eval()
        with torch.no_grad():
            trained = self.answer(bank)
            bank.fold()
            stored = self.answer(bank)
            if all(m.form != "sparse" or m.density == 1.0 for m in self.spec.modifications):
                assert torch.equal(trained, stored)
            content = safetensors.torch.save(bank.tensors())
            fresh = self.build(folded=True, seed=None).eval()
            fresh.load_state_dict(safetensors.torch.load(content), strict=True)
            assert torch.equal(self.answer(fresh), stored)
        assert fresh.count() == bank.count()


def _reads(family: str) -> st.SearchStrategy[Reads]:
    more = {"bert": ["pooler"]} | {each: ["logits"] for each in (*ENCODER_DECODERS, *DECODERS)}
    return st.sampled_from(["states", *more.get(family, [])])


def _attentions(family: str) -> list[str]:
    return ["eager"] if family in by_hand.OWN_ATTENTION else ["sdpa", "eager"]


def _check(family: str, data: st.DataObject) -> None:
    spec = data.draw(banks(by_hand.num_layers(family)), label="bank")
    attention = data.draw(st.sampled_from(_attentions(family)), label="attention")
    case = Case(family, spec, data.draw(_reads(family), label="reads"), attention)
    if by_hand.refused(family, case.model, spec, case.layers):
        with pytest.raises(InputError, match=r"^bank: "):
            case.build()
        return
    case.check_count()
    bank = case.check_draws()
    case.check_step(bank)
    case.check_stored(bank)


@pytest.mark.parametrize("family", walk(FAMILIES))
@QUICK
@given(data=st.data())
def test_any_legal_bank_works(family: str, data: st.DataObject) -> None:
    _check(family, data)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@LONG
@given(data=st.data())
def test_any_legal_bank_works_many_examples(family: str, data: st.DataObject) -> None:
    _check(family, data)


@pytest.mark.parametrize("layers", ["2", "0-2", "0,5", "top-3"])
def test_unknown_layer_is_refused(layers: str) -> None:
    spec = BankSpec.model_validate({"layernorms": "own", "layers": layers})
    model, sites, _ = _prepared("bert")
    with pytest.raises(InputError, match=rf"^bank: layers '{layers}' names .* 2 layers, 0 to 1"):
        Bank(spec, model, sites, _Head())

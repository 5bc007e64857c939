"""The gradients of every form agree with finite differences through a whole backbone, in float64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import BartConfig, BartModel, BertConfig, BertModel, PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.legal import LEGAL, options_of
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.forms.arithmetic import ACTIVATIONS
from continual_petl.banks.forms.sparse import DenseDifference
from tests.usual import few

# One layer (or one in each stack), width 4, two heads; two rows of three tokens, one of them padding.
WIDTH = 4
IDS = torch.tensor([[2, 5, 6], [2, 7, 0]])
INPUTS = {
    "bert": {"input_ids": IDS, "attention_mask": (IDS != 0).long()},
    "bart": {
        "input_ids": IDS,
        "attention_mask": (IDS != 0).long(),
        "decoder_input_ids": torch.tensor([[3, 4], [3, 8]]),
    },
}


@functools.cache
@torch.random.fork_rng(devices=[])
def _model(family: str) -> PreTrainedModel:
    torch.manual_seed(3)
    size: dict[str, Any] = {"vocab_size": 9, "max_position_embeddings": 8}
    model: PreTrainedModel
    if family == "bert":
        size |= {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6}
        model = BertModel(BertConfig(**size), add_pooling_layer=False)
    else:
        for stack in ("encoder", "decoder"):
            size |= {f"{stack}_layers": 1, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 6}
        size |= {"d_model": WIDTH, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        model = BartModel(BartConfig(**size, decoder_start_token_id=3, forced_eos_token_id=3))
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than initial weights, so that the functions are clearly nonlinear.
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.double().requires_grad_(False).train(False)
    return model


class _Pass(nn.Module):
    """A module with a bank's parameters, whose forward returns three randomly weighted sums of a pass's outputs."""

    def __init__(self, family: str, spec: BankSpec) -> None:
        super().__init__()
        model = _model(family)
        self.bank = Bank(spec, model, Sites(find_anatomy(family), model), nn.Identity())
        self.bank.initialise(model, 0)
        self.bank.double().eval()
        self.family = family
        self.sums = torch.randn(3, *IDS.shape, WIDTH, dtype=torch.float64)
        if family == "bert":
            # torch gives no gradient to the padding embedding; leave out the states at padding, since only they depend on it.
            self.sums *= INPUTS["bert"]["attention_mask"].unsqueeze(-1)
        with torch.no_grad():
            for parameter in self.bank.parameters():
                parameter.copy_(0.7 * torch.randn_like(parameter))

    def forward(self) -> Tensor:
        states: Tensor = run(_model(self.family), self.bank, INPUTS[self.family]).last_hidden_state
        return (self.sums[:, :, : states.shape[1]] * states).sum((1, 2, 3))


def check(family: str, bank: dict[str, Any] | list[dict[str, Any]], *, fast: bool = False) -> None:
    spec = BankSpec.model_validate({"modifications": bank} if isinstance(bank, list) else bank)
    module = _Pass(family, spec)
    names = [name for name, _ in module.named_parameters()]
    leaves = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert names

    def function(*values: Tensor) -> Tensor:
        result: Tensor = functional_call(module, dict(zip(names, values, strict=True)), ())
        return result

    assert torch.autograd.gradcheck(function, leaves, fast_mode=fast)
    # gradcheck would not notice unused parameters. A key bias has no effect, since softmax ignores a constant.
    unused = [
        name
        for name, gradient in zip(names, torch.autograd.grad(function(*leaves).sum(), leaves), strict=True)
        if not gradient.any() and not name.endswith(("key.bias", "k_proj/bias"))
    ]
    assert not unused


def bottleneck(**options: Any) -> dict[str, Any]:
    row = {"form": "bottleneck", "modifies": "ffn", "insertion": "sequential", "bottleneck": 2, "activation": "tanh"}
    return row | options


def prefix(**options: Any) -> dict[str, Any]:
    row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "bottleneck": 2}
    return row | options


PROMPT = {"form": "prompt", "modifies": "input", "composition": "prepend", "bottleneck": 2, "hidden": 3}
DRAWN = [
    {"form": row.form, "modifies": modifies, "insertion": row.insertion, "composition": composition}
    for row in LEGAL
    for modifies in row.modifies
    for composition in row.compositions
    # DoRA treats the norm as a constant, so its gradient is not the derivative: see test_peft_parity.
    if row.form not in ("additive", "sparse", "decomposed")
]


@pytest.mark.parametrize("family", few(["bert", "bart"]))
@pytest.mark.parametrize("choice", few(DRAWN, 22), ids=lambda choice: "-".join(map(str, choice.values())))
def test_every_combination(family: str, choice: dict[str, Any]) -> None:
    smooth = {"activation": "tanh"} if "activation" in options_of(**choice) else {}
    sized = {"bottleneck": 2} if "bottleneck" in options_of(**choice) else {}
    check(family, [{**choice, **smooth, **sized}], fast=family == "bart")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    check("bert", [bottleneck(activation=activation)])
    check("bert", [prefix(composition="add", activation=activation)])


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 2},
        {"depth": 3, "modifies": "attention"},
        {"input_norm": True},
        {"output_norm": True, "init": "bert"},
        {"output_norm": True, "composition": "learned", "modifies": "heads", "insertion": "parallel"},
        {"input_norm": True, "depth": 2, "modifies": "heads", "insertion": "parallel"},
        {"normalised_input": True},
        {"normalised_input": True, "composition": "learned"},
    ],
    ids=str,
)
def test_options_of_a_bottleneck(options: dict[str, Any]) -> None:
    check("bert", [bottleneck(**options)])


@pytest.mark.parametrize("family", ["bert", "bart"])
@pytest.mark.parametrize(
    "options",
    [
        {"implementation": "concat"},
        {"implementation": "gated"},
        {"reparametrise": "mlp", "hidden": 3},
        {"reparametrise": "mlp", "hidden": 3, "implementation": "gated"},
        {"reparametrise": "mlp", "hidden": 3, "composition": "learned", "activation": "tanh"},
    ],
    ids=str,
)
def test_options_of_a_prefix(family: str, options: dict[str, Any]) -> None:
    check(family, [prefix(**options)], fast=family == "bart")


@pytest.mark.parametrize("family", ["bert", "bart"])
@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_networks_of_a_prompt(family: str, network: str) -> None:
    check(family, [{**PROMPT, "reparametrise": network}], fast=True)


@pytest.mark.parametrize("family", ["bert", "bart"])
@pytest.mark.parametrize("modifies", ["bias", "weights"])
def test_own_parameters(family: str, modifies: str) -> None:
    check(family, [{"form": "additive", "modifies": modifies}], fast=modifies == "weights")


@pytest.mark.parametrize("family", ["bert", "bart"])
def test_own_layernorms(family: str) -> None:
    check(family, {"layernorms": "own"})


def test_several_at_once() -> None:
    rows = [bottleneck(modifies="attention"), bottleneck(), prefix(), {**PROMPT, "reparametrise": "mlp"}]
    check("bert", {"modifications": rows, "layernorms": "own"}, fast=True)


@pytest.mark.parametrize("family", ["bert", "bart"])
def test_a_sparse_difference_with_its_gates_half_open(family: str) -> None:
    # With random logits, some gates are closed or open, and most are in between, with a nonzero derivative.
    check(family, [{"form": "sparse", "modifies": "weights"}], fast=True)


def test_the_penalty_of_a_sparse_difference() -> None:
    spec = BankSpec.model_validate({"modifications": [{"form": "sparse", "modifies": "weights", "penalty": 0.5}]})
    form = DenseDifference(spec.modifications[0], {"a": torch.Size((2, 3)), "b": torch.Size((4,))}).double()
    leaves = [torch.randn(10, dtype=torch.float64), torch.randn(2, dtype=torch.float64)]

    def penalty(entries: Tensor, tensors: Tensor) -> Tensor:
        class Penalty(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.form = form

            def forward(self) -> Tensor:
                return self.form.penalty()

        result: Tensor = functional_call(Penalty(), {"form.entry_gate": entries, "form.tensor_gate": tensors}, ())
        return result

    assert torch.autograd.gradcheck(penalty, [leaf.requires_grad_() for leaf in leaves])

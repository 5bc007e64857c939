"""Fusion computes the paper's formula, attention over the outputs of frozen adapters, and refuses invalid banks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.inherit import resolve_bank
from continual_petl.banks.config.presets import RECIPES, in_words, preset_of, recipe_of
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.banks.forms.fusion import Fusion
from continual_petl.banks.merge import merged
from continual_petl.banks.mixed.run_mixed import run_mixed
from continual_petl.digests import same_bits
from continual_petl.errors import InputError
from tests.tiny import ENCODER_DECODERS, make_bank, make_inputs, make_model
from tests.usual import THREE, few

PFEIFFER = {"preset": "pfeiffer", "bottleneck": 3}
ROW = {"form": "bottleneck", "modifies": "ffn", "insertion": "parallel", "bottleneck": 3}


def parents(model: PreTrainedModel, bank: Any, num: int = 3) -> list[Bank]:
    """Return banks with random values that differ from bank to bank."""
    found = [make_bank(model, bank, seed=seed) for seed in range(num)]
    for seed, parent in enumerate(found):
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in parent.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return found


def fused(model: PreTrainedModel, read: list[Bank], *, seed: int = 7) -> Bank:
    """Return a fresh fused bank that reads the given banks."""
    names = tuple(f"task{number}" for number in range(len(read)))
    spec = BankSpec(modifications=read[0].spec.modifications, layers=read[0].spec.layers, fuse=names)
    bank = Bank(spec, model, Sites(find_anatomy(model.config.model_type), model), nn.Identity())
    bank.initialise(model, seed)
    bank.read([parent.tensors() for parent in read])
    return bank


def states(model: PreTrainedModel, bank: Bank | None, family: str) -> Tensor:
    inputs = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in make_inputs(family).items()}
    with torch.no_grad():
        if bank is not None:
            return run(model, bank, inputs).last_hidden_state  # type: ignore[no-any-return]
        empty = make_bank(model, "probe")
        return run(model, empty, inputs).last_hidden_state  # type: ignore[no-any-return]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"depth": 3, "activation": "gelu_tanh"},
    {"input_norm": True, "output_norm": True, "dropout": 0.5},
    {"composition": "learned", "scale": 2.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fused_change_is_that_of_the_paper(options: dict[str, Any]) -> None:
    modification = Modification.model_validate(ROW | options)
    adapters = [Bottleneck(modification, 6, 5) for _ in range(4)]
    fusion = Fusion(Bottleneck(modification, 6, 5), "abcd")
    for module in (*adapters, fusion):
        with torch.no_grad():
            for parameter in module.double().parameters():
                parameter.normal_()
    for path, part in fusion.named_modules():
        for name in part._buffers:
            values = [adapter.state_dict()[f"{path}.{name}".lstrip(".")] for adapter in adapters]
            setattr(part, name, torch.stack(values))
    x_BTI = torch.randn(2, 3, 6, dtype=torch.float64)
    # As in BertFusion.forward of `adapters`, by default: keys and values for each adapter, a key bias, unscaled scores.
    key_bias = torch.randn(5, dtype=torch.float64)
    # `eval`: the adapters run without dropout, as at inference, although the fusion is in training mode.
    z_BTNO = torch.stack([adapter.eval().delta(x_BTI) for adapter in adapters], 2)
    if options.get("composition") == "learned":
        z_BTNO = z_BTNO * torch.stack([adapter.scale for adapter in adapters])[:, None]
    query_BTO = x_BTI @ fusion.query.weight.T + fusion.query.bias
    key_BTNO = z_BTNO @ fusion.key.weight.T + key_bias
    scores_BTN = torch.squeeze(torch.matmul(query_BTO.unsqueeze(2), key_BTNO.transpose(-2, -1)), dim=2)
    value_BTNO = z_BTNO @ fusion.value.weight.T
    context_BTO = torch.squeeze(torch.matmul(torch.softmax(scores_BTN, -1).unsqueeze(2), value_BTNO), dim=2)
    expected_BTO = context_BTO * 100 * fusion.gate
    # The same products are summed in another order, in float64.
    torch.testing.assert_close(fusion.train().delta(x_BTI), expected_BTO, atol=1e-12, rtol=1e-10)
    h_BTO = torch.randn(2, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(fusion.change(h_BTO, x_BTI), h_BTO + expected_BTO, atol=1e-12, rtol=1e-10)


SITES = ["pfeiffer", "parallel", "scaled_parallel", "parallel_attention", "houlsby"]


@pytest.mark.parametrize("family", [few([THREE[0]])[0], *(pytest.param(f, marks=pytest.mark.slow) for f in THREE[1:])])
@pytest.mark.parametrize("preset", SITES)
def test_fusion_of_equal_banks_with_an_open_gate_is_that_bank(family: str, preset: str) -> None:
    model = make_model(family).double()
    choice: dict[str, Any] = {"preset": preset, "bottleneck": 3}
    if preset == "houlsby":
        choice["layernorms"] = "frozen"
    if family == "gpt2" and preset == "pfeiffer":
        choice["normalised_input"] = False
    one = parents(model, choice, 1)[0].double()
    bank = fused(model, [one, one]).double()
    with torch.no_grad():
        for part in bank.modules():
            if isinstance(part, Fusion):
                part.gate.fill_(1 / 100)
                part.value.weight.copy_(torch.eye(len(part.value.weight)))
    # The weights sum to one, so the result is the adapter's output up to float64 rounding.
    torch.testing.assert_close(states(model, bank, family), states(model, one, family), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", few(["bert", "bart", "gpt2", "deberta-v2"], 2))
@pytest.mark.parametrize("composition", ["add", "scaled", "learned", "multiply"])
@pytest.mark.parametrize(
    ("insertion", "modifies"), [("sequential", "ffn"), ("parallel", "attention"), ("parallel", "heads")]
)
def test_fresh_fused_bank_changes_nothing(family: str, composition: str, insertion: str, modifies: str) -> None:
    model = make_model(family)
    row = ROW | {"insertion": insertion, "modifies": modifies, "composition": composition}
    row |= {"scale": 3.0} if composition in ("scaled", "learned") else {}
    read = parents(model, {"modifications": [row]})
    assert not same_bits(states(model, read[0], family), states(model, None, family))
    assert same_bits(states(model, fused(model, read), family), states(model, None, family))


def test_values_of_other_banks_are_neither_parameters_nor_stored() -> None:
    model = make_model("bert")
    read = parents(model, PFEIFFER)
    before = [{name: tensor.clone() for name, tensor in parent.tensors().items()} for parent in read]
    bank = fused(model, read)
    per_site = 3 * 16 * 16 + 16 + 1
    assert bank.count() == {"modifications": 2 * per_site, "own": 0, "head": 0}
    assert {name.rpartition("ffn.")[2] for name in bank.tensors()} == {
        "query.weight", "query.bias", "key.weight", "value.weight", "gate",
    }  # fmt: skip
    optimizer = torch.optim.SGD(bank.parameters(), lr=0.5)
    values = {name: buffer.clone() for name, buffer in bank.named_buffers()}
    for _ in range(3):
        run(model, bank.train(), make_inputs("bert")).last_hidden_state.square().sum().backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in bank.parameters())
    assert values.keys() == {name for name, _ in bank.named_buffers()}
    assert all(same_bits(values[name], buffer) for name, buffer in bank.named_buffers())
    for parent, tensors in zip(read, before, strict=True):
        assert all(same_bits(tensor, tensors[name]) for name, tensor in parent.tensors().items())


def penalty_of(bank: Bank) -> float:
    penalty = bank.penalty()
    assert penalty is not None
    return penalty.item()


def test_loss_pulls_values_towards_the_identity() -> None:
    model = make_model("bert")
    bank = fused(model, parents(model, PFEIFFER))
    assert penalty_of(bank) < 1e-9
    with torch.no_grad():
        for part in bank.modules():
            if isinstance(part, Fusion):
                part.value.weight[0, 1] += 2.0
    # In each of the two layers, one entry is off by two; the initial noise is far smaller.
    assert penalty_of(bank) == pytest.approx(0.01 * 2 * 4.0, rel=1e-4)


def test_bank_without_the_values_it_reads_cannot_run() -> None:
    model = make_model("bert")
    read = parents(model, PFEIFFER)
    bank = fused(model, read)
    fresh = Bank(bank.spec, model, bank.sites, nn.Identity())
    fresh.load_state_dict(bank.state_dict(), strict=True)
    says = r"this bank reads the banks of 'task0', 'task1', 'task2', but was built without their values: load it from"
    with pytest.raises(RuntimeError, match=says):
        run(model, fresh, make_inputs("bert"))
    fresh.read([parent.tensors() for parent in read])
    assert same_bits(states(model, fresh, "bert"), states(model, bank, "bert"))
    assert same_bits(states(model, copy.deepcopy(fresh), "bert"), states(model, bank, "bert"))


def test_other_banks_than_the_specified_ones_cannot_be_read() -> None:
    model = make_model("bert")
    read = parents(model, PFEIFFER)
    bank = fused(model, read)
    with pytest.raises(ValueError, match="got 2 banks, but this bank reads 3"):
        bank.read([parent.tensors() for parent in read[:2]])
    with pytest.raises(ValueError, match="got 1 banks, but this bank reads 0"):
        read[0].read([read[1].tensors()])
    wider = parents(model, PFEIFFER | {"bottleneck": 4})
    with pytest.raises(ValueError, match=r"do not match: modifications\.0\.layer_0\.ffn\.down\.weight: stack"):
        bank.read([read[0].tensors(), read[1].tensors(), wider[0].tensors()])
    with pytest.raises(ValueError, match=r"do not match: modifications\.0\.layer_0\.ffn\.down\.weight: '"):
        bank.read([{}, {}, {}])


def test_fused_bank_shares_no_pass_and_cannot_be_merged() -> None:
    model = make_model("bert")
    read = parents(model, PFEIFFER)
    bank = fused(model, read).eval()
    inputs = make_inputs("bert")
    counts = [len(inputs["input_ids"]) - 1, 1]
    with pytest.raises(ValueError, match="a bank cannot share a pass with others, since it reads other banks: run it"):
        run_mixed(model, [bank, read[0].eval()], counts, inputs)
    with pytest.raises(InputError, match="bottleneck cannot be merged"):
        merged(model, bank)


def choices(**banks: Any) -> dict[str, BankChoice]:
    return {name: BankChoice.model_validate(bank) for name, bank in banks.items()}


FUSE = {"preset": "fusion", "fuse": ["a", "b"]}


def test_settings_are_those_of_the_banks_that_are_read() -> None:
    wide = {"preset": "pfeiffer", "bottleneck": 9, "layers": "1-2"}
    known = choices(a=wide, b=wide | {"start_from": "a"}, c={"start_from": "b"}, d=FUSE | {"fuse": ["a", "b", "c"]})
    spec = resolve_bank("d", known)
    assert spec.fuse == ("a", "b", "c")
    assert (spec.modifications, spec.layers) == (known["a"].resolve().modifications, "1-2")
    assert (preset_of(spec), recipe_of(spec)) == ("fusion", RECIPES["fusion"])
    assert in_words(spec) == "fusion: bottleneck on ffn (9)"
    # A fused bank takes the settings with which its parents were learned, not the stream's current ones.
    learned = BankChoice.model_validate({"preset": "parallel", "bottleneck": 2}).resolve()
    assert resolve_bank("d", known, lambda name: learned).modifications == learned.modifications
    # A bank that starts from a fused one reads the same banks.
    again = resolve_bank("e", known | choices(e={"start_from": "d"}))
    assert again == spec.model_copy(update={"start_from": "d"})


def test_specifications_without_fusion_are_written_as_before() -> None:
    plain = BankChoice.model_validate(PFEIFFER).resolve()
    assert "fuse" not in plain.model_dump()
    spec = plain.model_copy(update={"fuse": ("a", "b")})
    assert BankSpec.model_validate(spec.model_dump(mode="json")) == spec


CANNOT = r"task 'c', bank\.fuse: the bank of 'a' cannot be fused with others, since "
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "form": (
        {"a": "lora", "b": "lora"},
        CANNOT + r"its form is lowrank\. Only banks of form bottleneck, with frozen LayerNorms and scope: task, can be",
    ),
    "mixed forms": ({"a": "mam_flat", "b": "mam_flat"}, CANNOT + "its form is attention"),
    "norms": ({"a": "houlsby", "b": "houlsby"}, CANNOT + r"it has its own LayerNorms \(layernorms: own\)"),
    "nothing": ({"a": "probe", "b": "probe"}, CANNOT + "it modifies nothing"),
    "shared": ({"a": PFEIFFER | {"scope": "shared"}, "b": PFEIFFER}, CANNOT + "it has scope: shared"),
    "fused": ({"x": PFEIFFER, "y": PFEIFFER, "a": FUSE | {"fuse": ["x", "y"]}, "b": PFEIFFER}, CANNOT + "it is itself fused"),
    "copy of a fused one": (
        {"x": PFEIFFER, "y": PFEIFFER, "z": FUSE | {"fuse": ["x", "y"]}, "a": {"start_from": "z"}, "b": PFEIFFER},
        CANNOT + "it is itself fused",
    ),
    "sizes": (
        {"a": PFEIFFER, "b": PFEIFFER | {"bottleneck": 4}},
        r"task 'c', bank\.fuse: the banks of 'a' and 'b' differ in bottleneck \(3 and 4\)\. Banks that are fused must have",
    ),
    "activations and layers": (
        {"a": PFEIFFER, "b": PFEIFFER | {"activation": "tanh", "layers": "top-1"}},
        r"differ in activation \(relu and tanh\), layers \(all and top-1\)",
    ),
    "number": (
        {"a": {"modifications": [ROW]}, "b": {"modifications": [ROW, ROW]}},
        r"differ in the number of modifications \(1 and 2\)",
    ),
    "unknown": (
        {"aa": PFEIFFER, "b": PFEIFFER},
        r"bank\.fuse: there is no task 'a' \(did you mean 'aa'\?\), neither learned",
    ),
    "circle": (
        {"a": {"start_from": "c"}, "b": PFEIFFER},
        r"task 'a', bank\.start_from: there is no task 'c', neither learned",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_banks_that_cannot_be_fused_are_refused(case: str) -> None:
    banks, says = REFUSED[case]
    with pytest.raises(InputError, match=says):
        resolve_bank("c", choices(**banks, c=FUSE))


@pytest.mark.parametrize(
    ("bank", "says"),
    [
        ({"preset": "fusion"}, r"preset fusion needs the earlier tasks whose banks it reads: write \{preset: fusion, fuse"),
        ("fusion", "preset fusion needs the earlier tasks"),
        ({"fuse": ["a", "b"]}, "fuse belongs to preset fusion, got no preset: write"),
        ({"preset": "lora", "fuse": ["a", "b"]}, "fuse belongs to preset fusion, got lora"),
        (FUSE | {"fuse": ["a"]}, "fuse needs at least two tasks, got 1: to use one bank, write start_from"),
        (FUSE | {"fuse": []}, "fuse needs at least two tasks, got 0"),
        (FUSE | {"fuse": list("abcdefghi")}, "at most 8 long"),
        (FUSE | {"fuse": ["a", "b", "a"]}, "fuse names a task twice: a, b, a; name each task once"),
        (FUSE | {"bottleneck": 4, "scope": "shared"}, "so bottleneck, scope cannot be given as well: remove it"),
        (FUSE | {"start_from": "a"}, "takes all other settings from the banks that it reads, so start_from cannot"),
    ],
)  # fmt: skip
def test_invalid_fuse_is_refused(bank: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        BankChoice.model_validate(bank)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layernorms": "own"}, "fuse: this bank cannot read 'a', 'b' at its sites, since it has its own LayerNorms"),
        ({"scope": "shared"}, "since it has scope: shared"),
        ({"modifications": ()}, "since it modifies nothing"),
        ({"modifications": [{"form": "additive", "modifies": "bias"}]}, "since its form is additive"),
        ({"fuse": list("abcdefghi")}, "at most 8 long"),
    ],
)
def test_specification_of_an_impossible_fused_bank_is_refused(change: dict[str, Any], says: str) -> None:
    spec = {"modifications": [ROW], "fuse": ["a", "b"]}
    with pytest.raises(InputError, match=says):
        BankSpec.model_validate(spec | change)


def test_families_with_two_stacks_are_fused_in_both() -> None:
    family = ENCODER_DECODERS[0]
    model = make_model(family)
    bank = fused(model, parents(model, {"preset": "parallel_attention", "bottleneck": 2}, 2))
    # Two encoder layers with self-attention, and two decoder layers with self- and cross-attention.
    assert sum(isinstance(part, Fusion) for part in bank.modules()) == 6

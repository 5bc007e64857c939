"""In a mixed batch, every row gets the answer of its own bank, for every preset, whatever the other banks are."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.banks.attach import attached, run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.presets import PRESETS
from continual_petl.banks.mixed.compatible import batch_key, why_alone
from continual_petl.banks.mixed.run_mixed import run_mixed
from continual_petl.banks.mixed.stack_cache import StackCache
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError
from tests.banks.mixing import batch_of, close, learned_bank, together
from tests.banks.random_banks import banks as random_banks
from tests.banks.taken import TAKEN, refusal
from tests.tiny import FAMILIES, IDS, make_bank, make_model
from tests.usual import few, walk

ALONE = ("diff_pruning", "top_layers", "full")
PRESETS_TOGETHER = [preset for preset in PRESETS if preset not in ALONE]


def shareable(family: str, model: PreTrainedModel, *, seeds: int = 1) -> dict[Any, list[Bank]]:
    """Return banks of all presets that can share a pass, grouped by `batch_key`, which must be equal in a pass."""
    found: dict[Any, list[Bank]] = {}
    for preset in PRESETS_TOGETHER:
        if refusal(family, preset) is not None:
            continue
        for seed in range(seeds):
            bank = learned_bank(model, preset, seed)
            if why_alone(bank.spec, model, bank.sites) is None:
                found.setdefault(batch_key(bank.spec, bank.sites.num_layers), []).append(bank)
    return found


@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, ("bert",)))
def test_three_banks_of_a_preset_match_single_bank_answers(family: str, preset: str) -> None:
    model = make_model(family).requires_grad_(False)
    names, digests = list(model.state_dict()), tensor_digests(module_tensors(model))
    banks = [learned_bank(model, preset, seed) for seed in range(3)]
    if why_alone(banks[0].spec, model, banks[0].sites) is not None:
        with pytest.raises(ValueError, match=r"a bank cannot share a pass with others, since it .*: run it alone"):
            together(model, family, banks, (1, 1, 1))
        return
    stacks = StackCache()
    for counts in ((2, 2, 2), (1, 3, 2), (1, 1, 1)):
        found, own = together(model, family, banks, counts, stacks)
        close(found, own)
    if preset != "probe":
        # The banks differ, so the test would notice if one was applied to another's rows.
        assert (own[0][0] - run(model, banks[1], batch_of(family, 3)).last_hidden_state[0]).abs().max() > 1e-4
    assert list(model.state_dict()) == names
    assert tensor_digests(module_tensors(model)) == digests
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


_ADAPTER = {"form": "bottleneck", "insertion": "sequential", "bottleneck": 4, "init": "bert"}
_HEADS = {"form": "attention", "modifies": "heads", "insertion": "parallel", "bottleneck": 3}


@pytest.mark.parametrize(
    "modifications",
    [
        [{**_ADAPTER, "modifies": "ffn", "depth": 3, "input_norm": True, "composition": "learned"}],
        [{**_ADAPTER, "modifies": "ffn", "output_norm": True}],
        [{**_ADAPTER, "modifies": "attention", "composition": "multiply"}, {**_ADAPTER, "modifies": "ffn"}],
        [{**_ADAPTER, "modifies": "ffn", "normalised_input": True, "composition": "scaled", "scale": 3.0}],
        [
            # The banks' own biases are added after the projections, and are not scaled.
            {"form": "additive", "modifies": "bias"},
            {"form": "decomposed", "modifies": "key", "insertion": "parallel", "bottleneck": 2},
            {"form": "rescale", "modifies": "key", "insertion": "sequential", "composition": "multiply"},
        ],
        [{**_HEADS, "composition": "learned"}, {**_HEADS, "composition": "gated", "implementation": "gated"}],
    ],
)
def test_non_preset_options_match_single_bank_answers(modifications: list[dict[str, Any]]) -> None:
    model = make_model("bert").requires_grad_(False)
    choice = {"modifications": modifications, "layernorms": "own"}
    banks = [learned_bank(model, choice, seed) for seed in range(3)]
    close(*together(model, "bert", banks, (1, 3, 2)))


@pytest.mark.parametrize("family", walk(FAMILIES, ("bert", "bart", "gpt2")))
def test_different_presets_share_a_pass(family: str) -> None:
    model = make_model(family).requires_grad_(False)
    for banks in shareable(family, model).values():
        found, own = together(model, family, banks, [1 + number % 3 for number in range(len(banks))])
        close(found, own)


def _any_mix(data: st.DataObject, model: PreTrainedModel, pool: list[list[Bank]], stacks: StackCache) -> None:
    lane = data.draw(st.sampled_from(range(len(pool))))
    chosen = data.draw(st.lists(st.sampled_from(range(len(pool[lane]))), min_size=1, max_size=8, unique=True))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=len(chosen), max_size=len(chosen)))
    found, own = together(model, "bert", [pool[lane][number] for number in chosen], counts, stacks)
    close(found, own)


BERT = make_model("bert").requires_grad_(False)
POOL: list[list[Bank]] = []
STACKS = StackCache(max_bytes=20_000)
"""The limit is so small that stacks are refilled again and again."""


@settings(derandomize=True, deadline=None, max_examples=12)
@given(st.data())
def test_any_mix_in_any_order_matches_single_banks(data: st.DataObject) -> None:
    if not POOL:
        POOL.extend(shareable("bert", BERT, seeds=2).values())
    _any_mix(data, BERT, POOL, STACKS)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.data())
def test_any_mix_in_any_order_matches_single_banks_many_examples(data: st.DataObject) -> None:
    if not POOL:
        POOL.extend(shareable("bert", BERT, seeds=2).values())
    _any_mix(data, BERT, POOL, STACKS)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150)
@given(spec=random_banks(2), other=random_banks(2), family=st.sampled_from(["bert", "gpt2", "vit"]))
def test_any_legal_bank_shares_a_pass_or_gives_a_reason(spec: Any, other: Any, family: str) -> None:
    model = make_model(family).requires_grad_(False)
    found = []
    for number, each in enumerate((spec, spec, other)):
        try:
            found.append(learned_bank(model, each, number))
        except InputError:  # `test_random_combinations` tests refusals
            return
    if any(why_alone(bank.spec, model, bank.sites) for bank in found):
        return
    groups: dict[Any, list[Bank]] = {}
    for bank in found:
        groups.setdefault(batch_key(bank.spec, 2), []).append(bank)
    for banks in groups.values():
        states, own = together(model, family, banks, [1, 2, 1][: len(banks)])
        for mine, expected in zip(states, own, strict=True):
            torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("preset", few(PRESETS_TOGETHER, 6))
def test_nan_bank_affects_only_its_own_rows(preset: str) -> None:
    model = make_model("bert").requires_grad_(False)
    banks = [learned_bank(model, preset, seed) for seed in range(3)]
    others = [learned_bank(model, "houlsby", 7)] if batch_key(banks[0].spec, 2).num_prompt_vectors == 0 else []
    others = others if not batch_key(banks[0].spec, 2).prefixes[:-1] else []
    stacks, counts = StackCache(), [2, 1, 2, *[2 for _ in others]]
    before, _ = together(model, "bert", [*banks, *others], counts, stacks)
    with torch.no_grad():
        for parameter in banks[1].parameters():
            parameter.fill_(torch.nan)
    after, _ = together(model, "bert", [*banks, *others], counts, stacks)
    if preset != "probe":
        assert after[1].isnan().all(), "changes in place must be noticed in spite of cached stacks"
    for number in (0, 2, *range(3, len(counts))):
        assert torch.equal(after[number], before[number])


def test_half_precision_matches_single_banks() -> None:
    half = copy.deepcopy(make_model("bert")).requires_grad_(False).bfloat16()
    banks = [learned_bank(make_model("bert"), choice, seed) for seed in range(2) for choice in ("houlsby", "lora")]
    found, own = together(half, "bert", sorted(banks, key=lambda bank: len(bank.own)), [1, 2, 1, 2])
    for states, expected in zip(found, own, strict=True):
        assert states.dtype == torch.bfloat16
        # bf16 has 8 bits of precision, and the passes may differ in two or three roundings.
        torch.testing.assert_close(states, expected, atol=0.06, rtol=0.05)


def test_state_is_restored_after_an_error() -> None:
    model = make_model("bert").requires_grad_(False)
    banks = [learned_bank(model, "mam", seed) for seed in range(2)]
    plain = run(model, banks[0], batch_of("bert", 2)).last_hidden_state
    stacks = StackCache()
    with pytest.raises(IndexError):
        run_mixed(model, banks, [1, 1], {"input_ids": IDS + 1000}, stacks)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(run(model, banks[0], batch_of("bert", 2)).last_hidden_state, plain)
    assert stacks.num_users == 0


def test_threads_alternate_mixed_batches_and_single_banks() -> None:
    model = make_model("bert").requires_grad_(False)
    houlsby, prefix = (
        [learned_bank(model, preset, seed) for seed in range(2)] for preset in ("houlsby", "prefix_flat")
    )
    stacks, inputs = StackCache(max_bytes=0), batch_of("bert", 2)

    def answer(banks: list[Bank]) -> Tensor:
        states: Tensor = run_mixed(model, banks, [1, 1], inputs, stacks).last_hidden_state
        return states

    expected = [answer(houlsby), answer(prefix)]
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(10):
            try:
                if not torch.equal(answer([houlsby, prefix][number]), expected[number]):
                    wrong.append("another answer")
            except (LookupError, RuntimeError, ValueError) as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_banks_that_cannot_share_a_pass_are_refused_with_reason() -> None:
    model = make_model("bert").requires_grad_(False)
    lora, prompt = learned_bank(model, "lora", 0), learned_bank(model, "prompt", 0)
    inputs = batch_of("bert", 2)

    def ask(*banks: Bank, counts: tuple[int, ...] = (1, 1)) -> None:
        run_mixed(model, banks, counts, inputs)

    with pytest.raises(ValueError, match=r"the batch has 2 rows, but the banks have \[1, 2\]: each needs at least one"):
        ask(lora, lora, counts=(1, 2))
    with pytest.raises(ValueError, match="each needs at least one"):
        ask(lora, lora, counts=(2, 0))
    with pytest.raises(ValueError, match=r"the batch has 0 rows, but the banks have \[\]"):
        run_mixed(model, [], [], {name: rows[:0] for name, rows in inputs.items()})
    with pytest.raises(
        ValueError, match="banks with prompts or prefixes can only share a pass with banks that have the same number"
    ):
        ask(lora, prompt)
    with pytest.raises(ValueError, match=r"a reparametrisation network cannot share a pass: call fold\(\) on it"):
        ask(make_bank(model, "p_tuning"), prompt)
    with pytest.raises(ValueError, match=r"a reparametrisation network cannot share a pass: call fold\(\) on it"):
        ask(make_bank(model, "prefix"), lora)
    with pytest.raises(ValueError, match=r"training mode applies its own dropout: call eval\(\) on it"):
        ask(lora, learned_bank(model, "lora", 1).train())
    with attached(model, lora), pytest.raises(RuntimeError, match="already carries a bank"):
        ask(lora, learned_bank(model, "lora", 1))

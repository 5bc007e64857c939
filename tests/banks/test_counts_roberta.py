"""Parameter counts on RoBERTa-base equal those of He et al. 2022 (Table 2), AdapterHub (adapters 1.3) and peft 0.21.

The libraries' numbers were counted in their models, without heads.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.banks.counting import count, parts, published, rounded, total

ROBERTA, WITH_HEAD = 124_055_040, 124_647_170
"""The parameters of the encoder with its embeddings, without and with transformers' two-class head (two linear layers)."""
HEAD_BIASES = 768 + 2
MAM_16 = {"preset": "mam", "length": 16, "bottleneck": 16, "scale": 2.0}


def test_backbone_totals_match() -> None:
    assert total(published("roberta-base")) == ROBERTA
    assert ROBERTA + 768 * 768 + 768 + 2 * 768 + 2 == WITH_HEAD


@pytest.mark.parametrize(
    ("choice", "formula", "biases"),
    [
        (MAM_16, 589_824, 12 * (16 + 768)),
        ({"preset": "lora", "rank": 16}, 589_824, 0),
        ({"preset": "houlsby", "bottleneck": 16, "layernorms": "frozen"}, 589_824, 24 * (16 + 768)),
        ({"preset": "prefix", "length": 32}, 589_824, 0),
        ({"preset": "prefix_flat", "length": 32}, 589_824, 0),
    ],
)
def test_table_2_counts_0_5_percent(choice: dict[str, Any], formula: int, biases: int) -> None:
    assert count("roberta-base", choice) == formula + biases
    assert rounded(formula, ROBERTA, 3) == "0.475"
    assert rounded(formula, ROBERTA) == rounded(formula + biases, ROBERTA) == "0.5"


def test_mam_with_the_biases_of_the_released_code() -> None:
    assert count("roberta-base", MAM_16) == 599_232
    assert rounded(599_232, ROBERTA, 3) == "0.483"


def test_table_2_counts_0_1_percent_for_bitfit() -> None:
    # The paper's count includes the biases of the head, which here count as part of the head.
    ours = count("roberta-base", "bitfit")
    assert ours + HEAD_BIASES == 102_914
    assert rounded(102_914, WITH_HEAD, 3) == "0.083"
    assert rounded(102_914, WITH_HEAD) == rounded(ours, ROBERTA) == "0.1"


@pytest.mark.parametrize(
    ("choice", "theirs"),
    [
        # DoubleSeqBn with reduction factors 16 and 12 (bottlenecks 48 and 64); no LayerNorms are trained.
        ({"preset": "houlsby", "bottleneck": 48, "layernorms": "frozen"}, 1_789_056),
        ({"preset": "houlsby", "bottleneck": 64, "layernorms": "frozen"}, 2_379_264),
        # SeqBn with reduction factor 16, ParBn with reduction factor 2.
        ({"preset": "pfeiffer", "bottleneck": 48}, 894_528),
        ({"preset": "scaled_parallel", "bottleneck": 384}, 7_091_712),
        # Flat PrefixTuning, PromptTuning and LoRA.
        ({"preset": "prefix_flat", "length": 30}, 552_960),
        ({"preset": "prompt", "length": 10}, 7_680),
        ({"preset": "lora", "rank": 8}, 294_912),
        # The paper's MAM, built from a flat prefix of length 16 and ParBn with reduction factor 48.
        (MAM_16, 599_232),
    ],
)
def test_counts_match_adapterhub(choice: dict[str, Any], theirs: int) -> None:
    assert parts("roberta-base", choice) == (theirs, 0)


@pytest.mark.parametrize(
    ("choice", "theirs", "stored"),
    [
        # PrefixTuning with an MLP of width 512; MAM with an MLP of width 800, and ParBn with reduction factor 2.
        ({"preset": "prefix", "length": 30, "hidden": 512}, 9_872_384, 552_960),
        ({"preset": "mam", "length": 30, "bottleneck": 384}, 22_493_984, 552_960 + 7_091_712),
        ({"preset": "mam_flat", "length": 30, "bottleneck": 384}, 552_960 + 7_091_712, 552_960 + 7_091_712),
    ],
)
def test_training_counts_with_mlp_match_adapterhub(choice: dict[str, Any], theirs: int, stored: int) -> None:
    assert count("roberta-base", choice, trained=True) == theirs
    assert count("roberta-base", choice) == stored


@pytest.mark.parametrize(
    ("choice", "theirs"),
    [
        ({"preset": "prefix_flat", "length": 200}, 14_745_600),
        ({"preset": "scaled_parallel", "bottleneck": 512}, 25_202_688),
        ({"preset": "mam", "length": 30, "bottleneck": 512}, 27_414_528),
        ({"preset": "lora", "rank": 200}, 29_491_200),
        ({"preset": "lora_ffn", "rank": 102}, 25_067_520),
    ],
)
def test_counts_match_adapterhub_on_bart_large(choice: dict[str, Any], theirs: int) -> None:
    assert count("bart-large", choice) == theirs


@pytest.mark.parametrize(
    ("choice", "theirs"),
    [
        ({"preset": "lora", "rank": 8}, 294_912),
        ({"preset": "lora", "rank": 16}, 589_824),
        ({"preset": "prefix_flat", "length": 16}, 294_912),
        ({"preset": "prompt", "length": 20}, 15_360),
        # In peft, a pattern selects the two FFN projections; their bare names would also match attention modules.
        ({"preset": "lora_ffn", "rank": 16}, 1_474_560),
    ],
)
def test_counts_match_peft(choice: dict[str, Any], theirs: int) -> None:
    assert count("roberta-base", choice) == theirs


def test_peft_puts_a_prefix_into_one_kind_of_attention_of_bart() -> None:
    encoder = {"preset": "prefix_flat", "length": 200, "layers": "0-11"}
    assert count("bart-large", encoder) == 4_915_200
    assert count("bart-large", {**encoder, "layers": "all"}) == 3 * 4_915_200

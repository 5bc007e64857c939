"""Parameter counts of He et al. 2022 (https://arxiv.org/abs/2110.04366) on BART-large, integer for integer.

Appendix B counts without biases: a prefix has 2ld parameters, an adapter 2rd, and LoRA 4rd for queries and values of one
attention or 10rd for one FFN. Bottlenecks here have biases as in the released code, r + d each, so every row lists both
the paper's count and the biases. The percentages in Tables 5, 6 and 12 are truncated after one decimal; those of BitFit and
prompts are rounded.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.banks.counting import count, floored, published, rounded, total

BART, MBART = 406_291_456, 610_851_840
WIDTH = 1024
NUM_ATTENTIONS, NUM_FFNS = 3 * 12, 2 * 12
"""Encoder self-attention, decoder self-attention and cross-attention in 12 layers each; the FFNs of both stacks."""


def biases(size: int, places: int) -> int:
    """Return the number of biases, which the paper's formula for bottlenecks leaves out."""
    return places * (size + WIDTH)


def bottleneck(modifies: str, insertion: str, size: int) -> dict[str, Any]:
    return {"form": "bottleneck", "modifies": modifies, "insertion": insertion, "bottleneck": size}


def written(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"modifications": rows}


def preset(name: str, **options: Any) -> dict[str, Any]:
    return {"preset": name, **options}


def lora_ffn(rank: int) -> list[dict[str, Any]]:
    scaled = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "scale": 4.0, "rank": rank}
    return [{**scaled, "modifies": site} for site in ("ffn_in", "ffn_out")]


PREFIX_30 = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "length": 30}

# Name, bank, the paper's count, the additional biases, and the paper's percentage.
ROWS: list[tuple[str, dict[str, Any], int, int, str]] = [
    ("prefix 200", preset("prefix", length=200), 14_745_600, 0, "3.6"),
    ("prefix flat 200", preset("prefix_flat", length=200), 14_745_600, 0, "3.6"),
    ("prefix 512", preset("prefix_flat", length=512), 37_748_736, 0, "9.2"),
    ("SA attn 200", written(bottleneck("attention", "sequential", 200)), 14_745_600, 44_064, "3.6"),
    ("SA attn 512", written(bottleneck("attention", "sequential", 512)), 37_748_736, 55_296, "9.2"),
    ("PA attn 200", preset("parallel_attention", bottleneck=200), 14_745_600, 44_064, "3.6"),
    ("PA attn 512", preset("parallel_attention", bottleneck=512), 37_748_736, 55_296, "9.2"),
    ("MH-PA attn 200", preset("multihead_parallel", length=200), 14_745_600, 0, "3.6"),
    ("LoRA attn 200", preset("lora", rank=200), 29_491_200, 0, "7.2"),
    ("SA ffn 200", written(bottleneck("ffn", "sequential", 200)), 9_830_400, 29_376, "2.4"),
    ("SA ffn 512", written(bottleneck("ffn", "sequential", 512)), 25_165_824, 36_864, "6.1"),
    ("SA ffn 1024", written(bottleneck("ffn", "sequential", 1024)), 50_331_648, 49_152, "12.3"),
    ("Pfeiffer 600", preset("pfeiffer", bottleneck=600), 29_491_200, 38_976, "7.2"),
    ("PA ffn 200", preset("parallel", bottleneck=200), 9_830_400, 29_376, "2.4"),
    ("PA ffn 512", preset("parallel", bottleneck=512), 25_165_824, 36_864, "6.1"),
    ("PA ffn 1024", preset("parallel", bottleneck=1024), 50_331_648, 49_152, "12.3"),
    ("scaled PA ffn 512", preset("scaled_parallel", bottleneck=512), 25_165_824, 36_864, "6.1"),
    ("LoRA ffn 102", preset("lora_ffn", rank=102), 25_067_520, 0, "6.1"),
    (
        "PA attn 30 and PA ffn 512",
        written(bottleneck("heads", "parallel", 30), bottleneck("ffn", "parallel", 512)),
        27_377_664,
        37_944 + 36_864,
        "6.7",
    ),
    ("MAM", preset("mam"), 27_377_664, 36_864, "6.7"),
    ("MAM, written out", preset("mam", length=30, bottleneck=512), 27_377_664, 36_864, "6.7"),
    ("prefix 30 and LoRA ffn 102", written(PREFIX_30, *lora_ffn(102)), 27_279_360, 0, "6.7"),
]

# The rows of Tables 4 and 6 for translation.
ON_MBART = {"prefix 200", "MH-PA attn 200", "PA attn 200", "PA ffn 1024", "LoRA ffn 102", "MAM"} | {
    "PA attn 30 and PA ffn 512",
    "prefix 30 and LoRA ffn 102",
}


def test_backbone_totals_match() -> None:
    assert total(published("bart-large")) == BART
    assert total(published("mbart-large")) == MBART


@pytest.mark.parametrize(("choice", "formula", "extra", "printed"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_tables_5_6_and_12_on_bart_large(choice: dict[str, Any], formula: int, extra: int, printed: str) -> None:
    assert count("bart-large", choice) == formula + extra
    assert floored(formula, BART) == printed


@pytest.mark.parametrize("size", [1, 200])
def test_counts_of_appendix_b(size: int) -> None:
    prefix = 2 * size * WIDTH * NUM_ATTENTIONS
    assert count("bart-large", preset("prefix_flat", length=size)) == prefix
    assert count("bart-large", preset("multihead_parallel", length=size)) == prefix
    assert count("bart-large", preset("parallel_attention", bottleneck=size)) == prefix + biases(size, NUM_ATTENTIONS)
    ffn = 2 * size * WIDTH * NUM_FFNS
    assert count("bart-large", preset("parallel", bottleneck=size)) == ffn + biases(size, NUM_FFNS)
    assert count("bart-large", preset("lora", rank=size)) == 4 * size * WIDTH * NUM_ATTENTIONS
    assert count("bart-large", preset("lora_ffn", rank=size)) == 10 * size * WIDTH * NUM_FFNS
    assert count("bart-large", preset("prompt", length=size)) == size * WIDTH


def test_biases_match_the_tables() -> None:
    assert biases(200, NUM_ATTENTIONS) == 44_064
    assert biases(512, NUM_ATTENTIONS) == 55_296
    assert biases(30, NUM_ATTENTIONS) == 37_944
    assert [biases(size, NUM_FFNS) for size in (200, 512, 600, 1024)] == [29_376, 36_864, 38_976, 49_152]


def test_counts_include_the_biases_of_the_released_code() -> None:
    ffn, mam = (count("bart-large", choice) for choice in (preset("parallel", bottleneck=512), preset("mam")))
    assert (ffn, mam) == (25_202_688, 27_414_528)
    assert (rounded(ffn, BART, 3), rounded(mam, BART, 3)) == ("6.203", "6.748")


def test_input_norm_of_released_parallel_adapter_is_not_in_the_formula() -> None:
    plain = count("bart-large", preset("parallel_attention", bottleneck=200))
    assert count("bart-large", preset("parallel_attention", bottleneck=200, input_norm=True)) == (
        plain + NUM_ATTENTIONS * 2 * WIDTH
    )


def test_bitfit_and_prompts_round_to_0_1_percent() -> None:
    bitfit, prompt = count("bart-large", "bitfit"), count("bart-large", preset("prompt", length=200))
    assert (bitfit, prompt) == (333_824, 204_800)
    assert [rounded(n, BART, 3) for n in (bitfit, prompt)] == ["0.082", "0.050"]
    # The paper does not give the prompt's length; of the lengths it uses, 200 is the shortest that gives 0.1 %.
    assert rounded(bitfit, BART) == rounded(prompt, BART) == "0.1"
    assert rounded(count("bart-large", preset("prompt", length=30)), BART) == "0.0"


@pytest.mark.parametrize(
    ("choice", "formula", "extra", "percent"),
    [
        (preset("prefix_flat", length=30), 2_211_840, 0, "0.544"),
        (preset("multihead_parallel", length=30), 2_211_840, 0, "0.544"),
        (preset("parallel_attention", bottleneck=30), 2_211_840, 37_944, "0.544"),
        (preset("parallel", bottleneck=30), 1_474_560, 25_296, "0.363"),
    ],
)
def test_table_4_states_0_1_percent_wrongly(choice: dict[str, Any], formula: int, extra: int, percent: str) -> None:
    assert count("bart-large", choice) == formula + extra
    assert rounded(formula, BART, 3) == percent
    assert floored(formula, BART) in ("0.5", "0.3")


def test_table_6_states_7_2_percent_of_lora_wrongly() -> None:
    # Rank 102 has 6.1 %, as in Tables 5 and 12; 7.2 % would need rank 120.
    assert floored(count("bart-large", preset("lora_ffn", rank=102)), BART) == "6.1"
    assert count("bart-large", preset("lora_ffn", rank=120)) == 29_491_200
    assert floored(29_491_200, BART) == "7.2"


def test_a_prefix_in_training_has_one_mlp_for_each_kind_of_attention() -> None:
    length, hidden = 200, 800
    choice = preset("prefix", length=length, hidden=hidden)
    outputs = 12 * 2 * WIDTH
    one = length * WIDTH + (WIDTH + 1) * hidden + (hidden + 1) * outputs
    assert count("bart-large", choice, trained=True) == 3 * one == 62_130_528
    assert rounded(62_130_528, BART) == "15.3"
    # Only the vectors are stored, which is also what the paper counts.
    assert count("bart-large", choice) == 14_745_600


@pytest.mark.parametrize(
    ("choice", "formula", "extra"),
    [row[1:4] for row in ROWS if row[0] in ON_MBART],
    ids=[row[0] for row in ROWS if row[0] in ON_MBART],
)
def test_mbart_large_has_the_same_counts(choice: dict[str, Any], formula: int, extra: int) -> None:
    # The paper prints BART's percentages for mBART too, although mBART has 1.5 times as many parameters.
    assert count("mbart-large", choice) == formula + extra


def test_mbart_large_has_two_more_norms_and_a_larger_whole() -> None:
    assert count("mbart-large", "bitfit") == 333_824 + 2 * WIDTH
    assert count("mbart-large", "layernorm") == count("bart-large", "layernorm") + 2 * 2 * WIDTH
    assert rounded(count("mbart-large", preset("prefix", length=200)), MBART, 2) == "2.41"
    # mBART is pre-norm, so Pfeiffer's adapter reads the FFN's output without a norm.
    pfeiffer = preset("pfeiffer", bottleneck=600, normalised_input=False)
    assert count("mbart-large", pfeiffer) == 29_491_200 + 38_976

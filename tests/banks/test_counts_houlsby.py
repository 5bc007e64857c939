"""Parameter counts of Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), integer for integer, percentages to the digit.

An adapter has 2md + d + m parameters (section 2.1), a LayerNorm 2d; a layer has two of each. The percentages in Table 1
are shares of the encoder's layers, without embeddings and pooler; those for BERT-base are shares of the whole model.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.banks.counting import count, floored, parts, published, rounded, times, total

BERT_LARGE, BERT_LARGE_ENCODER = 335_141_888, 302_309_376
BERT_BASE, BERT_BASE_LAYER, BERT_BASE_POOLER = 109_482_240, 7_087_872, 590_592
NUM_GLUE_TASKS = 9
"""MNLI counts as two tasks, since it has two test sets."""


def houlsby(size: int) -> dict[str, object]:
    return {"preset": "houlsby", "bottleneck": size}


def test_backbone_totals_match() -> None:
    large, base = published("bert-large"), published("bert-base")
    assert total(large) == BERT_LARGE
    assert total(large.get_submodule("encoder")) == BERT_LARGE_ENCODER
    assert total(base) == BERT_BASE
    assert total(base.get_submodule("encoder")) == 12 * BERT_BASE_LAYER
    assert total(base.get_submodule("pooler")) == BERT_BASE_POOLER


@pytest.mark.parametrize("size", [2**n for n in range(10)])
def test_adapter_has_2md_plus_d_plus_m_parameters(size: int) -> None:
    # The sizes in figure 4.
    assert parts("bert-base", houlsby(size)) == (24 * (2 * size * 768 + 768 + size), 25 * 2 * 768)


@pytest.mark.parametrize(
    ("size", "adapters", "of_encoder", "of_encoder_with_norms", "of_all", "of_all_with_norms"),
    [
        (8, 835_968, "0.28", "0.31", "0.25", "0.28"),
        (64, 6_343_680, "2.10", "2.13", "1.89", "1.92"),
        (256, 25_227_264, "8.34", "8.38", "7.53", "7.56"),
    ],
)
def test_table_1_on_bert_large(
    size: int, adapters: int, of_encoder: str, of_encoder_with_norms: str, of_all: str, of_all_with_norms: str
) -> None:
    norms = 100_352
    assert parts("bert-large", houlsby(size)) == (adapters, norms)
    assert rounded(adapters, BERT_LARGE_ENCODER, 2) == of_encoder
    assert rounded(adapters + norms, BERT_LARGE_ENCODER, 2) == of_encoder_with_norms
    assert rounded(adapters, BERT_LARGE, 2) == of_all
    assert rounded(adapters + norms, BERT_LARGE, 2) == of_all_with_norms


def test_table_1_counts_2_1_percent_of_the_encoder() -> None:
    ours = count("bert-large", houlsby(64))
    assert ours == 6_444_032
    assert rounded(ours, BERT_LARGE_ENCODER) == floored(ours, BERT_LARGE_ENCODER) == "2.1"
    assert rounded(ours, BERT_LARGE) == "1.9"
    # With nine tasks, encoder and banks together are 1.2 times the size of the encoder, as in the paper.
    whole = BERT_LARGE_ENCODER + NUM_GLUE_TASKS * ours
    assert times(whole, BERT_LARGE_ENCODER) == "1.2"
    assert times(whole, BERT_LARGE_ENCODER, 2) == "1.19"


def test_table_1_counts_3_6_percent_with_sizes_from_8_to_256() -> None:
    sizes = {size: count("bert-large", houlsby(size)) for size in (8, 64, 256)}
    # The paper gives the best size only for MNLI (256, two of the nine) and RTE (8). Of all choices for the other six,
    # only one gives the printed 3.6 %: with it, each size occurs three times among the nine.
    fitting = []
    for others in combinations_with_replacement(sizes, NUM_GLUE_TASKS - 3):
        chosen = (256, 256, 8, *others)
        if rounded(sum(sizes[size] for size in chosen), NUM_GLUE_TASKS * BERT_LARGE_ENCODER) == "3.6":
            fitting.append(sorted(chosen))
    assert fitting == [[8, 8, 8, 64, 64, 64, 256, 256, 256]]
    whole = BERT_LARGE_ENCODER + 3 * sum(sizes.values())
    assert times(whole, BERT_LARGE_ENCODER) == "1.3"
    assert times(whole, BERT_LARGE_ENCODER, 2) == "1.32"


def test_full_fine_tuning_of_nine_tasks_is_9_0x() -> None:
    full = count("bert-large", "full")
    assert full == BERT_LARGE
    assert times(NUM_GLUE_TASKS * full, BERT_LARGE) == "9.0"


def test_bert_base_of_64_is_2_percent_and_of_2_is_0_1_percent() -> None:
    assert parts("bert-base", houlsby(64)) == (2_379_264, 38_400)
    assert count("bert-base", houlsby(64)) == 2_417_664
    assert rounded(2_379_264, BERT_BASE, 2) == "2.17"
    assert rounded(2_417_664, BERT_BASE, 2) == "2.21"
    assert round(100 * 2_417_664 / BERT_BASE) == 2
    assert parts("bert-base", houlsby(2)) == (92_208, 38_400)
    assert count("bert-base", houlsby(2)) == 130_608
    assert rounded(92_208, BERT_BASE) == rounded(130_608, BERT_BASE) == "0.1"


def test_layernorms_alone_are_40k() -> None:
    assert parts("bert-base", "layernorm") == (0, 38_400)
    assert round(38_400, -4) == 40_000


def test_table_2_counts_1_14_percent_with_its_sizes() -> None:
    # The paper does not say which of the sizes 2, 4, 8, 16, 32 and 64 was best for each of the 17 tasks. With the smallest
    # or the largest for all, the result is far off; with a mean near 32, such as eight times 64 and nine times 4, it is as
    # printed.
    counts = {size: count("bert-base", houlsby(size)) for size in (2, 4, 64)}
    assert rounded(counts[2], BERT_BASE, 2) == "0.12"
    assert rounded(counts[64], BERT_BASE, 2) == "2.21"
    seventeen = 8 * counts[64] + 9 * counts[4]
    assert rounded(seventeen, 17 * BERT_BASE, 2) == "1.14"
    assert times(BERT_BASE + seventeen, BERT_BASE, 2) == "1.19"


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5, 7, 9, 11])
def test_variable_fine_tuning_copies_whole_layers(num_layers: int) -> None:
    assert parts("bert-base", {"preset": "top_layers", "layers": f"top-{num_layers}"}) == (
        0,
        num_layers * BERT_BASE_LAYER,
    )


def test_top_12_layers_equal_the_full_encoder() -> None:
    # The embeddings count as part of the first layer; a pooler is part of a full copy if the task reads it.
    assert count("bert-base", {"preset": "top_layers", "layers": "top-12"}) == BERT_BASE == count("bert-base", "full")


def test_paper_states_9m_for_the_top_layer_wrongly() -> None:
    ours = count("bert-base", {"preset": "top_layers", "layers": "top-1"})
    assert ours == BERT_BASE_LAYER
    # Neither the layer nor the layer with the pooler rounds to nine million.
    assert [round(n, -6) for n in (ours, ours + BERT_BASE_POOLER)] == [7_000_000, 8_000_000]


def test_probe_has_no_parameters() -> None:
    assert parts("bert-base", "probe") == (0, 0)

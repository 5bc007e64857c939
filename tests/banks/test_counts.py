"""Parameter counts of the papers, computed from configurations on the meta device (no weights, no memory)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel, RobertaConfig, RobertaModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.choice import BankChoice


def _bert_base() -> BertModel:
    return BertModel(BertConfig())


def _bert_large() -> BertModel:
    return BertModel(BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))


def _roberta_base() -> RobertaModel:
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    return RobertaModel(config, add_pooling_layer=False)


def _count(model: PreTrainedModel, choice: dict[str, Any]) -> tuple[int, int]:
    spec = BankChoice.model_validate(choice).resolve()
    sites = Sites(find_anatomy(model.config.model_type), model)
    counted = Bank(spec, model, sites, nn.Identity(), reads="pooler", folded=True).count()
    return counted["modifications"], counted["own"]


@pytest.mark.parametrize(
    ("make", "choice", "modifications", "own"),
    [
        # Houlsby et al. 2019, Table 1 and section 3: 2md + d + m each, two a layer, LayerNorms of 2d each.
        (_bert_base, {"preset": "houlsby", "bottleneck": 64}, 2_379_264, 38_400),
        (_bert_base, {"preset": "houlsby", "bottleneck": 2}, 92_208, 38_400),
        (_bert_large, {"preset": "houlsby", "bottleneck": 64}, 6_343_680, 100_352),
        (_bert_base, {"preset": "layernorm"}, 0, 38_400),
        (_bert_base, {"preset": "full"}, 0, 109_482_240),
        (_bert_base, {"preset": "full", "layers": 11}, 0, 7_087_872),
        (_bert_base, {"preset": "probe"}, 0, 0),
        # He et al. 2022, Table 2: RoBERTa-base. BitFit prints 102,914 with the 770 biases of its head.
        (_roberta_base, {"preset": "bitfit"}, 0, 102_914 - 770),
        (_roberta_base, {"preset": "lora", "rank": 8}, 294_912, 0),
        (_roberta_base, {"preset": "lora", "rank": 16}, 589_824, 0),
        # AdapterHub's counts of the same architectures: DoubleSeq rf 12, Seq rf 16, Par rf 2.
        (_roberta_base, {"preset": "houlsby", "bottleneck": 64, "layernorms": "frozen"}, 2_379_264, 0),
        (_roberta_base, {"preset": "pfeiffer", "bottleneck": 48}, 894_528, 0),
        (_roberta_base, {"preset": "scaled_parallel", "bottleneck": 384}, 7_091_712, 0),
    ],
)
def test_counts_are_the_papers(make: Any, choice: dict[str, Any], modifications: int, own: int) -> None:
    with torch.device("meta"):
        assert _count(make(), choice) == (modifications, own)


@pytest.mark.parametrize(
    ("make", "total"), [(_bert_base, 109_482_240), (_bert_large, 335_141_888), (_roberta_base, 124_055_040)]
)
def test_totals_that_percentages_rest_on(make: Any, total: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in make().parameters()) == total


def test_ffn_lowrank_by_its_dimensions_counts_as_lora_ffn() -> None:
    # He et al. 2022, Appendix B: LoRA on both projections of the FFN has 10rd parameters a layer.
    rows = [
        {"form": "lowrank", "modifies": site, "insertion": "parallel", "composition": "scaled", "rank": 102}
        for site in ("ffn_in", "ffn_out")
    ]
    with torch.device("meta"):
        assert _count(_roberta_base(), {"modifications": rows}) == (10 * 102 * 768 * 12, 0)

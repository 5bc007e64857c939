"""Every fact in the table of families is checked on a tiny model."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.backbones import Projection, find_anatomy
from continual_petl.backbones.sites import Layer, Sites, attention_of
from tests.backbones.proofs import check_attention, check_norms, check_results, close, single
from tests.backbones.watch import Heads, seen_by_attention, watch
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES, make_inputs, make_model

OWN_ATTENTION = {"mpnet", "deberta", "deberta-v2"}
ROTARY = {"modernbert", "llama", "qwen2", "qwen3"}

every_family = pytest.mark.parametrize("family", FAMILIES)


def make(family: str) -> tuple[PreTrainedModel, Sites]:
    model = make_model(family)
    model.set_attn_implementation("eager") if family not in OWN_ATTENTION else None
    return model, Sites(find_anatomy(model.config.model_type), model)


@every_family
def test_layers_are_numbered_across_stacks(family: str) -> None:
    _, sites = make(family)
    count = 4 if family in ENCODER_DECODERS else 2
    assert [layer.number for layer in sites.layers] == list(range(count))
    assert [layer.first for layer in sites.layers] == [True, False] * (count // 2)
    assert [layer.last for layer in sites.layers] == [False, True] * (count // 2)


@every_family
def test_widths_match_the_modules(family: str) -> None:
    _, sites = make(family)
    for layer in sites.layers:
        assert sites.hidden_width(layer) == 16
        assert {sites.width(layer, p) for p in sites.into(layer)} == {(16, 32)}
        assert sites.module_width(layer.full(layer.stack.ffn.out)) == (32, 16)
        for attention in layer.stack.attentions:
            # Two heads of width 8, which share one key and value head in some models.
            shared = 8 if family in {"llama", "qwen2", "qwen3"} else 16
            assert sites.width(layer, attention.query) == (16, 16)
            assert sites.width(layer, attention.key) == sites.width(layer, attention.value) == (16, shared)
            assert sites.module_width(layer.full(attention.out)) == (16, 16)


@every_family
def test_attention_function_is_called_by_the_described_modules(family: str) -> None:
    model, sites = make(family)
    assert sites.anatomy.attention_registry == (family not in OWN_ATTENTION)
    check_attention(model, sites, make_inputs(family))


def in_heads(states_BTC: Tensor, like: Tensor) -> Tensor:
    """Split projected states into heads of the same shape as ``like``."""
    rows, heads, tokens, width = like.shape
    return states_BTC.view(rows, tokens, heads, width).transpose(1, 2)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in OWN_ATTENTION])
def test_projections_yield_the_queries_keys_and_values_of_attention(family: str) -> None:
    model, sites = make(family)
    inputs = make_inputs(family)
    if family in ROTARY:  # at position 0, nothing is rotated
        inputs["position_ids"] = torch.zeros_like(inputs["input_ids"])
    with seen_by_attention(model) as seen:
        _, calls = watch(model, inputs)
    heads_of = {id(heads.module): heads for heads in seen}
    for layer in sites.layers:
        for attention in layer.stack.attentions:
            heads: Heads = heads_of[id(model.get_submodule(layer.full(attention.module)))]

            def projected(projection: Projection, like: Tensor, layer: Layer = layer) -> Tensor:
                whole = single(calls, layer.full(projection.path)).output
                return in_heads(whole[..., sites.columns(layer, projection)], like)

            query, key = projected(attention.query, heads.query), projected(attention.key, heads.key)
            if layer.stack.extra_norms:
                query_norm, key_norm = (model.get_submodule(layer.full(path)) for path in layer.stack.extra_norms)
                query, key = query_norm(query), key_norm(key)
            close(heads.query, query)
            close(heads.key, key)
            close(heads.value, projected(attention.value, heads.value))


def test_deberta_projection_is_laid_out_head_by_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sites = make("deberta")
    for layer in sites.layers:
        attention = attention_of(layer, "self")
        module = model.get_submodule(layer.full(attention.module))
        split = module.transpose_for_scores
        found: list[Tensor] = []
        monkeypatch.setattr(module, "transpose_for_scores", lambda x, f=found, s=split: f.append(s(x)) or f[-1])
        _, calls = watch(model, make_inputs("deberta"))
        whole = single(calls, layer.full(attention.query.path)).output
        for projection, heads in zip(
            (attention.query, attention.key, attention.value), found[0].chunk(3, dim=-1), strict=True
        ):
            close(heads, in_heads(whole[..., sites.columns(layer, projection)], heads))


def test_modules_projecting_positions_are_called_twice() -> None:
    for family in FAMILIES:
        model, sites = make(family)
        _, calls = watch(model, make_inputs(family))
        for layer in sites.layers:
            for attention in layer.stack.attentions:
                for projection in (attention.query, attention.key, attention.value):
                    times = 2 if projection.also_positions else 1
                    assert len(calls[layer.full(projection.path)]) == times, (family, projection.path)


@every_family
def test_results_are_added_to_the_residual_stream_where_described(family: str) -> None:
    check_results(*make(family), make_inputs(family))


@every_family
def test_every_norm_is_found_once(family: str) -> None:
    check_norms(*make(family))


def test_norms_outside_the_layers_belong_to_the_first() -> None:
    model = make_model("deberta-v2")
    kind, config = type(model), model.config
    config.conv_kernel_size = 3
    sites = Sites(find_anatomy("deberta-v2"), kind(config))
    assert {"encoder.LayerNorm", "encoder.conv.LayerNorm"} <= set(sites.norms(sites.layers[0]))
    assert len(sites.norms(sites.layers[1])) == 2


OUTSIDE: dict[str, dict[str, int | None]] = {
    "bert": {"embeddings": 0, "pooler": None},
    "distilbert": {"embeddings": 0},
    "mpnet": {"embeddings": 0, "encoder.relative_attention_bias": 0},
    "deberta-v2": {"embeddings": 0, "encoder.rel_embeddings": 0, "encoder.LayerNorm": 0},
    "modernbert": {"embeddings": 0, "final_norm": 1},
    "bart": {"model.shared": 0, "model.encoder": 0, "model.decoder": 2},
    "mbart": {
        "model.shared": 0, "model.encoder": 0, "model.encoder.layer_norm": 1, "model.decoder": 2,
        "model.decoder.layer_norm": 3,
    },
    "t5": {"shared": 0, "encoder.final_layer_norm": 1, "decoder.final_layer_norm": 3},
    "mt5": {
        "shared": 0, "encoder.final_layer_norm": 1, "decoder.final_layer_norm": 3, "lm_head": 3,
    },
    "gpt2": {"transformer.wte": 0, "transformer.wpe": 0, "transformer.ln_f": 1},
    "llama": {"model.embed_tokens": 0, "model.norm": 1, "lm_head": 1},
    "qwen2": {"model.embed_tokens": 0, "model.norm": 1},
    "vit": {"embeddings": 0, "layernorm": 1},
}  # fmt: skip
"""For parameters outside all layers, by prefix of the name: the layer they count towards. The longest prefix wins."""


@pytest.mark.parametrize("family", OUTSIDE)
def test_every_parameter_has_its_owner(family: str) -> None:
    model, sites = make(family)
    used = set()
    for name, _ in model.named_parameters():
        inside = [layer.number for layer in sites.layers if name.startswith(f"{layer.path}.")]
        if inside:
            assert [sites.owner(name)] == inside
            continue
        start = max((start for start in OUTSIDE[family] if name.startswith(start)), key=len)
        assert sites.owner(name) == OUTSIDE[family][start], name
        used.add(start)
    assert used == set(OUTSIDE[family])


@every_family
def test_model_wide_facts_match_the_description(family: str) -> None:
    model, sites = make(family)
    anatomy = sites.anatomy
    assert anatomy.output_head == (
        "seq2seq" if family in ENCODER_DECODERS else "causal" if family in DECODERS else "none"
    )
    assert (model.get_output_embeddings() is not None) == (anatomy.output_head != "none")  # type: ignore[no-untyped-call]
    assert getattr(model.config, anatomy.hidden_size_key) == 16
    assert anatomy.images == (family == "vit")
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert bool(biases) == (family not in {"t5", "mt5", "modernbert", "llama", "qwen3"})
    prompt = anatomy.prompt
    assert prompt is not None
    assert (prompt.norm is None) != (prompt.stack is None)
    for path in (prompt.norm, prompt.stack, prompt.positions):
        assert not path or sites.base + path in dict(model.named_modules())


def test_families_can_be_imported_without_torch() -> None:
    code = "import sys; from continual_petl.backbones.families import FAMILIES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

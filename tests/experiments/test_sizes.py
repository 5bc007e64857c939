"""Memory estimates from configurations: parameters as published, exact weights, activations close to measured ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from continual_petl.backbones.backbone import load_backbone
from continual_petl.streams.stream_file.yaml_file import load_stream
from experiments.sizes.__main__ import HERE, page, table
from experiments.sizes.estimate import BANKS, bank_on, kept, kept_by, model_of, sizes, weights
from experiments.sizes.measure import SMALL, compared
from experiments.sizes.published import NAMES, published
from tests.tiny import make_tokenizer

PARAMETERS = {
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3.1-8B": 8_030_261_248,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
}
"""As listed for the safetensors files on the Hub."""


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model = model_of(published(name))
        added = bank_on(model, BANKS["lora"])
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    config = model.config
    # Rank 16 on query (width to all heads) and value (width to the key-value heads), in every layer.
    outputs = config.head_dim * (config.num_attention_heads + config.num_key_value_heads)
    expected = config.num_hidden_layers * 16 * (2 * config.hidden_size + outputs)
    assert sum(p.numel() for p in added.parameters()) == expected


def test_activations_counted_without_weights_are_those_counted_with_weights() -> None:
    for bank in BANKS.values():
        model = model_of(type(SMALL)(**(SMALL.to_dict() | {"num_hidden_layers": 2})))
        ids = torch.zeros(2, 16, dtype=torch.int64)
        assert kept_by(model, bank_on(model, bank), ids) == kept(SMALL, bank, 2, 16, 2)


def test_layers_are_equal_from_the_second_on() -> None:
    one, two, three = (kept(SMALL, BANKS["houlsby"], 2, 16, number) for number in (1, 2, 3))
    assert three.total - two.total == two.total - one.total
    assert three.after == two.after == one.after


@pytest.mark.slow
def test_estimates_are_close_to_what_is_allocated() -> None:
    for own in compared().values():
        for suffix in ("", "_checkpointing"):
            # The masks of the rows and the logits in another dtype are not kept by autograd, but they are still allocated.
            assert own[f"measured{suffix}"] == pytest.approx(own[f"estimated{suffix}"], rel=0.06)


@pytest.mark.parametrize("number", [0, 1])
def test_bytes_of_quantised_weights_are_those_of_torchao(number: int, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    model = model_of(SMALL)
    model.save_pretrained(tmp_path)
    make_tokenizer("llama").save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path), precision="bf16", quantize=("int8", "nf4")[number])

    def stored(tensor: torch.Tensor) -> int:
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        return sum(stored(getattr(tensor, name)) for name in names) if names else tensor.nbytes

    assert sum(stored(parameter) for parameter in backbone.model.parameters()) == weights(model)[number]


def test_the_page_is_made_from_the_result() -> None:
    found = json.loads((HERE / "sizes.json").read_text("utf-8"))
    assert (HERE / "README.md").read_text("utf-8") == page(found)
    assert table(found, "lora") in (HERE.parents[1] / "docs" / "backbones.md").read_text("utf-8")
    batch = found["batch"]
    again = sizes(published("Qwen3-0.6B"), BANKS["lora"], batch["rows"], batch["length"])
    assert vars(again) == found["sizes"]["Qwen3-0.6B"]["lora"]


def test_the_example_is_a_stream() -> None:
    spec = load_stream(HERE / "qwen3_8b.yaml", [])
    assert [task.name for task in spec.tasks] == ["support", "entailment"]
    assert spec.tasks[1].options == ("yes", "no", "maybe")

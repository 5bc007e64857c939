"""Create the golden tensors: the results of AdapterHub's `adapters`, in float64, on tiny random models.

`adapters` 1.3.0 needs transformers 4.57, so it cannot be installed in this project's environment. Create a separate one:

    python -m venv golden-env
    golden-env/bin/pip install torch==2.13.0
    golden-env/bin/pip install adapters==1.3.0 numpy safetensors
    golden-env/bin/python tests/golden/make_golden.py

It writes CASE.safetensors next to itself, one file per case, and needs no network. A file holds

    backbone.NAME                  the backbone's parameters by their names in transformers (tied ones once)
    adapter.layer_I.PLACE.NAME     PLACE self or cross (one of the layer's attentions) or ffn; NAME of a bottleneck
                                   down.weight (R, D), down.bias, up.weight (D, R), up.bias, of a prefix key and value (l, D)
    input.NAME                     arguments of the forward pass; rows have different lengths
    expected.last_hidden_state     float64; of an encoder-decoder also expected.encoder_last_hidden_state

and in its metadata, under `case`, the backbone's configuration and the adapter's as JSON. Layers count through both
stacks, encoder first. Weights are float32 numbers, so they are exact in float64; only what is expected needs float64 on
disk. All of them are random, the up-projections too: where something starts as zero, a mistake before it would not show.

`adapters` keeps the flat prefix of all layers of one attention type in one vector, which it views as (l, 2 * layers, heads,
width / heads) and permutes to (2 * layers, batch, heads, l, width / heads): row 2 i is the key of layer i and row 2 i + 1
its value, and position, not layer, is the slowest axis. `_prefixes` undoes that, and `_Watch` looks at what each
attention really puts in front of its keys and values, where the padding mask of a prefix is 0 and no position is shifted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import adapters  # type: ignore[import-not-found]
import torch
from adapters.methods.prefix_tuning import PrefixTuningLayer  # type: ignore[import-not-found]
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BartConfig, BartModel, BertConfig, BertModel

HERE = Path(__file__).parent
LENGTH = 3
IDS = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 21, 3, 0]])
DECODER_IDS = torch.tensor([[3, 2, 13, 14], [3, 2, 22, 0]])

BERT: dict[str, Any] = {
    "vocab_size": 24,
    "max_position_embeddings": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
BART: dict[str, Any] = {
    "vocab_size": 24,
    "max_position_embeddings": 8,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
}

# A reduction of width 16 by 4: a bottleneck of 4.
SIZE: dict[str, Any] = {"reduction_factor": 4}
# cross_adapter: by default adapters leaves a decoder's cross-attention alone; the three attentions of He et al. have it.
METHODS: dict[str, Callable[[], Any]] = {
    "double_seq_bn": lambda: adapters.DoubleSeqBnConfig(**SIZE, cross_adapter=True),
    "seq_bn": lambda: adapters.SeqBnConfig(**SIZE),
    "par_bn": lambda: adapters.ParBnConfig(**SIZE),
    "prefix_flat": lambda: adapters.PrefixTuningConfig(flat=True, prefix_length=LENGTH),
    "mam_flat": lambda: adapters.ConfigUnion(
        adapters.PrefixTuningConfig(flat=True, prefix_length=LENGTH), adapters.ParBnConfig(**SIZE)
    ),
}
CASES = {
    "bert": ("double_seq_bn", "seq_bn", "par_bn", "prefix_flat", "mam_flat"),
    "bart": ("double_seq_bn", "par_bn", "prefix_flat", "mam_flat"),
}
LOCATIONS: dict[str, dict[str, tuple[str, int]]] = {
    "bert": {"self_prefix": ("self", 0)},
    "bart": {"encoder_prefix": ("self", 0), "self_prefix": ("self", 2), "cross_prefix": ("cross", 2)},
}
"""The attention's name here and the number of its stack's first layer, by adapters' location key."""


def _model(family: str) -> nn.Module:
    # Eager attention adds the mask it is given; nothing is left to a kernel's own idea of causality.
    if family == "bert":
        bert = BertConfig(**BERT)
        bert._attn_implementation = "eager"
        return BertModel(bert, add_pooling_layer=False)
    bart = BartConfig(**BART)
    bart._attn_implementation = "eager"
    return BartModel(bart)


def _inputs(family: str) -> dict[str, Tensor]:
    inputs = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
    if family == "bart":
        inputs |= {"decoder_input_ids": DECODER_IDS, "decoder_attention_mask": (DECODER_IDS != 0).long()}
    return inputs


@torch.no_grad()
def _randomise(parameters: Iterator[tuple[str, nn.Parameter]], generator: torch.Generator, scale: float) -> None:
    for name, parameter in parameters:
        noise = scale * torch.randn(parameter.shape, generator=generator)
        is_norm = name.endswith("weight") and parameter.ndim == 1
        parameter.copy_(1 + noise if is_norm else noise)


def _bottlenecks(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of all bottleneck adapters under the names of this project."""
    found = {}
    for name, parameter in model.named_parameters():
        # encoder.layer.0.attention.output.adapters.case.adapter_down.0.weight, decoder.layers.0.output_adapters.adapters...
        path, _, rest = name.partition(".adapters.case.")
        if not rest:
            continue
        parts = path.split(".")
        layer = int(parts[2]) + (BART["encoder_layers"] if parts[0] == "decoder" else 0)
        place = "cross" if "cross_attention" in path else "self" if "attention" in path else "ffn"
        which, _, leaf = rest.partition(".")
        side = {"adapter_down": "down", "adapter_up": "up"}[which]
        found[f"layer_{layer}.{place}.{side}.{leaf.removeprefix('0.')}"] = parameter.detach()
    return found


def _prefixes(model: nn.Module, family: str) -> dict[str, Tensor]:
    """Return the flat prefixes as (l, D) matrices, layer by layer; see the head of this file."""
    found = {}
    for name, flat in model.named_parameters():
        if not name.endswith("control_trans"):
            continue
        attention, first = LOCATIONS[family][name.split(".")[-2]]
        rows = flat.detach().view(LENGTH, -1, 2, BERT["hidden_size"])
        for layer in range(rows.shape[1]):
            for number, part in enumerate(("key", "value")):
                found[f"layer_{first + layer}.{attention}.{part}"] = rows[:, layer, number].clone()
    return found


class _Watch:
    """Notes what every attention concatenated in front of its keys and values."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            if isinstance(module, PrefixTuningLayer):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        parts = name.split(".")
        layer = int(parts[2]) + (BART["encoder_layers"] if parts[0] == "decoder" else 0)
        attention = "cross" if "encoder_attn" in parts else "self"

        def note(module: nn.Module, args: Any, output: Any) -> None:
            for part, states, before in zip(("key", "value"), output[:2], args[:2], strict=True):
                if states.shape[2] == before.shape[2]:
                    continue
                assert torch.equal(states[:, :, LENGTH:], before), "a prefix stands in front and changes nothing else"
                if output[2] is not None:
                    assert not output[2][..., :LENGTH].any(), "every position of a prefix is seen"
                matrices = states[:, :, :LENGTH].transpose(1, 2).flatten(2)
                assert torch.equal(matrices[0], matrices[1]), "every row of a batch gets the same prefix"
                self.seen[f"layer_{layer}.{attention}.{part}"] = matrices[0]

        return note

    def check(self, prefixes: dict[str, Tensor]) -> None:
        assert self.seen.keys() == prefixes.keys(), (sorted(self.seen), sorted(prefixes))
        for name, matrix in prefixes.items():
            assert torch.equal(self.seen[name], matrix), f"{name} is not what the attention put in front"


def make(family: str, method: str) -> None:
    """Write one case."""
    generator = torch.Generator().manual_seed(sum(map(ord, family + method)))
    model = _model(family)
    _randomise(model.named_parameters(), generator, 0.3)
    backbone = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    inputs = _inputs(family)
    with torch.no_grad():
        without = copy.deepcopy(model).double().train(False)(**inputs).last_hidden_state
    adapters.init(model)
    config = METHODS[method]()
    model.add_adapter("case", config=config)  # type: ignore[operator]
    fresh = [(n, p) for n, p in model.named_parameters() if n not in backbone]
    _randomise(iter(fresh), generator, 0.5)
    model.double().train(False)
    model.set_active_adapters("case")  # type: ignore[operator]
    watch = _Watch(model)
    with torch.no_grad():
        output = model(**inputs)
    prefixes, bottlenecks = _prefixes(model, family), _bottlenecks(model)
    watch.check(prefixes)
    weights = prefixes | bottlenecks
    assert sum(t.numel() for t in weights.values()) == sum(p.numel() for _, p in fresh), "a weight was left out"
    assert float((output.last_hidden_state - without).abs().max()) > 0.1, "the adapter changes something"
    tensors = {f"backbone.{name}": tensor for name, tensor in backbone.items()}
    tensors |= {f"adapter.{name}": tensor.float().contiguous() for name, tensor in weights.items()}
    assert all(torch.equal(tensors[f"adapter.{name}"].double(), tensor) for name, tensor in weights.items())
    tensors |= {f"input.{name}": tensor.clone() for name, tensor in inputs.items()}
    tensors["expected.last_hidden_state"] = output.last_hidden_state.contiguous()
    if family == "bart":
        tensors["expected.encoder_last_hidden_state"] = output.encoder_last_hidden_state.contiguous()
    case = {
        "family": family,
        "config": BERT if family == "bert" else BART,
        "adapter": config.to_dict(),
        "made_with": {name: version(name) for name in ("adapters", "transformers", "torch")},
    }
    # One entry: safetensors writes several in any order, and the same run should give the same bytes.
    save_file(tensors, HERE / f"{family}_{method}.safetensors", {"case": json.dumps(case, sort_keys=True)})


if __name__ == "__main__":
    for family, methods in CASES.items():
        for method in methods:
            make(family, method)

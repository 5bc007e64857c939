"""Memory needed to learn one bank, from a model's configuration alone.

* Parameters are counted on the meta device.
* Weights: 2 bytes per parameter in bf16. The linear layers, except the output head, are quantised: int8 takes one byte per
  weight and 5 per output (a float32 scale and an int8 zero point); nf4 takes half a byte per weight, one byte per 64 weights,
  2 per 16,384 weights and 34 per matrix (as stored by torchao 0.18).
* Bank: 4 bytes per parameter for each of value, gradient and AdamW's two moments.
* Kept activations: the storages that autograd saves in one forward pass with the loss, excluding parameters. They are
  counted in torch's ``FakeTensorMode``, which runs the pass without computing or allocating anything, for one and two
  layers: with L layers, ``kept(L) = kept(1) + (L - 1) (kept(2) - kept(1))``. With gradient checkpointing, every layer keeps
  only its input, ``2 rows length width`` bytes, and one layer at a time recomputes its activations; what is saved after the
  last layer (final norm, logits and loss) stays: ``after + 2 L rows length width + kept(2) - kept(1)``. A batch has
  padding, so attention gets a mask, and transformers repeats keys and values for all heads; without padding, less is kept.

What a step allocates temporarily (the products of one layer, the gradient of the logits), fragmentation of the allocator and
the memory of the libraries themselves are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from continual_petl.heads.generation import GenerationHead

BANKS: dict[str, dict[str, Any]] = {
    "lora": {"preset": "lora", "rank": 16},
    "houlsby": {"preset": "houlsby", "bottleneck": 64},
}


@dataclass(kw_only=True)
class Sizes:
    """Numbers of parameters, and sizes in bytes."""

    backbone: int
    """Parameters of the backbone."""
    bank: int
    """Parameters of the bank."""
    bf16: int
    """Bytes of the backbone's weights in bf16; ``int8`` and ``nf4`` are for quantised weights."""
    int8: int
    nf4: int
    gradients: int
    moments: int
    kept: int
    """Bytes of activations kept for the backward pass."""
    kept_checkpointing: int
    """The same with gradient checkpointing."""


class Kept(NamedTuple):
    """Bytes that a forward pass keeps."""

    total: int
    after: int
    """The bytes that are saved after the last layer."""


def sizes(config: PretrainedConfig, bank: dict[str, Any], rows: int, length: int) -> Sizes:
    """Return the sizes of learning a bank on a decoder.

    Args:
        config: configuration of the decoder.
        bank: a bank as in a stream file.
        rows: rows per batch.
        length: tokens per row.
    """
    with torch.device("meta"):
        model = model_of(config)
        added = bank_on(model, bank)
    num_backbone = sum(p.numel() for p in model.parameters())
    num_bank = sum(p.numel() for p in added.parameters())
    int8, nf4 = weights(model)
    one, two = (kept(config, bank, rows, length, number) for number in (1, 2))
    layer = two.total - one.total
    layers, inputs = config.num_hidden_layers, 2 * rows * length * config.hidden_size
    return Sizes(
        backbone=num_backbone,
        bank=num_bank,
        bf16=2 * num_backbone,
        int8=int8,
        nf4=nf4,
        gradients=4 * num_bank,
        moments=8 * num_bank,
        kept=one.total + (layers - 1) * layer,
        kept_checkpointing=one.after + layers * inputs + layer,
    )


def weights(model: nn.Module) -> tuple[int, int]:
    """Return the size in bytes of a model's quantised weights, where other weights are bf16: with int8, and with nf4."""
    linear = [m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "lm_head"]
    others = 2 * (sum(p.numel() for p in model.parameters()) - sum(w.numel() for w in linear))
    int8 = sum(w.numel() + 5 * len(w) for w in linear)
    nf4 = sum(w.numel() // 2 + w.numel() // 64 + 2 * (w.numel() // 16384) + 34 for w in linear)
    return others + int8, others + nf4


def kept(config: PretrainedConfig, bank: dict[str, Any], rows: int, length: int, num_layers: int) -> Kept:
    """Return what one forward pass with its loss keeps for the backward pass, in a model of ``num_layers`` layers."""
    with FakeTensorMode():
        model = model_of(_with_layers(config, num_layers))
        added = bank_on(model, bank)
        return kept_by(model, added, torch.zeros(rows, length, dtype=torch.int64))


def kept_by(model: PreTrainedModel, bank: Bank, ids: Tensor) -> Kept:
    """Return the size in bytes of the storages that a forward pass and its loss keep, excluding parameters.

    Args:
        model: the backbone, without gradients.
        bank: its bank.
        ids: tokens of full rows, ``(rows, length)``.
    """
    length = ids.shape[1]
    # A complete mask, so that no decision depends on the values of tensors.
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=ids.device).tril()
    with counted([*model.parameters(), *model.buffers(), *bank.parameters()]) as found:
        head, places = GenerationHead("causal-lm"), []
        last = model.get_submodule(bank.sites.layers[-1].path)
        hook = last.register_forward_hook(lambda *_: places.append(len(found)))
        logits = head(run(model, bank, {"input_ids": ids, "attention_mask": mask}, base=False).logits)
        head.loss(logits, ids)
    hook.remove()
    sizes_of = list(found.values())
    return Kept(sum(sizes_of), sum(sizes_of[places[0] :]))


@contextmanager
def counted(known: list[Tensor]) -> Iterator[dict[int, int]]:
    """Inside the block, count the bytes of each storage that autograd saves, except those of known tensors."""
    left_out = {tensor.untyped_storage()._cdata for tensor in known}
    found: dict[int, int] = {}
    alive: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            found[storage._cdata] = storage.nbytes()
            alive.append(storage)  # so that its address is not reused for another storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def bank_on(model: PreTrainedModel, bank: dict[str, Any]) -> Bank:
    """Return an uninitialised bank of a generative task on a model."""
    sites = Sites(find_anatomy(model.config.model_type), model)
    return Bank(
        BankChoice.model_validate(bank).resolve(), model, sites, GenerationHead("causal-lm"), reads="logits"
    ).requires_grad_(True)


def model_of(config: PretrainedConfig) -> PreTrainedModel:
    """Return a frozen model in bf16, with random weights."""
    make: Any = AutoModelForCausalLM
    model: PreTrainedModel = make.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    model.requires_grad_(False).train(False)
    return model


def _with_layers(config: PretrainedConfig, number: int) -> PretrainedConfig:
    values = config.to_dict() | {"num_hidden_layers": number}
    values.pop("layer_types", None)
    return type(config)(**values)

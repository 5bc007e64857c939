"""Computes what `peft` 0.21 computes with the files of an adapter, without peft: files in, logits out.

Everything is read from the files, so that a wrong name, factor or shape is noticed. ``alpha / r`` is determined as in peft,
and it is an error if ``target_modules`` also matches modules for which there is no tensor.

Shape suffixes: I width of the input, O width of the output, R rank, L virtual tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from continual_petl.banks.attach import Parts, one_pass, reserved
from continual_petl.banks.forms.projection import rows_of
from continual_petl.errors import ExportError
from continual_petl.exchange.adapted_model import AdaptedModel, pooled
from continual_petl.exchange.peft.config import by_pattern
from continual_petl.exchange.peft.names import FACTOR, MAGNITUDE, TABLE, A, B, Names, split_tensors
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of

_Parts = Mapping[str, Tensor]


def computed(
    subject: Subject,
    names: Names,
    config: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    separate: Mapping[str, Tensor],
) -> AdaptedModel:
    """Return the model that peft makes of the content of an adapter's files.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        names: names of modules in the model that peft wraps.
        config: the configuration.
        stored: the tensors.
        separate: the head's tensors, if they are in a file of their own.

    Raises:
        ExportError: if the configuration names modules other than those with tensors.
    """
    device = subject.backbone.model.device
    changed, copies = split_tensors({name: tensor.to(device) for name, tensor in stored.items()})
    targets = names.matched(config.get("target_modules", ()))
    if targets != changed.keys():
        raise ExportError(
            f"task {subject.plan.name!r}: target_modules of the exported adapter match modules other than those with "
            f"tensors, such as {min(targets ^ changed.keys())!r}. Nothing was written; please report this with the versions "
            "of transformers and of continual-petl."
        )
    head = {part: tensor.to(device) for part, tensor in separate.items()}
    for part in ("weight", "bias") if names.head is not None else ():
        if f"{names.head}.{part}" in copies:
            head[part] = copies.pop(f"{names.head}.{part}")
    table = copies.pop(TABLE, None)
    substitutes = names.replaced(changed, copies)

    def run(given: dict[str, Any]) -> Any:
        model = subject.backbone.model
        _add_virtual(subject, config, table, given)
        with reserved(model), ExitStack() as stack:
            for name, parts in changed.items():
                stack.enter_context(_hooked(model.get_submodule(names.path(name)), name, parts, config))
            own = Parts(sites=subject.bank.sites, own=substitutes)
            return one_pass(model, own, given, base=not kind_of(subject.plan).generates)

    return AdaptedModel(
        subject=subject,
        run=run,
        head=head,
        reads=None if names.head is None else partial(_read_by_class, subject, names.head),
        skipped=num_skipped(subject, config),
    )


def num_skipped(subject: Subject, config: Mapping[str, Any]) -> int:
    """Return the number of virtual tokens whose states precede those of the text; a decoder reads the text alone."""
    prompt = config["peft_type"] == "PROMPT_TUNING" and not subject.backbone.anatomy.is_encoder_decoder
    return int(config["num_virtual_tokens"]) if prompt else 0


def _read_by_class(subject: Subject, head: str, states: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the states that a class with a head reads."""
    pad, mask_BW = getattr(subject.backbone.model.config, "pad_token_id", None), inputs.get("attention_mask")
    if head == "score" and not kind_of(subject.plan).per_word and pad is not None and mask_BW is not None:
        # The class reads the last token other than the padding token, whatever the mask.
        places_W = torch.arange(mask_BW.shape[1], device=mask_BW.device)
        last_B = (places_W * inputs["input_ids"].ne(pad)).argmax(1, keepdim=True)
        inputs = {"attention_mask": (places_W == last_B).long()}
    return pooled(subject, states, inputs)


def _hooked(module: nn.Module, name: str, parts: _Parts, config: Mapping[str, Any]) -> Any:
    """Return a context manager in which a module computes what peft's layer computes."""
    if FACTOR in parts:
        factors = parts[FACTOR].flatten()
        if any(name.endswith(end) for end in config["feedforward_modules"]):
            return module.register_forward_pre_hook(lambda _, args: (args[0] * factors, *args[1:]))
        return module.register_forward_hook(lambda _, args, output: output * factors)
    if A in parts:
        rank = by_pattern(config["rank_pattern"], name, config["r"])
        alpha = by_pattern(config["alpha_pattern"], name, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        return module.register_forward_hook(partial(_low_rank, parts, scale))
    return ExitStack()


def _low_rank(parts: _Parts, scale: float, module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    down_RI, up_OR = parts[A], parts[B]
    change = scale * (args[0] @ down_RI.mT @ up_OR.mT)
    if MAGNITUDE not in parts:
        return output + change
    weight_OI = rows_of(module.weight, module, None)
    factor_O = parts[MAGNITUDE] / torch.linalg.norm(weight_OI + scale * (up_OR @ down_RI), dim=1)
    plain = output if module.bias is None else output - module.bias
    changed: Tensor = output + (factor_O - 1) * plain + factor_O * change
    return changed


def _add_virtual(subject: Subject, config: Mapping[str, Any], table: Tensor | None, given: dict[str, Any]) -> None:
    """Put virtual tokens in front of the inputs."""
    if table is None:
        return
    length, ids = int(config["num_virtual_tokens"]), given["input_ids"]
    given["attention_mask"] = nn.functional.pad(given["attention_mask"], (length, 0), value=1)
    given.pop("token_type_ids", None)
    if config["peft_type"] == "PROMPT_TUNING":
        words: Any = subject.backbone.model.get_input_embeddings()
        vectors_LW = table[:length].expand(len(ids), -1, -1)
        given["inputs_embeds"] = torch.cat([vectors_LW, words(given.pop("input_ids"))], dim=1)
        return
    cache, heads = DynamicCache(), config["num_attention_heads"]
    parts = table.view(length, 2 * config["num_layers"], heads, -1).permute(1, 2, 0, 3)
    for layer in range(config["num_layers"]):
        keys, values = (parts[2 * layer + i].expand(len(ids), -1, -1, -1) for i in (0, 1))
        cache.update(keys, values, layer)
    given |= {"past_key_values": cache, "use_cache": True}

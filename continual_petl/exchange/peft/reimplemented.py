"""Computes what `peft` 0.21 computes with the files of an adapter, without peft: files in, logits out.

Everything is read from the files, so that a wrong name, factor or shape is noticed. ``alpha / r`` is determined as in peft,
and it is an error if ``target_modules`` also matches modules for which there is no tensor.

Shape suffixes: I width of the input, O width of the output, R rank, L virtual tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import DynamicCache

from continual_petl.backbones.backbone import pool
from continual_petl.banks.attach import Parts, one_pass, reserved
from continual_petl.banks.forms.projection import rows_of
from continual_petl.errors import ExportError
from continual_petl.exchange.adapter_files import CONFIG, HEAD
from continual_petl.exchange.peft.config import by_pattern
from continual_petl.exchange.peft.names import FACTOR, MAGNITUDE, TABLE, A, B, Names, split_tensors
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import reading_inputs

_Parts = Mapping[str, Tensor]


def reimplemented(subject: Subject, names: Names, folder: Path) -> Reimplemented:
    """Return the model that peft makes of the files in a folder.

    Raises:
        ExportError: if the configuration names modules other than those with tensors.
    """
    device = str(subject.backbone.model.device)
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    head = load_file(folder / HEAD, device=device) if (folder / HEAD).is_file() else {}
    return computed(subject, names, config, load_file(folder / "adapter_model.safetensors", device=device), head)


def computed(
    subject: Subject,
    names: Names,
    config: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    separate: Mapping[str, Tensor],
) -> Reimplemented:
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
    changed, copies = split_tensors(stored)
    targets = names.matched(config.get("target_modules", ()))
    if targets != changed.keys():
        raise ExportError(
            f"task {subject.plan.name!r}: target_modules of the exported adapter match modules other than those with "
            f"tensors, such as {min(targets ^ changed.keys())!r}. Nothing was written; please report this with the versions "
            "of transformers and of continual-petl."
        )
    head = dict(separate)
    for part in ("weight", "bias") if names.head is not None else ():
        if f"{names.head}.{part}" in copies:
            head[part] = copies.pop(f"{names.head}.{part}")
    substitutes = {names.path(name): tensor for name, tensor in copies.items() if name != TABLE}
    for name, parts in changed.items():
        substitutes |= {
            f"{names.path(name)}.{p.rpartition('.')[2]}": t for p, t in parts.items() if p.startswith("ln_")
        }

    return Reimplemented(
        subject=subject,
        names=names,
        config=config,
        changed=changed,
        substitutes=substitutes,
        table=copies.get(TABLE),
        head=head,
    )


@dataclass(frozen=True, kw_only=True)
class Reimplemented:
    """A model with an adapter, as peft computes it."""

    subject: Subject
    names: Names
    config: Mapping[str, Any]
    changed: Mapping[str, _Parts]
    substitutes: Mapping[str, Tensor]
    table: Tensor | None
    head: Mapping[str, Tensor]

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits, without the positions of a prompt."""
        generates = kind_of(self.subject.plan).generates
        arguments = dict(inputs) if generates else dict(reading_inputs(self.subject.backbone, inputs))
        output, skipped = self._output(arguments)
        if generates:
            logits: Tensor = output.logits[:, skipped:]
            return logits
        return self._headed(output, skipped, inputs)

    def output(self, **inputs: Tensor) -> Any:
        """Return the output of the model as peft returns it: with logits, if the adapter contains the head."""
        output, skipped = self._output(dict(inputs))
        if self.names.head is not None:
            output.logits = self._headed(output, skipped, inputs)
        return output

    def _headed(self, output: Any, skipped: int, inputs: Mapping[str, Tensor]) -> Tensor:
        plan, mask_BW = self.subject.plan, inputs.get("attention_mask")
        pad = getattr(self.subject.backbone.model.config, "pad_token_id", None)
        if self.names.head == "score" and not kind_of(plan).per_word and pad is not None and mask_BW is not None:
            # The class reads the last token other than the padding token, whatever the mask.
            places_W = torch.arange(mask_BW.shape[1], device=mask_BW.device)
            last_B = (places_W * inputs["input_ids"].ne(pad)).argmax(1, keepdim=True)
            mask_BW = (places_W == last_B).long()
        states = SimpleNamespace(**output)
        states.last_hidden_state = output.last_hidden_state[:, skipped:]
        token = kind_of(plan).per_word
        features = states.last_hidden_state if token else pool(states, mask_BW, plan.pooling)
        return nn.functional.linear(features, self.head["weight"], self.head.get("bias"))

    def _output(self, given: dict[str, Any]) -> tuple[Any, int]:
        """Return the output for some inputs, and the number of its positions that belong to virtual tokens."""
        subject, model = self.subject, self.subject.backbone.model
        skipped = _add_virtual(subject, self.config, self.table, given)
        with reserved(model), ExitStack() as stack:
            for name, parts in self.changed.items():
                module = model.get_submodule(self.names.path(name))
                stack.enter_context(_hooked(module, name, parts, self.config))
            own = Parts(sites=subject.bank.sites, own=self.substitutes)
            return one_pass(model, own, given, base=not kind_of(subject.plan).generates), skipped


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


def _add_virtual(subject: Subject, config: Mapping[str, Any], table: Tensor | None, given: dict[str, Any]) -> int:
    """Put virtual tokens in front of the inputs; return the number of positions that they have in the output."""
    if table is None:
        return 0
    length, ids = int(config["num_virtual_tokens"]), given["input_ids"]
    given["attention_mask"] = nn.functional.pad(given["attention_mask"], (length, 0), value=1)
    given.pop("token_type_ids", None)
    if config["peft_type"] == "PROMPT_TUNING":
        words: Any = subject.backbone.model.get_input_embeddings()
        vectors_LW = table[:length].expand(len(ids), -1, -1)
        given["inputs_embeds"] = torch.cat([vectors_LW, words(given.pop("input_ids"))], dim=1)
        return 0 if "decoder_input_ids" in given else length
    cache, heads = DynamicCache(), config["num_attention_heads"]
    parts = table.view(length, 2 * config["num_layers"], heads, -1).permute(1, 2, 0, 3)
    for layer in range(config["num_layers"]):
        keys, values = (parts[2 * layer + i].expand(len(ids), -1, -1, -1) for i in (0, 1))
        cache.update(keys, values, layer)
    given |= {"past_key_values": cache, "use_cache": True}
    return 0

"""Prompts: learned vectors in front of the token embeddings (Lester et al. 2021), as He et al. 2022 insert them.

They are inserted after token and position embeddings are summed, so they have no positions and do not shift those of the
text; with rotary positions (Llama, Qwen), they get negative positions. A decoder gets them once, while its cache is empty.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.sites import Sites

Inputs = dict[str, Any]


def with_prompt_mask(sites: Sites, inputs: Inputs, length: int) -> Inputs:
    """Return the inputs with an attention mask that includes the prompt.

    A decoder-only model widens the mask in its hook instead, since the mask grows during generation. If no mask is
    given, an all-ones mask is created here: some families (DeBERTa) would otherwise create their own, as wide as the
    ids and so too narrow for the prompt.
    """
    mask = inputs.get("attention_mask")
    if mask is None and inputs.get("input_ids") is not None:
        mask = torch.ones_like(inputs["input_ids"])
    if mask is None or _is_decoder(sites):
        return inputs
    return {**inputs, "attention_mask": _widened(mask, length)}


def without_prompt(sites: Sites, output: Any, length: int) -> Any:
    """Cut the prompt's positions off the output; in an encoder-decoder only the encoder has them, so nothing is cut."""
    if len(sites.anatomy.stacks) > 1:
        return output
    for name in ("last_hidden_state", "logits"):
        if output.get(name) is not None:
            output[name] = output[name][:, length:]
    return output


def prompt_hooks(model: nn.Module, sites: Sites, prompt_LW: Tensor) -> list[RemovableHandle]:
    """Insert a prompt, or one prompt per row (B, L, W), until the handles are removed."""
    prompt = sites.anatomy.prompt
    assert prompt is not None, "checked when the bank was built"
    if prompt.norm is not None:
        return _before_norm(model, sites, prompt_LW)
    return _before_stack(model, sites, prompt_LW)


def _is_decoder(sites: Sites) -> bool:
    return sites.anatomy.output_head == "causal"


def _widened(mask_BT: Tensor, length: int) -> Tensor:
    return nn.functional.pad(mask_BT, (length, 0), value=1)


def _in_front(prompt_LW: Tensor, states_BTW: Tensor) -> Tensor:
    rows = prompt_LW.to(states_BTW.dtype).expand(states_BTW.shape[0], -1, -1)
    return torch.cat([rows, states_BTW], dim=1)


def _before_norm(model: nn.Module, sites: Sites, prompt_LW: Tensor) -> list[RemovableHandle]:
    prompt = sites.anatomy.prompt
    assert prompt is not None
    assert prompt.norm is not None

    def insert(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_in_front(prompt_LW, args[0]), *args[1:])

    handles = [model.get_submodule(sites.base + prompt.norm).register_forward_pre_hook(insert)]
    if sites.anatomy.pooler is not None:
        pooler = getattr(model.get_submodule(sites.base.rstrip(".")), sites.anatomy.pooler, None)
        if pooler is not None:
            # The pooler reads the first position, which must remain the first token.
            handles.append(
                pooler.register_forward_pre_hook(lambda _, args: (args[0][:, prompt_LW.shape[-2] :], *args[1:]))
            )
    return handles


def _before_stack(model: nn.Module, sites: Sites, prompt_LW: Tensor) -> list[RemovableHandle]:
    prompt = sites.anatomy.prompt
    assert prompt is not None
    assert prompt.stack is not None
    stack: Any = model.get_submodule((sites.base + prompt.stack).rstrip("."))
    signature = inspect.signature(stack.forward)
    length = prompt_LW.shape[-2]
    inserted: list[bool] = []

    def insert(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Inputs]:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        arguments |= arguments.pop("kwargs", {})
        cache: Any = arguments.get("past_key_values")
        first = cache is None or cache.get_seq_length() == 0
        inserted[:] = [first]
        if _is_decoder(sites) and arguments.get("attention_mask") is not None:
            arguments["attention_mask"] = _widened(arguments["attention_mask"], length)
        if first:
            embeds = arguments.pop("inputs_embeds", None)
            ids = arguments.pop("input_ids", None)
            embeds = stack.get_input_embeddings()(ids) if embeds is None else embeds
            arguments["inputs_embeds"] = _in_front(prompt_LW, embeds)
            if "position_ids" in signature.parameters:
                arguments["position_ids"] = _positions(arguments.get("position_ids"), embeds, length)
        elif "position_ids" in signature.parameters and arguments.get("position_ids") is None:
            # The cache length includes the prompt; positions do not.
            width = (
                arguments["input_ids"] if arguments.get("input_ids") is not None else arguments["inputs_embeds"]
            ).shape[1]
            start = cache.get_seq_length() - length
            arguments["position_ids"] = torch.arange(start, start + width, device=prompt_LW.device).unsqueeze(0)
        return (), arguments

    handles = [stack.register_forward_pre_hook(insert, with_kwargs=True)]
    if prompt.positions is not None:
        positions = model.get_submodule(sites.base + prompt.positions)

        def skip(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0][:, length:], *args[1:]) if inserted[-1] else args

        def none_for_prompt(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return nn.functional.pad(output, (0, 0, length, 0)) if inserted[-1] else output

        handles.append(positions.register_forward_pre_hook(skip))
        handles.append(positions.register_forward_hook(none_for_prompt))
    return handles


def _positions(position_ids: Tensor | None, embeds_BTW: Tensor, length: int) -> Tensor:
    """Return the positions of the text, preceded by negative positions for the prompt."""
    if position_ids is None:
        position_ids = torch.arange(embeds_BTW.shape[1], device=embeds_BTW.device).unsqueeze(0)
    before = torch.arange(-length, 0, device=position_ids.device).expand(position_ids.shape[0], -1)
    return torch.cat([before, position_ids], dim=1)

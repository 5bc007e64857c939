"""Checks that an anatomy description agrees with what the model computes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.backbones import Attention, FeedForward
from continual_petl.backbones.sites import Sites
from tests.backbones.watch import Passed, first_tensor, seen_by_attention, watch


def single(calls: dict[str, list[Passed]], path: str) -> Passed:
    """Return the call of a module that is called exactly once."""
    assert len(calls[path]) == 1, path
    return calls[path][0]


def close(found: Tensor, wanted: Tensor) -> None:
    """Check that two tensors are equal up to rounding."""
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


def check_attention(model: PreTrainedModel, sites: Sites, inputs: dict[str, Tensor]) -> None:
    """Exactly the described modules call a registered attention function, and registering it does not change the output."""
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        plain = model(**inputs)
        with seen_by_attention(model) as seen:
            passed = model(**inputs)
    assert torch.equal(first_tensor(plain[0]), first_tensor(passed[0]))
    named = [model.get_submodule(layer.full(a.module)) for layer in sites.layers for a in layer.stack.attentions]
    assert [heads.module for heads in seen] == (named if sites.anatomy.attention_registry else [])


def check_results(model: PreTrainedModel, sites: Sites, inputs: dict[str, Tensor]) -> None:
    """Sub-layers read from the residual stream, and add their results to it, where the description says."""
    _, calls = watch(model, inputs)
    for layer in sites.layers:
        whole = single(calls, layer.path)
        subs: list[Attention | FeedForward] = [*layer.stack.attentions, layer.stack.ffn]
        norms = [single(calls, layer.full(sub.norm)) for sub in subs]
        results = [single(calls, layer.full(sub.result)).output for sub in subs]
        if layer.stack.norm_first:
            streams = [norm.inputs[0] for norm in norms] + [first_tensor(whole.output)]
            close(streams[0], whole.inputs[0])
            for (before, after), result in zip(pairwise(streams), results, strict=True):
                close(before + result, after)
        else:
            streams = [whole.inputs[0]] + [norm.output for norm in norms]
            for before, result, norm in zip(streams[:-1], results, norms, strict=True):
                close(before + result, norm.inputs[0])
            close(streams[-1], first_tensor(whole.output))
        # The FFN reads the residual stream, which pre-norm models normalise first.
        wanted = norms[-1].output if layer.stack.norm_first else norms[-2].output
        for projection in sites.into(layer):
            close(single(calls, layer.full(projection.path)).inputs[0], wanted)
        # Only dropout, which does nothing in eval mode, lies between the last projection and the result.
        for sub, result in zip(subs, results, strict=True):
            close(single(calls, layer.full(sub.out)).output, result)


def check_norms(model: PreTrainedModel, sites: Sites) -> None:
    """Every norm of the model belongs to exactly one layer."""
    real = [path for path, module in model.named_modules() if "Norm" in type(module).__name__]
    found = Counter(path for layer in sites.layers for path in sites.norms(layer))
    assert found == Counter(real)

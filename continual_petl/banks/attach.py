"""Attaches a bank to a backbone for one forward pass or one call of ``generate``, and removes it completely afterwards.

Forms act through hooks on leaf modules, prefixes through the attention registry, own parameters through
`torch.func.functional_call`. The backbone's class, module tree and state dict are never touched, and everything is removed
when the block ends, even if it raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from continual_petl.backbones.sites import Sites, attention_of
from continual_petl.banks.attention_hooks import changed_heads
from continual_petl.banks.bank import Bank
from continual_petl.banks.forms import form_of, in_order
from continual_petl.banks.forms.base import NOTHING, Behind, Placement, PrefixPlacement
from continual_petl.banks.prompt_hooks import prompt_hooks, with_prompt_mask, without_prompt
from continual_petl.banks.recompute import layers_recomputed

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_at_work: WeakSet[nn.Module] = WeakSet()
_table = threading.Lock()
"""Guards `_locks`, the lock of each backbone, and `_at_work`, the backbones that have a bank attached."""


def run(
    model: PreTrainedModel, bank: Bank, inputs: Mapping[str, Tensor], *, base: bool = True, checkpointing: bool = False
) -> Any:
    """Return the backbone's output for ``inputs`` with the bank attached, without the positions of the bank's prompt.

    Only the bank's parameters get gradients; there is no backward pass below the lowest modified layer.

    Args:
        model: the backbone.
        bank: built for this backbone.
        inputs: arguments of the backbone's ``forward``; rows must be right-padded, unless ``position_ids`` are included.
        base: run the model without its language-modelling head.
        checkpointing: recompute the layers in the backward pass instead of keeping their activations; see
            `continual_petl.banks.recompute`. The gradients are the same, bit for bit.
    """
    with reserved(model):
        parts = Parts.of(bank, model)
        recomputing: AbstractContextManager[None] = nullcontext()
        if checkpointing and torch.is_grad_enabled():
            recomputing = layers_recomputed(model, bank.sites, parts.own, lambda number: _again(model, parts, number))
        with _attached(model, parts), recomputing:
            return one_pass(model, parts, inputs, base=base)


def run_parts(model: PreTrainedModel, parts: Parts, inputs: Mapping[str, Tensor]) -> Any:
    """Return the output of the base model for ``inputs`` with these parts attached; called inside `reserved`."""
    with _attached(model, parts):
        return one_pass(model, parts, inputs, base=True)


def one_pass(model: PreTrainedModel, parts: Parts, inputs: Mapping[str, Tensor], *, base: bool) -> Any:
    """Return the model's output with some parameters replaced; called inside a block that attaches the other parts.

    Args:
        model: the backbone.
        parts: see `Parts`.
        inputs: see `run`.
        base: see `run`.
    """
    sites, length = parts.sites, parts.num_prompt_vectors
    arguments: dict[str, Any] = with_prompt_mask(sites, dict(inputs), length) if length else dict(inputs)
    target: nn.Module = _without_head(model, sites) if base else model
    strip = sites.base if base else ""
    if sites.anatomy.output_head != "none":
        # A single pass over complete texts never reads a cache.
        arguments.setdefault("use_cache", False)
    own = {n.removeprefix(strip): t for n, t in parts.own.items() if n.startswith(strip)}
    if base:
        # T5's head is a sibling of its encoder and decoder: T5 has no separate base model.
        own = {n: t for n, t in own.items() if not n.startswith("lm_head.")}
    output = functional_call(target, own, (), arguments, tie_weights=parts.tied) if own else target(**arguments)
    return without_prompt(sites, output, length) if length else output


def generate(model: PreTrainedModel, bank: Bank, inputs: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    """Return the token ids (B, T) that ``model.generate`` produces with the bank attached.

    Args:
        model: a backbone with a language-modelling head.
        bank: built for this backbone.
        inputs: ids and mask; rows of a decoder-only model are left-padded.
        settings: further arguments of ``generate``.
    """
    with reserved(model), torch.no_grad():
        parts = Parts.of(bank, model)
        length, substitutes = parts.num_prompt_vectors, {f"model.{name}": own for name, own in parts.own.items()}
        arguments: dict[str, Any] = with_prompt_mask(bank.sites, dict(inputs), length) if length else dict(inputs)
        target = _Generate(model)
        arguments |= dict(settings)
        with _attached(model, parts):
            ids: Tensor = functional_call(target, substitutes, (), arguments) if substitutes else target(**arguments)
        return ids


@contextmanager
def attached(model: PreTrainedModel, bank: Bank) -> Iterator[None]:
    """Attach the bank's forms, prefixes and prompt to the backbone inside the ``with`` block.

    The bank's own parameters are not attached here: `run` and `generate` pass them in. Only one bank can be
    attached to a backbone at a time: other threads wait at the start of the block.

    Raises:
        RuntimeError: if this thread has already attached a bank to the backbone; if the backbone would recompute layers in
            the backward pass, when the bank is no longer attached; or if it would use weights cached for another bank.
    """
    with reserved(model), _attached(model, Parts.of(bank, model)):
        yield


def _check_ready(model: nn.Module) -> None:
    if parametrize._cache_enabled and any(map(parametrize.is_parametrized, model.modules())):
        raise RuntimeError(
            "torch.nn.utils.parametrize.cached() is active, and the backbone has parametrised weights: they would be cached "
            "from one pass to the next, so one bank could predict with another's weights. Leave the cached() block first."
        )
    if torch.is_grad_enabled() and any(
        getattr(m, "gradient_checkpointing", False) and m.training for m in model.modules()
    ):
        raise RuntimeError(
            "the backbone recomputes its layers in the backward pass (gradient checkpointing, in training mode), after the "
            "bank is detached, so gradients would be wrong: call eval() on the model"
        )


@contextmanager
def locked(model: nn.Module) -> Iterator[None]:
    """Lock the backbone for this thread inside the ``with`` block; blocks may be nested in one thread."""
    with _table:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


@contextmanager
def reserved(model: nn.Module) -> Iterator[None]:
    """Reserve the backbone for one bank inside the ``with`` block; wait while another thread has a bank attached to it.

    Raises the same errors as `attached`.
    """
    _check_ready(model)
    with locked(model):
        if model in _at_work:
            raise RuntimeError("this backbone already carries a bank: leave its block before attaching another one")
        _at_work.add(model)
        try:
            yield
        finally:
            _at_work.discard(model)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is attached to the backbone in one pass; it is computed only once, even if layers are recomputed."""

    sites: Sites
    placements: Sequence[Placement] = ()
    prefixes: Sequence[PrefixPlacement] = ()
    prompt: Tensor | None = None
    """The prompt (L, W), or one for each row (B, L, W)."""
    own: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors that replace parameters of the backbone, by name."""
    tied: bool = True
    """Whether a replaced parameter may have several names in the model; looking for them takes time in every pass."""
    behind: Behind = field(default_factory=lambda: NOTHING)
    """A function that is applied to the output of a module, by module."""

    @classmethod
    def of(cls, bank: Bank, model: nn.Module) -> Parts:
        """Return the parts of a bank."""
        return cls(
            sites=bank.sites,
            placements=in_order(bank.placements()),
            prefixes=bank.prefixes(),
            prompt=bank.prompt(),
            own=bank.substitutes(model),
            tied=bank.tied,
        )

    @property
    def num_prompt_vectors(self) -> int:
        """The number of prompt vectors in front of each row."""
        return 0 if self.prompt is None else self.prompt.shape[-2]

    def of_layer(self, number: int) -> Parts:
        """Return the placements and prefixes of one layer."""
        placements = [placement for placement in self.placements if placement.layer.number == number]
        return Parts(
            sites=self.sites,
            placements=placements,
            prefixes=[prefix for prefix in self.prefixes if prefix.layer.number == number],
        )


@contextmanager
def _attached(model: PreTrainedModel, parts: Parts) -> Iterator[None]:
    sites = parts.sites
    handles: list[RemovableHandle] = []
    prefixes: dict[nn.Module, list[PrefixPlacement]] = {}
    try:
        handles += [module.register_forward_hook(_followed_by(follow)) for module, follow in parts.behind.items()]
        for placement in parts.placements:
            handles += form_of(placement.modification).attach(model, sites, placement, parts.behind)
        for prefix in parts.prefixes:
            path = prefix.layer.full(attention_of(prefix.layer, prefix.name).module)
            prefixes.setdefault(model.get_submodule(path), []).append(prefix)
        if parts.prompt is not None:
            handles += prompt_hooks(model, sites, parts.prompt)
        with changed_heads(model, prefixes):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _followed_by(follow: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    return lambda module, args, output: follow(output)


@contextmanager
def _again(model: PreTrainedModel, parts: Parts, number: int) -> Iterator[None]:
    """Attach the parts of one layer while that layer is recomputed in the backward pass."""
    with reserved(model), _attached(model, parts.of_layer(number)):
        yield


def _without_head(model: PreTrainedModel, sites: Sites) -> nn.Module:
    """Return the part of the model that outputs token states."""
    if sites.base or sites.anatomy.output_head == "none" or not hasattr(model, "lm_head"):
        return model.base_model
    return _EncoderDecoder(model)


class _EncoderDecoder(nn.Module):
    """Stands in for the base model that a T5 with a language-modelling head lacks; it shares the T5's modules."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.shared, self.encoder, self.decoder = model.shared, model.encoder, model.decoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        """Return the decoder's output."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)[0]
        return self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=states,
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
        )


class _Generate(nn.Module):
    """Generation as a forward pass, so that `functional_call` can substitute parameters in every step."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Tensor:
        """Return the generated ids."""
        ids: Tensor = self.model.generate(**given)
        return ids

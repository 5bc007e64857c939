"""Starts a forward pass at a layer, from the states below it, which were computed before.

Nothing in a frozen model changes below the lowest layer that a bank touches, so the states there can be computed once and
reused, in later epochs and for other banks on the same rows. While a pass starts there, the ``forward`` of some layers is
replaced on the instance: layers that need not be computed return their input. The model's own code still computes
embeddings, masks, positions and rotary tables, so nothing here depends on the family; class, module tree and state dict stay
unchanged.

A pass cannot start where layers pass more than token states to each other (the position bias of T5), nor between the
two stacks of an encoder-decoder. Such a model is refused; see `why_not_start`.

Shape suffixes: B rows, T tokens, D width of the backbone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.backbones.sites import Sites
from continual_petl.banks.attach import locked
from continual_petl.banks.bank import Bank
from continual_petl.banks.recompute import Forward, forwards_replaced

_num_returned: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""The type that a model's layers return, once observed: 0 for the states alone, n for a tuple of n with the states first."""


def lowest_layer(bank: Bank) -> int:
    """Return the number of the lowest layer that a bank touches, counted across all stacks.

    Everything before the layers (embeddings with their norm, prompts) belongs to layer 0. For a bank that touches no layer,
    such as a probe, this is the number of layers: everything below its head is frozen.
    """
    sites, numbers = bank.sites, [placement.layer.number for placement in bank.placements()]
    forms = [modification.config for modification in bank.spec.modifications]
    if any(form.outside for form in forms):
        return 0
    if any(form.in_heads for form in forms):
        numbers += [layer.number for layer in bank.layers]
    owners = [sites.owner(name) for name in bank.covered()]
    # A pooler comes after all layers.
    numbers += [owner for owner in owners if owner is not None]
    return min(numbers, default=sites.num_layers)


@torch.no_grad()
def states_below(model: PreTrainedModel, sites: Sites, inputs: Mapping[str, Tensor], layer: int) -> Tensor:
    """Return the input states of a layer of the frozen model; that layer and later ones are not computed.

    Args:
        model: the backbone, in eval mode.
        sites: the sites of the model.
        inputs: arguments of its ``forward``.
        layer: number of the layer; ``sites.num_layers`` means the output of the last layer.

    Shape:
        ``(B, T, D)``, in the backbone's dtype, padding positions included.

    Raises:
        ValueError: if a pass of this model cannot start there.
    """
    layers = _layers(model, sites, layer)
    taken: list[Tensor] = []

    def last_below(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        returned = forward(*args, **kwargs)
        _num_returned[model] = _count(returned)
        if layer == len(layers):
            taken.append(_first(returned))
        return returned

    def take(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        taken.append(states_read(args, kwargs))
        return _as_returned(model, taken[0])

    stand_ins: dict[nn.Module, Forward] = {layers[layer - 1]: last_below}
    stand_ins |= dict.fromkeys(layers[layer:], _through(model))
    stand_ins |= dict.fromkeys(layers[layer : layer + 1], take)
    with locked(model), forwards_replaced(stand_ins):
        _run(model, sites, inputs)
    return taken[0]


@contextmanager
def starting_at(model: PreTrainedModel, sites: Sites, layer: int, states_BTD: Tensor) -> Iterator[None]:
    """Start every pass inside the ``with`` block at a layer, from the states below it, whichever bank is attached.

    Positions that are not padding must hold the result of `states_below`, bit for bit; other positions only have to be
    finite. Other threads wait until the block ends.

    Args:
        model: the backbone; `states_below` or `why_not_start` must have been called on it before.
        sites: the sites of the model.
        layer: as in `states_below`; no bank on the model may touch a lower layer.
        states_BTD: states of the rows that the model gets inside the block.

    Raises:
        ValueError: if a pass of this model cannot start there, or the states belong to other rows or another model.
    """
    layers = _layers(model, sites, layer)
    if model not in _num_returned:
        raise ValueError(
            "it is not known what the layers of this model return: call states_below or why_not_start first"
        )

    def begin(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        _check(states_read(args, kwargs), states_BTD)
        return forward(states_BTD, *args[1:], **kwargs) if args else forward(**kwargs | {"hidden_states": states_BTD})

    def end(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        _check(states_read(args, kwargs), states_BTD)
        return _as_returned(model, states_BTD)

    stand_ins: dict[nn.Module, Forward] = dict.fromkeys(layers[:layer], _through(model))
    stand_ins[layers[min(layer, len(layers) - 1)]] = begin if layer < len(layers) else end
    with locked(model), forwards_replaced(stand_ins):
        yield


@torch.no_grad()
def why_not_start(model: PreTrainedModel, sites: Sites, inputs: Mapping[str, Tensor], layer: int) -> str | None:
    """Return why a pass of a model cannot start at a layer, or None if it can: it is tried and compared bit for bit.

    Args:
        model: the backbone, in eval mode, with no bank attached.
        sites: the sites of the model.
        inputs: a few rows; one is enough.
        layer: as in `states_below`.
    """
    try:
        with locked(model):
            states_BTD = states_below(model, sites, inputs, layer)
            whole = _run(model, sites, inputs)
            with starting_at(model, sites, layer, states_BTD):
                resumed = _run(model, sites, inputs)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        return " ".join(str(error).split())
    if not torch.equal(whole.last_hidden_state, resumed.last_hidden_state):
        return "the model's later layers read more from the earlier ones than token states"
    return None


def _layers(model: PreTrainedModel, sites: Sites, layer: int) -> list[nn.Module]:
    if len(sites.anatomy.stacks) > 1:
        raise ValueError(
            f"a pass of family {sites.anatomy.family!r} goes through two stacks and cannot start between layers"
        )
    if not 1 <= layer <= sites.num_layers:
        raise ValueError(f"layer {layer}: a pass can only start at layers 1 to {sites.num_layers}")
    return [model.get_submodule(site.path) for site in sites.layers]


def _run(model: PreTrainedModel, sites: Sites, inputs: Mapping[str, Tensor]) -> Any:
    arguments: dict[str, Any] = dict(inputs)
    if sites.anatomy.output_head != "none":
        arguments.setdefault("use_cache", False)
    return model.base_model(**arguments)


def _through(model: nn.Module) -> Forward:
    return lambda forward, *args, **kwargs: _as_returned(model, states_read(args, kwargs))


def states_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the states with which a layer is called."""
    states = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(states, Tensor):
        raise TypeError("the model does not pass token states as the first argument of its layers")
    return states


def _first(returned: Any) -> Tensor:
    states = returned[0] if isinstance(returned, tuple) else returned
    assert isinstance(states, Tensor)
    return states


def _count(returned: Any) -> int:
    """Return the entry of `_num_returned` for the return value of a layer."""
    if isinstance(returned, Tensor):
        return 0
    if isinstance(returned, tuple) and returned and isinstance(returned[0], Tensor):
        if all(rest is None for rest in returned[1:]):
            return len(returned)
        raise ValueError("the layers of this model pass more than token states to each other")
    raise TypeError(f"a layer of this model returns a {type(returned).__name__} instead of token states")


def _as_returned(model: nn.Module, states_BTD: Tensor) -> Any:
    """Return states in the format that the model's layers return."""
    number = _num_returned[model]
    return (states_BTD, *[None] * (number - 1)) if number else states_BTD


def _check(found_BTD: Tensor, given_BTD: Tensor) -> None:
    for attribute in ("shape", "dtype", "device"):
        expected, got = getattr(found_BTD, attribute), getattr(given_BTD, attribute)
        if expected != got:
            raise ValueError(
                f"got states of {attribute} {got}, but this pass has {attribute} {expected} at that layer: do the "
                "states belong to these rows and this model?"
            )

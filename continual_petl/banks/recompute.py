"""Gradient checkpointing: layers keep only their inputs, and are recomputed in the backward pass (Chen et al. 2016,
https://arxiv.org/abs/1604.06174).

The backward pass runs after the bank is detached, so while a layer is recomputed, its part of the bank is attached again:
its hooks, its changed heads and its own parameters. `torch.utils.checkpoint` restores the random state, so the
dropout is the same. The checkpointing of `transformers` itself would recompute the layers without the bank, and only acts in
training mode, whereas a frozen backbone is in eval mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from continual_petl.backbones.sites import Sites

Forward = Callable[..., Any]


@contextmanager
def layers_recomputed(
    model: nn.Module, sites: Sites, own: Mapping[str, Tensor], again: Callable[[int], AbstractContextManager[None]]
) -> Iterator[None]:
    """Run the layers inside the ``with`` block so that the backward pass recomputes them.

    Args:
        model: the backbone, with a bank attached.
        sites: its sites.
        own: the bank's versions of backbone parameters, by name.
        again: given the number of a layer, attaches the bank's parts in this layer while it is recomputed.
    """

    def recomputed(number: int, module: nn.Module, substitutes: Mapping[str, Tensor]) -> Forward:
        def run(forward: Forward, *args: Any, **kwargs: Any) -> Any:
            layer = _Layer(module, forward)

            def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return functional_call(layer, dict(substitutes), args, kwargs)

            # Passed by position: torch saves the random state only of devices whose tensors are passed by position.
            return checkpoint(
                compute, args, kwargs, use_reentrant=False, context_fn=lambda: (nullcontext(), again(number))
            )

        return run

    stand_ins: dict[nn.Module, Forward] = {}
    for layer in sites.layers:
        prefix = f"{layer.path}."
        substitutes = {f"layer.{n.removeprefix(prefix)}": t for n, t in own.items() if n.startswith(prefix)}
        module = model.get_submodule(layer.path)
        stand_ins[module] = recomputed(layer.number, module, substitutes)
    with forwards_replaced(stand_ins):
        yield


class _Layer(nn.Module):
    """A layer with its current ``forward``, so that `functional_call` can replace its parameters."""

    def __init__(self, layer: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer."""
        return self._forward(*args, **kwargs)


@contextmanager
def forwards_replaced(stand_ins: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Replace the ``forward`` of modules inside the block; replacements receive the original as their first argument."""
    before = {module: vars(module).get("forward") for module in stand_ins}
    try:
        for module, stand_in in stand_ins.items():
            vars(module)["forward"] = _bound(stand_in, module.forward)
        yield
    finally:
        for module, own in before.items():
            # Some libraries (accelerate) set their own forward on the instance.
            if own is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = own


def _bound(stand_in: Forward, forward: Forward) -> Forward:
    return lambda *args, **kwargs: stand_in(forward, *args, **kwargs)

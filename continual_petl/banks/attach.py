"""A bank acts on a backbone for the length of one forward pass, and leaves nothing behind.

Forms act through hooks on leaf modules, own parameters through `torch.func.functional_call`. The backbone's class, module
tree and state dict are never touched, and when the pass ends, by return or by error, every hook is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.anatomy import Anatomy
from continual_petl.banks.bank import Bank, Placement

Attach = Callable[[nn.Module, Anatomy, Placement], list[RemovableHandle]]


def run(model: nn.Module, anatomy: Anatomy, bank: Bank, inputs: dict[str, Tensor]) -> Any:
    """Return the backbone's own output for ``inputs`` with the bank in place.

    Gradients reach the bank's parameters only; nothing below the lowest modified layer is differentiated.
    """
    with attached(model, anatomy, bank):
        substitutes = bank.substitutes(model)
        return functional_call(model, substitutes, (), inputs) if substitutes else model(**inputs)


@contextmanager
def attached(model: nn.Module, anatomy: Anatomy, bank: Bank) -> Iterator[None]:
    """Keep the hooks of a bank's forms on the backbone inside the ``with`` block."""
    handles: list[RemovableHandle] = []
    try:
        for placement in bank.placements():
            attach = _ATTACH[placement.modification.form, placement.modification.insertion]
            handles += attach(model, anatomy, placement)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sequential(model: nn.Module, anatomy: Anatomy, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(h)`` before the residual (Houlsby et al. 2019, section 2.1)."""
    modification, form = placement.modification, placement.form
    if modification.normalised_input:
        norm = model.get_submodule(anatomy.site("ffn_norm", placement.layer))

        def before_norm(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            # Pfeiffer et al. 2021: y = LN(A(LN(u)) + u) with one LayerNorm used twice. Calling forward directly
            # keeps this hook from calling itself.
            (residual_sum,) = args
            delta: Tensor = form(module.forward(residual_sum))
            return (residual_sum + delta,)

        return [norm.register_forward_pre_hook(before_norm)]

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        delta: Tensor = form(output)
        return output + delta

    return [model.get_submodule(anatomy.site(modification.modifies, placement.layer)).register_forward_hook(after)]


def _parallel_ffn(model: nn.Module, anatomy: Anatomy, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(x)``, x the FFN's own input (He et al. 2022, section 3.2)."""
    read: list[Tensor] = []

    def remember(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        read.append(args[0])

    def add(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        delta: Tensor = placement.form(read.pop())
        return output + delta

    return [
        model.get_submodule(anatomy.site("ffn_in", placement.layer)).register_forward_pre_hook(remember),
        model.get_submodule(anatomy.site("ffn", placement.layer)).register_forward_hook(add),
    ]


def _parallel_projection(model: nn.Module, anatomy: Anatomy, placement: Placement) -> list[RemovableHandle]:
    """``y <- W x + b + s delta(x)`` on one projection (Hu et al. 2022)."""

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        delta: Tensor = placement.form(args[0])
        return output + delta

    site = model.get_submodule(anatomy.site(placement.modification.modifies, placement.layer))
    return [site.register_forward_hook(add)]


_ATTACH: dict[tuple[str, str | None], Attach] = {
    ("bottleneck", "sequential"): _sequential,
    ("bottleneck", "parallel"): _parallel_ffn,
    ("lowrank", "parallel"): _parallel_projection,
}

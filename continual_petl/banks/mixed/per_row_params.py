"""Applies the LayerNorms and biases of each row's bank: the module runs with a weight of one and a bias of zero, and a hook
then applies the weight and bias of each row.

Shape suffixes: B rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class PerRowParams:
    """Parameters of the backbone that differ from row to row.

    Args:
        model: the backbone.
        rows: tensors ``(B, D)`` by parameter name, in the parameter's dtype.

    Attributes:
        substitutes: the tensors that the modules use instead, by parameter name.
        behind: the function that is applied to a module's output, by module.
    """

    def __init__(self, model: nn.Module, rows: Mapping[str, Tensor]) -> None:
        self.substitutes: dict[str, Tensor] = {}
        self.behind: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
        by_path: dict[str, dict[str, Tensor]] = {}
        for name, row_BD in rows.items():
            path, _, leaf = name.rpartition(".")
            by_path.setdefault(path, {})[leaf] = row_BD
            fill = torch.ones if leaf == "weight" else torch.zeros
            self.substitutes[name] = fill(row_BD.shape[1:], dtype=row_BD.dtype, device=row_BD.device)
        for path, leaves in by_path.items():
            module = model.get_submodule(path)
            self.behind[module] = _affine(path, leaves, channels_first=isinstance(module, nn.Conv2d))

    def hooks(self) -> list[RemovableHandle]:
        """Register the forward hooks of the modules."""
        return [module.register_forward_hook(_after(follow)) for module, follow in self.behind.items()]


def _after(follow: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    return lambda module, args, output: follow(output)


def _affine(path: str, leaves: Mapping[str, Tensor], *, channels_first: bool) -> Callable[[Tensor], Tensor]:
    weight_BD, bias_BD = leaves.get("weight"), leaves.get("bias")

    def follow(output: Tensor) -> Tensor:
        for row_BD in leaves.values():
            if len(row_BD) != len(output):
                raise RuntimeError(
                    f"{path} returned {len(output)} rows, but {len(row_BD)} were expected: this model changes the rows of a "
                    "batch during a pass, so several banks cannot share one. Predict one task at a time."
                )
        between = (1,) * (output.ndim - 2)
        shape = (len(output), -1, *between) if channels_first else (len(output), *between, -1)
        # In place, since the output is freshly allocated: this saves one pass over it.
        if weight_BD is not None and bias_BD is not None:
            return torch.addcmul(bias_BD.view(shape), output, weight_BD.view(shape), out=output)
        if weight_BD is not None:
            return output.mul_(weight_BD.view(shape))
        assert bias_BD is not None
        return output.add_(bias_BD.view(shape))

    return follow

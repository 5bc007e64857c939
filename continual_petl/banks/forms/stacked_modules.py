"""Combines parts of several banks: the same arithmetic, but each row of the batch uses the parameters of its bank.

A stacked part has the same class; its linear layers are batched products over the banks, and its other parameters exist
once per row.

Shape suffixes: N rows, T banks, W tokens, I width of the input, O width of the output.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.forms.arithmetic import Delta, Part
from continual_petl.banks.forms.bank_stack import BankStack
from continual_petl.banks.forms.layout import Layout


class StackedLinear(nn.Module):
    """``x W_t^T + b_t`` with the weight and bias of each row's bank t: one batched product for each span of the layout.

    Args:
        stack: the stacked parameters of the banks.
        path: path of the layer in a bank.
        bias: whether the layer has a bias.
        layout: the layout of the rows.

    Shape:
        ``(N, ..., I)`` to ``(N, ..., O)``, in the dtype of the input.
    """

    def __init__(self, stack: BankStack, path: str, bias: bool, layout: Layout) -> None:
        super().__init__()
        self._stack, self._path, self._has_bias, self._layout = stack, path, bias, layout

    @property
    def weight(self) -> Tensor:
        """The weights of all banks (T, O, I)."""
        return self._stack.matrix(f"{self._path}.weight", torch.float32)

    def per_row(self, value_T: Tensor) -> Tensor:
        """Return the value of each row's bank: ``(T, ...)`` to ``(N, ...)``."""
        return self._layout.per_row(value_T)

    def forward(self, x_NWI: Tensor) -> Tensor:
        """Return the products."""
        self._layout.check(len(x_NWI), self._layout.num_rows, f"the input of {self._path}")
        weight_TIO = self._stack.matrix(f"{self._path}.weight", x_NWI.dtype).transpose(1, 2)
        bias_T1O = None
        if self._has_bias:
            bias_T1O = self._stack.vector(f"{self._path}.bias", self._stack.vectors).to(x_NWI.dtype).unsqueeze(1)
        out_NWO = x_NWI.new_empty(*x_NWI.shape[:-1], weight_TIO.shape[-1])
        for rows, banks, num_banks in self._layout.spans:
            x_TNI = x_NWI[rows].reshape(num_banks, -1, x_NWI.shape[-1])
            out_TNO = out_NWO[rows].view(num_banks, -1, out_NWO.shape[-1])
            if bias_T1O is None:
                torch.bmm(x_TNI, weight_TIO[banks], out=out_TNO)
            else:
                torch.baddbmm(bias_T1O[banks], x_TNI, weight_TIO[banks], out=out_TNO)
        return out_NWO


class StackedNorm(nn.Module):
    """A LayerNorm with the weight and bias of each row's bank.

    Args:
        norm: the LayerNorm of one of the banks.
        weight_NI: the weight of every row.
        bias_NI: the bias of every row.
    """

    def __init__(self, norm: nn.LayerNorm, weight_NI: Tensor, bias_NI: Tensor) -> None:
        super().__init__()
        self._shape, self._eps = norm.normalized_shape, norm.eps
        self.weight, self.bias = weight_NI.unsqueeze(1), bias_NI.unsqueeze(1)

    def forward(self, x_NWI: Tensor) -> Tensor:
        """Return the normalised input."""
        return torch.addcmul(self.bias, F.layer_norm(x_NWI, self._shape, eps=self._eps), self.weight)


def stacked(part: nn.Module, path: str, stack: BankStack, layout: Layout) -> nn.Module:
    """Return a part that applies, to each row, the part at this path in that row's bank.

    Args:
        part: the part of one of the banks; the others have the same structure.
        path: path of the part in a bank.
        stack: the stacked parameters of the banks.
        layout: the layout of the rows.
    """
    if isinstance(part, nn.Linear):
        return StackedLinear(stack, path, part.bias is not None, layout)
    if isinstance(part, nn.LayerNorm):
        own = (layout.per_row(stack.vector(f"{path}.{name}", stack.vectors)) for name in ("weight", "bias"))
        return StackedNorm(part, *own)
    if not isinstance(part, Part | nn.ModuleList | nn.ModuleDict):
        if next(part.parameters(), None) is not None:
            raise TypeError(f"{type(part).__name__} at {path} has parameters that cannot be stacked for several banks")
        return part
    made = copy.copy(part)
    made._parameters, made._modules = {}, {}
    for name, parameter in part.named_parameters(recurse=False):
        setattr(made, name, _own(f"{path}.{name}", parameter.ndim, stack, layout))
    for name, child in part.named_children():
        made.add_module(name, stacked(child, f"{path}.{name}", stack, layout))
    return made


def _own(path: str, num_dimensions: int, stack: BankStack, layout: Layout) -> Tensor:
    """Return a parameter of each row's bank: (N, L, K), or (N, 1, K) for vectors, (N, 1, 1) for numbers."""
    if num_dimensions > 1:
        return layout.per_row(stack.matrix(path, torch.float32))
    return layout.per_row(stack.vector(path, stack.vectors)).unsqueeze(1)


class OnRows(Delta):
    """A delta that changes the rows of its group and leaves all other rows unchanged.

    Args:
        delta: the delta of the group.
        layout: the layout of the group's rows.
    """

    def __init__(self, delta: Delta, layout: Layout) -> None:
        nn.Module.__init__(self)
        self.modification, self._delta, self._layout = delta.modification, delta, layout

    def on(self, weight_OI: Tensor, bias_O: Tensor | None) -> Delta:
        """Return this delta, bound to a projection with the given weight and bias.

        Each row may have its own bias, with shape ``(rows of the batch, 1, O)``.
        """
        if bias_O is not None and bias_O.ndim > 1:
            bias_O = bias_O[self._layout.rows]
        return OnRows(self._delta.on(weight_OI, bias_O), self._layout)

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change of the group's rows; see `Delta.delta`."""
        return self._delta.delta(x_I)

    def change(self, h_O: Tensor, x_I: Tensor) -> Tensor:
        """Return ``h`` with the changes of the group's rows composed into it."""
        self._layout.check(len(h_O), self._layout.total, "the tensor that a form changes")
        self._layout.check(len(x_I), self._layout.total, "the input of a form")
        if self._layout.whole:
            return self._delta.change(h_O, x_I)
        rows = self._layout.rows
        return torch.cat([h_O[: rows.start], self._delta.change(h_O[rows], x_I[rows]), h_O[rows.stop :]])

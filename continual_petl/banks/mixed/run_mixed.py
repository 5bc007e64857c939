"""Several banks in one pass through the backbone, each on its own rows of the batch: a mixed batch.

The frozen part is computed once for all rows. Banks with the same computation share one batched product at every site;
other banks act on their rows through separate hooks. A module whose weight or bias is the banks' own runs with a weight of
one and a bias of zero, and a hook then applies the weight and bias of each row. Each row gets the same result as with its
bank alone, up to rounding (about 1e-7 in float32), because the matrix products have different shapes. Banks that cannot
share a pass (see `sharing`) are refused.

Shape suffixes: B rows, N rows of a group, L vectors, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.banks.ablated_view import AblatedView
from continual_petl.banks.attach import Parts, reserved, run_parts
from continual_petl.banks.bank import Bank
from continual_petl.banks.forms import form_of, in_order
from continual_petl.banks.forms.bank_stack import BankStack
from continual_petl.banks.forms.base import Placement, PrefixPlacement
from continual_petl.banks.forms.layout import Layout
from continual_petl.banks.forms.stacked_modules import OnRows
from continual_petl.banks.mixed.compatible import BatchKey, batch_key, why_alone
from continual_petl.banks.mixed.stack_cache import StackCache, stacks_of


@torch.no_grad()
def run_mixed(
    model: PreTrainedModel,
    banks: Sequence[Bank],
    counts: Sequence[int],
    inputs: Mapping[str, Tensor],
    stacks: StackCache | None = None,
) -> Any:
    """Return the output of the base model for a batch that has rows of every bank, without gradients.

    Args:
        model: the backbone.
        banks: the banks in the order of their rows, in eval mode and folded. For speed, banks of the same kind
            (`StackCache.kind`) should be adjacent, and within a kind, banks with the same number of rows.
        counts: the number of rows of each bank.
        inputs: arguments of the model's ``forward``: all rows of the first bank, then those of the second, and so on; see
            `run`.
        stacks: caches the stacked parameters from one pass to the next; None uses those of the model.

    Raises:
        ValueError: if the banks cannot share a pass, or the counts do not add up to the rows of the batch.
    """
    stacks = stacks_of(model) if stacks is None else stacks
    _check(model, banks, counts, inputs, stacks)
    with reserved(model), ExitStack() as held:
        return run_parts(model, _parts(model, _groups(model, banks, counts, stacks, held)), inputs)


def _check(
    model: nn.Module, banks: Sequence[Bank], counts: Sequence[int], inputs: Mapping[str, Tensor], stacks: StackCache
) -> None:
    num_rows = len(next(iter(inputs.values())))
    if not banks or len(banks) != len(counts) or min(counts) < 1 or sum(counts) != num_rows:
        raise ValueError(f"the batch has {num_rows} rows, but the banks have {[*counts]}: each needs at least one")
    if len({stacks.once(bank, lambda b: _admitted(model, b)) for bank in banks}) > 1:
        raise ValueError(
            "banks with prompts or prefixes can only share a pass with banks that have the same number of them, in the same "
            "layers: run the others separately"
        )
    if any(bank.training for bank in banks):
        raise ValueError("a bank in training mode applies its own dropout: call eval() on it, or run it alone")


def _admitted(model: nn.Module, bank: Bank) -> BatchKey:
    """Return the bank's `BatchKey`, or raise `ValueError` if the bank cannot share a pass with others."""
    if not bank.is_folded():
        raise ValueError(
            "a bank that still computes its vectors with a reparametrisation network cannot share a pass: call fold() on it"
        )
    if isinstance(bank, AblatedView):
        raise ValueError(
            "a bank without its modifications in some layers cannot share a pass with others: run it alone"
        )
    if (why := why_alone(bank.spec, model, bank.sites)) is not None:
        raise ValueError(f"a bank cannot share a pass with others, since {why}: run it alone")
    return batch_key(bank.spec, bank.sites.num_layers)


class _Group:
    """Adjacent banks of the same kind.

    Args:
        banks: in the order of their rows.
        layout: the layout of their rows.
        stack: their stacked parameters.
    """

    def __init__(self, banks: Sequence[Bank], layout: Layout, stack: BankStack) -> None:
        self.first, self.layout = banks[0], layout
        self._stack = stack
        self._modifications = [(n, m) for n, m in enumerate(self.first.spec.modifications) if not m.config.copies]

    def _batched(self, number: int) -> nn.ModuleDict:
        group = self.first.modifications[str(number)]
        assert isinstance(group, nn.ModuleDict)
        form = form_of(self.first.spec.modifications[number])
        return form.batched(group, f"modifications.{number}", self._stack, self.layout)

    def placements(self) -> list[Placement]:
        """Return placements that act only on the group's rows, in the order of `in_order`."""
        placements = self.first.placements()
        if self.layout.num_banks > 1:
            placements = [
                placement
                for number, modification in self._modifications
                for placement in form_of(modification).placements(
                    modification, self.first.layers, self._batched(number)
                )
            ]
        return [replace(placement, delta=OnRows(placement.delta, self.layout)) for placement in in_order(placements)]

    def prefixes(self) -> list[PrefixPlacement]:
        """Return the learned keys and values (N, L, K) of every attention module that has any."""
        return [
            prefix
            for number, modification in self._modifications
            if modification.config.in_heads
            for prefix in form_of(modification).prefixes(
                modification, self.first.sites, self.first.layers, self._batched(number)
            )
        ]

    def prompt(self) -> Tensor | None:
        """Return the prompts (N, L, W), or None."""
        outside = [(number, m) for number, m in self._modifications if m.config.outside]
        return form_of(outside[0][1]).prompt(self._batched(outside[0][0])) if outside else None

    def own(self) -> dict[str, Tensor]:
        """Return the banks' own parameters (N, D) by backbone parameter name."""
        rows = self.layout.per_row(self._stack.vectors)
        return {name.replace("/", "."): self._stack.vector(f"own.{name}", rows) for name in self.first.own}


def _groups(
    model: nn.Module, banks: Sequence[Bank], counts: Sequence[int], stacks: StackCache, held: ExitStack
) -> list[_Group]:
    total, device, start, groups = sum(counts), next(model.parameters()).device, 0, []
    for _, same in groupby(zip(banks, counts, strict=True), lambda pair: stacks.kind(pair[0])):
        members, numbers = zip(*same, strict=True)
        layout = Layout(start, numbers, total, device)
        groups.append(_Group(members, layout, held.enter_context(stacks.stack(members))))
        start = layout.rows.stop
    return groups


def _parts(model: nn.Module, groups: Sequence[_Group]) -> Parts:
    """Return the parts of all groups."""
    prompts = [prompt for group in groups if (prompt := group.prompt()) is not None]
    rows = _own(model, groups)
    return Parts(
        sites=groups[0].first.sites,
        placements=[placement for group in groups for placement in group.placements()],
        prefixes=_prefixes(groups),
        prompt=torch.cat(prompts) if prompts else None,
        own={name: _neutral(name, row_BD) for name, row_BD in rows.items()},
        behind=_behind(model, rows),
    )


def _own(model: nn.Module, groups: Sequence[_Group]) -> dict[str, Tensor]:
    """Return the banks' own parameters (B, D) for all rows; rows whose bank lacks a parameter get the backbone's."""
    parts = [group.own() for group in groups]
    names = {name for part in parts for name in part}
    parameters = {}
    for name, parameter in model.named_parameters() if names else ():
        if name in names:
            base = parameter.detach()
            rows = [
                part[name].to(base.dtype) if name in part else base.expand(group.layout.num_rows, *base.shape)
                for part, group in zip(parts, groups, strict=True)
            ]
            parameters[name] = rows[0] if len(rows) == 1 else torch.cat(rows)
    return parameters


def _neutral(name: str, row_BD: Tensor) -> Tensor:
    """Return what a module uses instead of a weight or bias that is applied to each row behind the module."""
    fill = torch.ones if name.endswith("weight") else torch.zeros
    return fill(row_BD.shape[1:], dtype=row_BD.dtype, device=row_BD.device)


def _behind(model: nn.Module, rows: Mapping[str, Tensor]) -> dict[nn.Module, Callable[[Tensor], Tensor]]:
    """Return, for each module, the function that applies the weight and bias of each row to its output."""
    by_path: dict[str, dict[str, Tensor]] = {}
    for name, row_BD in rows.items():
        path, _, leaf = name.rpartition(".")
        by_path.setdefault(path, {})[leaf] = row_BD
    modules = {path: model.get_submodule(path) for path in by_path}
    return {module: partial(_affine, path, module, by_path[path]) for path, module in modules.items()}


def _affine(path: str, module: nn.Module, leaves: Mapping[str, Tensor], output: Tensor) -> Tensor:
    for row_BD in leaves.values():
        if len(row_BD) != len(output):
            raise RuntimeError(
                f"{path} returned {len(output)} rows, but {len(row_BD)} were expected: this model changes the rows of a "
                "batch during a pass, so several banks cannot share one. Predict one task at a time."
            )
    weight_BD, bias_BD, between = leaves.get("weight"), leaves.get("bias"), (1,) * (output.ndim - 2)
    shape = (len(output), -1, *between) if isinstance(module, nn.Conv2d) else (len(output), *between, -1)
    # In place, since the output is freshly allocated: this saves one pass over it.
    if weight_BD is not None and bias_BD is not None:
        return torch.addcmul(bias_BD.view(shape), output, weight_BD.view(shape), out=output)
    if weight_BD is not None:
        return output.mul_(weight_BD.view(shape))
    assert bias_BD is not None
    return output.add_(bias_BD.view(shape))


def _prefixes(groups: Sequence[_Group]) -> list[PrefixPlacement]:
    """Return the prefixes of all rows: the groups' prefixes, which have the same shapes, are concatenated."""
    prefixes = []
    for same in zip(*(group.prefixes() for group in groups), strict=True):
        # One factor per row, in a shape that broadcasts over states with four dimensions.
        scales = [p.scale.unsqueeze(-1) for p in same if isinstance(p.scale, Tensor)]
        keys, values = torch.cat([p.keys for p in same]), torch.cat([p.values for p in same])
        prefixes.append(
            replace(same[0], keys=keys, values=values, scale=torch.cat(scales) if scales else same[0].scale)
        )
    return prefixes

"""Several banks in one pass through the backbone, each on its own rows of the batch.

The frozen part is computed once for all rows. Banks with the same computation share one batched product at every site;
other banks act on their rows through separate hooks. Each row gets the same result as with its bank alone, up to rounding
(about 1e-7 in float32), because the matrix products have different shapes. Banks that cannot share a pass
(see `sharing`) are refused.

Shape suffixes: N rows of a group, L vectors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from continual_petl.backbones.sites import attention_of
from continual_petl.banks.ablated_view import AblatedView
from continual_petl.banks.attach import one_pass, run, turn
from continual_petl.banks.attention_hooks import changed_heads
from continual_petl.banks.bank import Bank
from continual_petl.banks.forms import form_of, in_order
from continual_petl.banks.forms.base import Placement, PrefixPlacement
from continual_petl.banks.forms.layout import Layout
from continual_petl.banks.forms.stack import Stack
from continual_petl.banks.forms.stacked import OnRows
from continual_petl.banks.mixed.per_row_params import PerRowParams
from continual_petl.banks.mixed.sharing import BatchKey, batch_key, why_alone
from continual_petl.banks.mixed.stacks import Stacks
from continual_petl.banks.prompt_hooks import prompt_hooks


class Share(NamedTuple):
    """A bank and the number of its rows in the batch."""

    bank: Bank
    num_rows: int


@torch.no_grad()
def run_together(
    model: PreTrainedModel, shares: Sequence[Share], inputs: Mapping[str, Tensor], stacks: Stacks | None = None
) -> Any:
    """Return the output of the base model for a batch that has rows of every bank, without gradients.

    Args:
        model: the backbone.
        shares: the banks in the order of their rows, in eval mode and folded. For speed, banks of the same kind
            (`Stacks.kind`) should be adjacent, and within a kind, banks with the same number of rows.
        inputs: arguments of the model's ``forward``: all rows of the first bank, then those of the second, and so on; see
            `run`.
        stacks: caches the stacked parameters from one pass to the next.

    Raises:
        ValueError: if the banks cannot share a pass, or the shares do not add up to the rows of the batch.
    """
    stacks = Stacks() if stacks is None else stacks
    _check(model, shares, inputs, stacks)
    if len(shares) == 1:
        return run(model, shares[0].bank, inputs)
    sites = shares[0].bank.sites
    with turn(model), ExitStack() as held:
        groups = _groups(model, shares, stacks, held)
        with _together(model, groups) as (length, substitutes):
            return one_pass(model, sites, inputs, substitutes, length, base=True)


def _check(model: nn.Module, shares: Sequence[Share], inputs: Mapping[str, Tensor], stacks: Stacks) -> None:
    num_rows = len(next(iter(inputs.values())))
    if not shares or any(share.num_rows < 1 for share in shares) or sum(s.num_rows for s in shares) != num_rows:
        raise ValueError(
            f"the batch has {num_rows} rows, but the banks have {[s.num_rows for s in shares]}: each needs at least one"
        )
    if len(shares) > 1 and len({stacks.once(share.bank, lambda b: _admitted(model, b)) for share in shares}) > 1:
        raise ValueError(
            "banks with prompts or prefixes can only share a pass with banks that have the same number of them, in the same "
            "layers: run each kind alone"
        )
    if any(share.bank.training for share in shares):
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
    why = why_alone(bank.spec, model, bank.sites)
    if why is not None:
        raise ValueError(f"a bank cannot share a pass with others, since {why}: run it alone")
    return batch_key(bank.spec, bank.sites.num_layers)


class _Group:
    """Adjacent banks of the same kind.

    Args:
        banks: in the order of their rows.
        layout: the layout of their rows.
        stack: their stacked parameters.
    """

    def __init__(self, banks: Sequence[Bank], layout: Layout, stack: Stack) -> None:
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
        found = self.first.placements()
        if self.layout.num_banks > 1:
            found = [
                placement
                for number, modification in self._modifications
                for placement in form_of(modification).placements(
                    modification, self.first.layers, self._batched(number)
                )
            ]
        return [replace(placement, delta=OnRows(placement.delta, self.layout)) for placement in in_order(found)]

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


def _groups(model: nn.Module, shares: Sequence[Share], stacks: Stacks, held: ExitStack) -> list[_Group]:
    total, device, start, found = sum(s.num_rows for s in shares), next(model.parameters()).device, 0, []

    def kind(share: Share) -> Hashable:
        return stacks.kind(share.bank)

    for _, same in groupby(shares, kind):
        members = list(same)
        layout = Layout(start, [share.num_rows for share in members], total, device)
        banks = [share.bank for share in members]
        found.append(_Group(banks, layout, held.enter_context(stacks.stack(banks))))
        start = layout.rows.stop
    return found


@contextmanager
def _together(model: PreTrainedModel, groups: Sequence[_Group]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Attach the forms of the groups to the backbone; yield the number of prompt vectors and the substitute parameters."""
    sites = groups[0].first.sites
    own = PerRowParams(model, _own(model, groups))
    handles: list[RemovableHandle] = []
    try:
        handles += own.hooks()
        for group in groups:
            for placement in group.placements():
                handles += form_of(placement.modification).attach(model, sites, placement, own.behind)
        prompts = [prompt for group in groups if (prompt := group.prompt()) is not None]
        if prompts:
            handles += prompt_hooks(model, sites, torch.cat(prompts))
        with changed_heads(model, _prefixes(model, groups)):
            yield prompts[0].shape[-2] if prompts else 0, own.substitutes
    finally:
        for handle in handles:
            handle.remove()


def _own(model: nn.Module, groups: Sequence[_Group]) -> dict[str, Tensor]:
    """Return the banks' own parameters for all rows; rows whose bank lacks a parameter get the backbone's."""
    parts = [group.own() for group in groups]
    names = {name for part in parts for name in part}
    found = {}
    for name, parameter in model.named_parameters() if names else ():
        if name in names:
            base = parameter.detach()
            rows = [
                part[name].to(base.dtype) if name in part else base.expand(group.layout.num_rows, *base.shape)
                for part, group in zip(parts, groups, strict=True)
            ]
            found[name] = rows[0] if len(rows) == 1 else torch.cat(rows)
    return found


def _prefixes(model: nn.Module, groups: Sequence[_Group]) -> dict[nn.Module, list[PrefixPlacement]]:
    """Return the prefixes of all rows: the groups' prefixes, which have the same shapes, are concatenated."""
    found: dict[nn.Module, list[PrefixPlacement]] = {}
    for same in zip(*(group.prefixes() for group in groups), strict=True):
        first = same[0]
        module = model.get_submodule(first.layer.full(attention_of(first.layer, first.name).module))
        # One factor per row, in a shape that broadcasts over states with four dimensions.
        scales = [p.scale.unsqueeze(-1) for p in same if isinstance(p.scale, Tensor)]
        scale = torch.cat(scales) if scales else first.scale
        keys, values = torch.cat([p.keys for p in same]), torch.cat([p.values for p in same])
        found.setdefault(module, []).append(replace(first, keys=keys, values=values, scale=scale))
    return found

"""A bank: everything that belongs to one task (its modifications, its own copies of backbone parameters, its head)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from continual_petl.backbones.quantised import is_quantised, refuse_parts
from continual_petl.backbones.sites import Sites
from continual_petl.banks.config.spec import BankSpec, Modification, select_layers
from continual_petl.banks.forms import form_of
from continual_petl.banks.forms.base import Form, Placement, PrefixPlacement, key
from continual_petl.banks.forms.fusion import Fusion, fuse
from continual_petl.banks.forms.init import Generators
from continual_petl.banks.forms.prompt import INPUT
from continual_petl.banks.own_parameters import Reads, own_names
from continual_petl.errors import InputError


class Bank(nn.Module):
    """The parameters of one task on one backbone. The constructor only allocates them; `initialise` sets their values.

    Args:
        spec: the specification of the bank.
        model: the backbone; only its modules and the shapes of its parameters are read, so it may be on the meta device.
        sites: the sites of the model.
        head: the task's head; any module.
        reads: the backbone output that the task uses; a full copy includes the pooler or the output head only if it is used.
        folded: build the stored form instead of the trained one; see `fold`.

    Raises:
        InputError: if the model has no such layers, or does not support a modification.
    """

    def __init__(
        self,
        spec: BankSpec,
        model: nn.Module,
        sites: Sites,
        head: nn.Module,
        *,
        reads: Reads = "states",
        folded: bool = False,
    ) -> None:
        super().__init__()
        self.spec, self.sites = spec, sites
        self.head = head
        try:
            numbers = select_layers(spec.layers, sites.num_layers)
        except ValueError as error:
            raise InputError(f"bank: {error}") from None
        self.layers = [sites.layers[number] for number in numbers]
        names = own_names(spec, model, sites, self.layers, reads)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        _check_codes(spec, names, parameters)
        differences = any(m.config.own_parameters and not m.config.copies for m in spec.modifications)
        shapes = {name: parameters[name].shape for name in names} if differences else {}
        self.modifications = nn.ModuleDict(
            {
                str(number): form_of(modification).build(modification, sites, self.layers, shapes, folded=folded)
                for number, modification in enumerate(spec.modifications)
                if not modification.config.copies
            }
        )
        if spec.fuse:
            fuse(self.modifications, spec.fuse)
        # Whether another name of the model stands for one of the parameters, as with tied embeddings.
        num_names = Counter(map(id, parameters.values()))
        self.tied = any(num_names[id(parameters[name])] > 1 for name in names)
        # A slash replaces the dot, which torch does not allow in the name of a parameter.
        self.own = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(torch.empty(parameters[name].shape))
                for name in ([] if differences else names)
            }
        )

    @torch.no_grad()
    def initialise(self, model: nn.Module, seed: int) -> None:
        """Initialise the forms and the head, and copy the backbone's values into the bank's own parameters.

        Every tensor has its own generator, seeded by its name: the same seed gives the same bank regardless of what was
        drawn before.
        """
        for name, module in self.named_modules():
            if name.startswith("modifications.") and hasattr(module, "initialise"):
                module.initialise(Generators(seed, name))
        for placement in self.placements():
            form_of(placement.modification).initialise(model, self.sites, placement)
        parameters = dict(model.named_parameters())
        for name, own in self.own.items():
            own.copy_(parameters[name.replace("/", ".")])
        initialise_head = getattr(self.head, "initialise", None)
        if initialise_head is not None:
            initialise_head(Generators(seed, "head"))

    @torch.no_grad()
    def read(self, banks: Sequence[Mapping[str, Tensor]]) -> None:
        """Give a fused bank copies of the adapters that it combines, without which it cannot run.

        Args:
            banks: the tensors of each bank, in the order of ``spec.fuse``; their heads are not read.

        Raises:
            ValueError: if their number or shapes do not match the specification.
        """
        if len(banks) != len(self.spec.fuse):
            raise ValueError(f"got {len(banks)} banks, but this bank reads {len(self.spec.fuse)}")
        if not banks:
            return
        device = next(self.parameters()).device
        for path, module in self.named_modules():
            if path.startswith("modifications."):
                for name in module._buffers:
                    try:
                        setattr(module, name, torch.stack([bank[f"{path}.{name}"] for bank in banks]).to(device))
                    except (KeyError, RuntimeError) as error:
                        raise ValueError(f"the banks to be read do not match: {path}.{name}: {error}") from error

    @torch.no_grad()
    def fold(self) -> None:
        """Turn the trained form into the stored one.

        Masks, and the networks that produce prefixes and prompts, are replaced by their results. Outputs in eval mode
        stay the same, except with diff-pruning, which keeps only the largest differences. Call it after training; it
        replaces the parameters with new, frozen ones. A bank without such parts is not changed.
        """
        for modification, form, group in self._groups():
            form.fold(modification, self.sites, self.layers, group)
        self.train(self.training)

    def placements(self) -> list[Placement]:
        """Return every form that reads and writes token states, in the order of the specification, layer by layer."""
        return [p for m, form, group in self._groups() for p in form.placements(m, self.layers, group)]

    def prefixes(self) -> list[PrefixPlacement]:
        """Return the learned keys and values of every attention module that has any."""
        return [p for m, form, group in self._groups() for p in form.prefixes(m, self.sites, self.layers, group)]

    def prompt(self) -> Tensor | None:
        """Return the prompt (L, W), or None."""
        prompts = (form.prompt(group) for _, form, group in self._groups())
        return next((prompt for prompt in prompts if prompt is not None), None)

    def is_folded(self) -> bool:
        """Return whether every prefix and prompt consists of plain vectors rather than a network that computes them.

        See `fold`.
        """
        return all(form.is_folded(group) for _, form, group in self._groups())

    def layers_above(self, name: str) -> int | None:
        """Return how many layers of the same stack are above the layer of one of the bank's parameters.

        As in `Sites.owner`, what comes before the layers of a stack (a prompt, embeddings) belongs to its first layer.

        Args:
            name: the name of the parameter.

        Returns:
            None for the head, and for what several layers share: networks that compute prefixes, and sparse differences.
        """
        part, _, rest = name.partition(".")
        if part == "own":
            number = self.sites.owner(rest.replace("/", "."))
        else:
            places = {key(layer): layer.number for layer in self.layers} | {INPUT: 0}
            number = places.get(rest.split(".")[1]) if part == "modifications" else None
        if number is None:
            return None
        stack = self.sites.layers[number].stack
        return sum(layer.stack is stack for layer in self.sites.layers[number + 1 :])

    def penalty(self) -> Tensor | None:
        """Return the term that the forms add to the loss, or None."""
        terms = [term for _, form, group in self._groups() if (term := form.penalty(group)) is not None]
        terms += [part.penalty() for part in self.modifications.modules() if isinstance(part, Fusion)]
        return torch.stack(terms).sum() if terms else None

    def covered(self) -> list[str]:
        """Return the names of the backbone parameters that the bank has a copy of, or adds a difference to."""
        names = [name for _, form, group in self._groups() for name in form.covered(group)]
        return [name.replace("/", ".") for name in self.own] + names

    def substitutes(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the bank's versions of backbone parameters by name, in the backbone's dtype."""
        differences = [
            group_differences for _, form, group in self._groups() if (group_differences := form.differences(group))
        ]
        if not self.own and not differences:
            return {}
        substitutes = {}
        for name, own in self.own.items():
            dotted = name.replace("/", ".")
            substitutes[dotted] = own.to(model.get_parameter(dotted).dtype)
        for name, difference in (item for by_name in differences for item in by_name.items()):
            base = model.get_parameter(name)
            substitutes[name] = (base.to(difference.dtype) + difference).to(base.dtype)
        return substitutes

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and buffer to be stored, by name, detached, head included."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def body(self) -> dict[str, Tensor]:
        """Return all tensors except the head's; a shared bank passes these tensors from task to task."""
        return {name: tensor for name, tensor in self.tensors().items() if not name.startswith("head.")}

    @torch.no_grad()
    def copy_body(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy another bank's body. Raises `ValueError` unless names and shapes are the same."""
        mine = self.body()
        if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in tensors.items()}:
            raise ValueError("the two banks differ in their modifications, own parameters or sizes")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])

    def count(self) -> dict[str, int]:
        """Return the number of parameters by part: modifications, own parameters, head."""
        parts = {"modifications": self.modifications, "own": self.own, "head": self.head}
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}

    def _groups(self) -> Iterator[tuple[Modification, Form, nn.ModuleDict]]:
        for number, group in self.modifications.items():
            assert isinstance(group, nn.ModuleDict)
            modification = self.spec.modifications[int(number)]
            yield modification, form_of(modification), group


def _check_codes(spec: BankSpec, names: Sequence[str], parameters: Mapping[str, Tensor]) -> None:
    """Refuse parts that would need the original values of quantised weights."""
    codes = next((name for name in names if is_quantised(parameters[name])), None)
    if codes is not None:
        raise refuse_parts(
            f"bank: it trains copies of, or differences added to, weights such as {codes!r}", "codes have no gradient"
        )
    quantised = any(map(is_quantised, parameters.values()))
    formed = [m for m in spec.modifications if quantised and not m.config.copies]
    reads = [m.form for m in formed if getattr(form_of(m), "reads_weight", False)]
    if reads:
        raise refuse_parts(
            f"bank: the form {reads[0]} computes with the norms of the weights",
            "norms of their rounded values are not exact",
        )

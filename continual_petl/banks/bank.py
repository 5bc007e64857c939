"""A bank: all that belongs to one task (its modifications, its own copies of backbone parameters, its head)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.build import INPUT, TRAINED, WEIGHTS, Reads, build, key, own_names, prefix_kind
from continual_petl.banks.forms import Form
from continual_petl.banks.layers import select_layers
from continual_petl.banks.sparse import DenseDifference, SparseDifference, differences
from continual_petl.banks.spec import BankSpec, Modification
from continual_petl.banks.vectors import Prefix, PrefixMLP, Prompt
from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed


@dataclass(frozen=True)
class Placement:
    """One form at one place of one layer."""

    modification: Modification
    layer: Layer
    name: str
    """Of the attention or projection, or ``ffn``."""
    form: Form


@dataclass(frozen=True)
class PrefixPlacement:
    """Keys (L, K) and values (L, V) for one attention of one layer."""

    modification: Modification
    layer: Layer
    name: str
    keys: Tensor
    values: Tensor
    scale: Tensor | float


class Bank(nn.Module):
    """The parameters of one task on one backbone. Building one draws nothing and copies nothing; `initialise` does.

    Args:
        spec: what the bank modifies.
        model: the backbone, only read (its sizes, later its values); may be on the meta device.
        sites: where everything is in the model.
        head: the task's head; any module.
        reads: what of the backbone the task answers through; a full copy includes the pooler or output head that is read.
        folded: build what is stored, not what is trained; see `fold`.

    Raises:
        InputError: if the layer range is outside the model, or a modification does not fit it.
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
        parameters = dict(model.named_parameters())
        sparse = any(m.form == "sparse" for m in spec.modifications)
        shapes = {name: parameters[name].shape for name in names} if sparse else {}
        self.modifications = nn.ModuleDict(
            {
                str(number): build(modification, sites, self.layers, shapes, folded=folded)
                for number, modification in enumerate(spec.modifications)
                if modification.form != "additive"
            }
        )
        # A slash stands for the dot that torch does not allow in the name of a parameter.
        self.own = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(torch.empty_like(parameters[name], dtype=torch.float32))
                for name in ([] if sparse else names)
            }
        )

    @torch.no_grad()
    def initialise(self, model: nn.Module, seed: int) -> None:
        """Draw fresh forms and head, and copy the backbone's values into the own parameters.

        Every tensor has a generator of its own, seeded by its name: the same seed gives the same bank whatever else
        was drawn before.
        """

        def generators(prefix: str) -> Callable[[str], torch.Generator]:
            return lambda name: torch.Generator().manual_seed(derive_seed(seed, f"{prefix}.{name}"))

        for name, module in self.named_modules():
            if name.startswith("modifications.") and hasattr(module, "initialise"):
                module.initialise(generators(name))
        parameters = dict(model.named_parameters())
        for name, own in self.own.items():
            own.copy_(parameters[name.replace("/", ".")])
        initialise_head = getattr(self.head, "initialise", None)
        if initialise_head is not None:
            initialise_head(generators("head"))

    @torch.no_grad()
    def fold(self) -> None:
        """Turn what was trained into what is stored: networks around prefixes and prompts and masks disappear.

        Answers in eval mode stay the same, but for diff-pruning, which keeps the largest differences only. Call it when
        training has ended; the parameters are new objects then, frozen. A bank without such parts is left as it is.
        """
        for number, modification in enumerate(self.spec.modifications):
            group = self.modifications[str(number)] if modification.folds else None
            if not isinstance(group, nn.ModuleDict):
                continue
            if WEIGHTS in group and isinstance(dense := group[WEIGHTS], DenseDifference):
                group[WEIGHTS] = dense.fold().requires_grad_(False)
            elif INPUT in group and type(encoder := group[INPUT]) is not Prompt:
                assert isinstance(encoder, Prompt)
                encoder.eval()
                plain = Prompt(modification, encoder.table.shape[1]).to(encoder.table)
                plain.table.copy_(encoder.vectors())
                group[INPUT] = plain.requires_grad_(False)
            elif TRAINED in group:
                group.eval()
                for placement in list(self._prefixes_of(modification, group)):
                    layer = group[key(placement.layer)] if key(placement.layer) in group else nn.ModuleDict()
                    assert isinstance(layer, nn.ModuleDict)
                    flat = Prefix(modification, placement.keys.shape[1], placement.values.shape[1])
                    flat.to(placement.keys)
                    flat.key.copy_(placement.keys)
                    flat.value.copy_(placement.values)
                    if modification.composition == "learned":
                        flat.scale.copy_(torch.as_tensor(placement.scale))
                    layer[placement.name] = flat.requires_grad_(False)
                    group[key(placement.layer)] = layer
                del group[TRAINED]
        self.train(self.training)

    def placements(self) -> list[Placement]:
        """Return every form that reads and writes token states, in the order of the specification, layer by layer."""
        found = []
        for modification, group in self._groups():
            for layer in self.layers:
                if key(layer) in group and isinstance(row := group[key(layer)], nn.ModuleDict):
                    found += [Placement(modification, layer, n, f) for n, f in row.items() if isinstance(f, Form)]
        return found

    def prefixes(self) -> list[PrefixPlacement]:
        """Return the learned keys and values of every attention that has some."""
        return [p for m, group in self._groups() if m.form == "attention" for p in self._prefixes_of(m, group)]

    def _prefixes_of(self, modification: Modification, group: nn.ModuleDict) -> Iterator[PrefixPlacement]:
        trained = group[TRAINED] if TRAINED in group else nn.ModuleDict()
        assert isinstance(trained, nn.ModuleDict)
        mlps = {kind: m for kind, m in trained.items() if isinstance(m, PrefixMLP)}
        made: dict[str, Iterator[tuple[tuple[Tensor, Tensor], Tensor | float]]] = {
            kind: iter(zip(m.vectors(), m.scales(), strict=True)) for kind, m in mlps.items()
        }
        for layer in self.layers:
            for attention in layer.stack.attentions:
                scale: Tensor | float = modification.scale
                if made:
                    (keys, values), trained_scale = next(made[prefix_kind(self.sites, layer, attention.name)])
                    assert isinstance(trained_scale, Tensor | float)
                    scale = trained_scale
                else:
                    row = group[key(layer)]
                    assert isinstance(row, nn.ModuleDict)
                    prefix = row[attention.name]
                    assert isinstance(prefix, Prefix)
                    keys, values = prefix.vectors()
                    scale = prefix.scale if modification.composition == "learned" else scale
                yield PrefixPlacement(modification, layer, attention.name, keys, values, scale)

    def prompt(self) -> Tensor | None:
        """Return the prompt (L, W), or None."""
        for modification, group in self._groups():
            if modification.form == "prompt":
                part = group[INPUT]
                assert isinstance(part, Prompt)
                return part.vectors()
        return None

    def penalty(self) -> Tensor | None:
        """Return what the forms add to the loss, or None."""
        terms = [m.penalty() for m in self.modifications.modules() if isinstance(m, DenseDifference)]
        return torch.stack(terms).sum() if terms else None

    def covered(self) -> list[str]:
        """Return the names of the backbone parameters that the bank has a copy or a difference of."""
        forms = [m for m in self.modifications.modules() if isinstance(m, DenseDifference | SparseDifference)]
        return [name.replace("/", ".") for name in self.own] + [name for form in forms for name in form.shapes]

    def substitutes(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the bank's versions of backbone parameters by their names, in the backbone's dtype."""
        forms = [m for m in self.modifications.modules() if isinstance(m, DenseDifference | SparseDifference)]
        if not self.own and not forms:
            return {}
        parameters = dict(model.named_parameters())
        found = {}
        for name, own in self.own.items():
            dotted = name.replace("/", ".")
            found[dotted] = own.to(parameters[dotted].dtype)
        for form in forms:
            for name, difference in differences(form).items():
                base = parameters[name]
                found[name] = (base.to(difference.dtype) + difference).to(base.dtype)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored: every parameter and buffer by name, detached, head included."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def body(self) -> dict[str, Tensor]:
        """Return the tensors without the head: what a shared bank carries from task to task."""
        return {name: tensor for name, tensor in self.tensors().items() if not name.startswith("head.")}

    @torch.no_grad()
    def copy_body(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over another bank's body. Raises `ValueError` unless names and shapes are the same."""
        mine = self.body()
        if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in tensors.items()}:
            raise ValueError("the two banks differ in their modifications, own parameters or sizes")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])

    def count(self) -> dict[str, int]:
        """Return the number of parameters by part: modifications, own parameters, head."""
        parts = {"modifications": self.modifications, "own": self.own, "head": self.head}
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}

    def _groups(self) -> Iterator[tuple[Modification, nn.ModuleDict]]:
        for number, group in self.modifications.items():
            assert isinstance(group, nn.ModuleDict)
            yield self.spec.modifications[int(number)], group

"""A bank: all that belongs to one task (its modifications, its own copies of backbone parameters, its head)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from continual_petl.backbones.anatomy import Anatomy
from continual_petl.banks.forms import FORMS, Form
from continual_petl.banks.spec import BankSpec, Modification, select_layers
from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed


@dataclass(frozen=True)
class Placement:
    """One form at one site: which form, which layer."""

    modification: Modification
    layer: int
    form: Form


class Bank(nn.Module):
    """The parameters of one task on one backbone. Building one draws nothing and copies nothing; `initialise` does.

    Args:
        spec: what the bank modifies.
        model: the backbone, only read (its sizes, later its values); may be on the meta device.
        anatomy: where the sites are.
        num_layers: number of transformer layers.
        head: the task's head; any module.
        pooled: whether the features go through the backbone's pooler, which a full copy then includes.

    Raises:
        InputError: if the layer range is outside the model.
    """

    def __init__(
        self, spec: BankSpec, model: nn.Module, anatomy: Anatomy, num_layers: int, head: nn.Module, *, pooled: bool
    ) -> None:
        super().__init__()
        self.spec = spec
        self.head = head
        try:
            layers = select_layers(spec.layers, num_layers)
        except ValueError as error:
            raise InputError(f"bank: {error}") from None
        self.modifications = nn.ModuleDict()
        for number, modification in enumerate(spec.modifications):
            if modification.form == "additive":
                continue
            rows = {f"layer_{i}": _build(modification, model, anatomy, i) for i in layers}
            self.modifications[str(number)] = nn.ModuleDict(rows)
        # A slash stands for the dot that torch does not allow in the name of a parameter.
        names = _own_names(spec, model, anatomy, layers, pooled)
        parameters = dict(model.named_parameters())
        self.own = nn.ParameterDict(
            {n.replace(".", "/"): nn.Parameter(torch.empty_like(parameters[n], dtype=torch.float32)) for n in names}
        )

    @torch.no_grad()
    def initialise(self, model: nn.Module, seed: int) -> None:
        """Draw fresh forms and head, and copy the backbone's values into the own parameters.

        Every tensor has a generator of its own, seeded by its name: the same seed gives the same bank whatever else
        was drawn before.
        """

        def generators(prefix: str) -> Callable[[str], torch.Generator]:
            return lambda name: torch.Generator().manual_seed(derive_seed(seed, f"{prefix}{name}"))

        for number, rows in self.modifications.items():
            assert isinstance(rows, nn.ModuleDict)
            for layer, form in rows.items():
                assert isinstance(form, Form)
                form.initialise(generators(f"modifications.{number}.{layer}."))
        parameters = dict(model.named_parameters())
        for name, own in self.own.items():
            own.copy_(parameters[name.replace("/", ".")])
        initialise_head = getattr(self.head, "initialise", None)
        if initialise_head is not None:
            initialise_head(generators("head."))

    def placements(self) -> list[Placement]:
        """Return every form with its site, in the order of the specification, layer by layer."""
        found = []
        for number, rows in self.modifications.items():
            assert isinstance(rows, nn.ModuleDict)
            for layer, form in rows.items():
                assert isinstance(form, Form)
                found.append(Placement(self.spec.modifications[int(number)], int(layer.removeprefix("layer_")), form))
        return found

    def substitutes(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the own parameters by their names in the backbone, cast to the backbone's dtype."""
        dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()} if self.own else {}
        return {(dotted := name.replace("/", ".")): own.to(dtypes[dotted]) for name, own in self.own.items()}

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


def _build(modification: Modification, model: nn.Module, anatomy: Anatomy, layer: int) -> Form:
    """Make one form with the widths of its site."""
    if modification.form == "lowrank":
        site = model.get_submodule(anatomy.site(modification.modifies, layer))
        assert isinstance(site, nn.Linear)
        return FORMS["lowrank"](modification, site.in_features, site.out_features)
    # Both sub-layers read and write the hidden width.
    ffn_in = model.get_submodule(anatomy.site("ffn_in", layer))
    assert isinstance(ffn_in, nn.Linear)
    return FORMS[modification.form](modification, ffn_in.in_features, ffn_in.in_features)


def _own_names(spec: BankSpec, model: nn.Module, anatomy: Anatomy, layers: tuple[int, ...], pooled: bool) -> list[str]:
    """Return the names of the backbone parameters that the bank has copies of, in the backbone's order."""
    additive = {m.modifies for m in spec.modifications if m.form == "additive"}
    norms = set(anatomy.norms(layers)) if spec.layernorms == "own" else set()
    inside = tuple(f"{anatomy.layer.format(layer)}." for layer in layers)
    any_layer = anatomy.layer.partition("{}")[0]

    def wanted(name: str) -> bool:
        if name.rpartition(".")[0] in norms:
            return True
        if anatomy.pooler is not None and name.startswith(f"{anatomy.pooler}."):
            # The pooler is not part of the encoder (Houlsby et al. leave it frozen); a full copy that is read has it.
            return "weights" in additive and pooled and spec.layers == "all"
        if not (name.startswith(inside) or (0 in layers and not name.startswith(any_layer))):
            return False
        return "weights" in additive or ("bias" in additive and name.endswith("bias"))

    return [name for name, _ in model.named_parameters() if wanted(name)]

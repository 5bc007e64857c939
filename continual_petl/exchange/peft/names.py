"""The modules that a `peft` adapter changes: their names in the model that peft wraps, and their places in a bank.

peft stores a tensor under the path of its module in the model that it wraps, and matches modules by the end of their paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import transformers
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.projection import part_of, projections
from continual_petl.errors import InputError
from continual_petl.exchange.classes import auto_class, find_place
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.exchange.imported import Draft, layer_range
from continual_petl.exchange.peft.config import matches
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan

START = "base_model.model."
A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
FACTOR, INSIDE, TABLE = "ia3_l", "ln_tuning_layers", "prompt_embeddings"
"""The names of tensors: low-rank changes, factors, LayerNorms, and all virtual tokens of a prompt or prefix."""
_PARTS = re.compile(rf"(.*)\.({re.escape(A)}|{re.escape(B)}|{MAGNITUDE}|{FACTOR}|{INSIDE}\.\w+)")

_Change = TypeVar("_Change")
Changed = Mapping[str, Mapping[str, Tensor]]
"""The tensors that change a module, by the module's name and their own: ``lora_A.weight``."""


@dataclass(frozen=True)
class Names:
    """The `transformers` model that peft wraps, and the names of its modules."""

    auto: str
    """The class that loads the model."""
    task_type: str | None
    """peft's name for the model's type of task."""
    head: str | None
    """The name of its head, if the adapter contains the head."""
    prefix: str
    """The prefix of the base model's modules in this model, such as ``bert.``."""
    base: str
    """The prefix of the base model's modules in the backbone."""
    modules: Collection[str]
    """The names of all its modules."""

    def of(self, path: str) -> str:
        """Return a module's name in the wrapped model, given its path in the backbone."""
        return self.prefix + path.removeprefix(self.base)

    def path(self, name: str) -> str:
        """Return a module's path in the backbone, given its name in the wrapped model: the inverse of `of`."""
        return self.base + name.removeprefix(self.prefix)

    def replaced(self, changed: Changed, copies: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that replace a parameter of the backbone, by its path: LayerNorms, and copies of modules."""
        inside = {
            f"{name}.{part.removeprefix(f'{INSIDE}.')}": tensor
            for name, parts in changed.items()
            for part, tensor in parts.items()
            if part.startswith(INSIDE)
        }
        return {self.path(name): tensor for name, tensor in {**copies, **inside}.items()}

    def matched(self, ends: Iterable[str]) -> set[str]:
        """Return the modules that peft matches by these names, or ends of names."""
        ends = list(ends)
        return {name for name in self.modules if matches(ends, name)}

    def shortest(self, names: Iterable[str]) -> list[str]:
        """Return the last parts of the names if peft matches exactly these modules by them, otherwise the names."""
        whole = set(names)
        ends = sorted({name.rpartition(".")[2] for name in whole})
        return ends if self.matched(ends) == whole else sorted(whole)


def find_names(plan: TaskPlan, backbone: Backbone, *, headless: bool = False) -> Names:
    """Return the model that the adapter of a task is loaded onto.

    It is the language model for generative tasks; otherwise the class for the task's kind if its head computes the same as
    the bank's; otherwise the base model, with the head in a separate file.

    Args:
        plan: the task.
        backbone: its backbone.
        headless: whether to return the base model in any case, except for generative tasks.
    """
    model, base, head, task_type = backbone.model, backbone.sites.base, None, kind_of(plan).peft_type
    if kind_of(plan).generates:
        auto, prefix = auto_class(plan.kind), base
    else:
        auto, prefix, task_type, head = _headed(plan, backbone) if not headless else _HEADLESS
    inside = [name for name, _ in model.base_model.named_modules() if name and not name.startswith("lm_head")]
    # transformers adds a pooler to the base model even if the checkpoint has none.
    pooler = backbone.anatomy.pooler
    inside += [pooler, f"{pooler}.dense"] if pooler is not None else []
    outside = "lm_head" if kind_of(plan).generates else head
    modules = {prefix + name for name in inside} | ({outside} if outside is not None else set())
    return Names(auto, task_type, head, prefix, base, modules)


_HEADLESS: tuple[str, str, str | None, str | None] = ("AutoModel", "", "FEATURE_EXTRACTION", None)


def _headed(plan: TaskPlan, backbone: Backbone) -> tuple[str, str, str | None, str | None]:
    try:
        place = find_place(plan, backbone)
    except CannotExpressError:
        return _HEADLESS
    if place is None or not place.plain:
        return _HEADLESS
    auto = auto_class(plan.kind)
    cls: Any = getattr(transformers, auto)._model_mapping[type(backbone.model.config)]
    return auto, f"{cls.base_model_prefix}.", kind_of(plan).peft_type, place.out


def by_module(subject: Subject) -> dict[str, list[Placement]]:
    """Return the changes to projections, keyed by module path."""
    placements: dict[str, list[Placement]] = {}
    for placement in subject.bank.placements():
        placements.setdefault(part_of(subject.bank.sites, placement)[0], []).append(placement)
    return placements


LOW_RANK: tuple[Site, ...] = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
FACTORS: tuple[Site, ...] = ("key", "value", "ffn_inner")


@dataclass(frozen=True)
class TargetModule:
    """A projection: a module of its own, or a part of a fused module."""

    layer: Layer
    site: Site
    name: str
    """The name of the projection in a bank."""
    path: str
    """The module's path in the backbone."""
    columns: slice | list[int] | None
    """The module's outputs that belong to the projection; None for all."""


def changed_targets(
    changed: Changed, names: Names, sites: Sites, wanted: Collection[Site], what: str
) -> list[tuple[TargetModule, Mapping[str, Tensor]]]:
    """Return the projections that an adapter changes, layer by layer, with the tensors of their modules.

    Args:
        changed: the tensors of the adapter, by module.
        names: names of modules in the model that peft wraps.
        sites: the sites of the backbone.
        wanted: the sites that a bank can change.
        what: what a bank can have there, for messages.

    Raises:
        InputError: if the adapter changes other modules too.
    """
    targets = [
        TargetModule(
            layer,
            site,
            name,
            layer.full(projection.path),
            sites.columns(layer, projection) if projection.num_parts > 1 else None,
        )
        for layer in sites.layers
        for site in wanted
        for name, projection in projections(sites, layer, site).items()
    ]
    by_path = {names.path(name): parts for name, parts in changed.items()}
    check_known(by_path, {target.path for target in targets}, what)
    return [(target, by_path[target.path]) for target in targets if target.path in by_path]


def draft_of(
    changes: Mapping[tuple[Site, str, int], _Change],
    wanted: Collection[Site],
    sites: Sites,
    row: Callable[[list[_Change]], dict[str, Any]],
    fill: Callable[[Any, _Change | None], None],
) -> Draft:
    """Return a bank with a modification for every site that an adapter changes.

    Args:
        changes: the changes, by site, name of the projection, and number of the layer.
        wanted: the sites that a bank can change, in the order of its modifications.
        sites: the sites of the backbone.
        row: returns the other options of a modification, given the changes at its site.
        fill: sets the values at one place of a bank; the change is None where the adapter changes nothing.
    """
    found = {site: [change for key, change in changes.items() if key[0] == site] for site in wanted}
    rows = [{"modifies": site, **row(known)} for site, known in found.items() if known]
    layers = layer_range({number for _, _, number in changes}, sites.num_layers)

    def fill_all(bank: Bank) -> None:
        for placement in bank.placements():
            key = placement.modification.modifies, placement.name, placement.layer.number
            fill(placement.delta, changes.get(key))

    return Draft(BankSpec.model_validate({"modifications": rows, "layers": layers}), fill_all)


def check_known(found: Collection[str], known: Collection[str], what: str) -> None:
    """Raise `InputError`, naming the first module, if an adapter changes modules that a bank cannot change."""
    if unknown := sorted(set(found) - set(known)):
        raise InputError(
            f"adapter_model.safetensors: it changes module {unknown[0][:200]!r}"
            f"{f' and {len(unknown) - 1} others' if len(unknown) > 1 else ''}, but a bank can only have {what} of this "
            "backbone. Train the adapter without these modules (target_modules)."
        )


def norms_of(sites: Sites) -> dict[str, int]:
    """Return, keyed by the path of every LayerNorm, the number of the layer that it belongs to."""
    return {path: layer.number for layer in sites.layers for path in sites.norms(layer)}


def split_tensors(stored: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Return the tensors that change a module, by module and part, and those that replace a parameter, by name."""
    changed: dict[str, dict[str, Tensor]] = {}
    copies: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        name = key.removeprefix(START)
        if matched := _PARTS.fullmatch(name):
            changed.setdefault(matched[1], {})[matched[2]] = tensor
        else:
            copies[name] = tensor
    return changed, copies

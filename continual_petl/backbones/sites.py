"""An anatomy resolved on one model: the full paths of all modules and parameters, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from continual_petl.backbones.anatomy import Anatomy, Attention, Projection, Stack
from continual_petl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer, numbered across all stacks."""

    number: int
    path: str
    """Full path in the model."""
    stack: Stack
    first: bool
    """Whether it is the first of its stack."""
    last: bool

    def full(self, path: str) -> str:
        """Return the full path of one of the layer's parts."""
        return f"{self.path}.{path}"


class Width(NamedTuple):
    """Input and output size of a linear map."""

    into: int
    out: int


class Sites:
    """The sites of one model.

    Args:
        anatomy: the anatomy of its family.
        model: with or without a language-modelling head; may be on the meta device.

    Raises:
        InputError: if the model lacks a module that the anatomy names.
    """

    def __init__(self, anatomy: Anatomy, model: Any) -> None:
        self.anatomy = anatomy
        base = model.base_model
        self.base = "" if base is model else f"{next(name for name, m in model.named_modules() if m is base)}."
        """Prefix of the base model's paths."""
        # Keep only sizes: otherwise a bank that is stored, copied or pickled would include the whole backbone.
        modules = dict(model.named_modules())
        self._paths = frozenset(modules)
        self._widths = {path: width for path, module in modules.items() if (width := _linear_width(module)) is not None}
        self._weights = {
            path: int(module.weight.shape[0]) if getattr(module, "weight", None) is not None else 0
            for path, module in modules.items()
            if next(module.parameters(recurse=False), None) is not None
        }
        heads_keys = {p.heads_key for s in anatomy.stacks for a in s.attentions for p in (a.query, a.key, a.value)}
        self._num_heads = {key: int(getattr(model.config, key)) for key in heads_keys if key is not None}
        self._embedding_width = 0 if anatomy.images else model.get_input_embeddings().weight.shape[1]
        self.layers = tuple(self._layers(model.config))
        self._check(type(model).__name__)

    @property
    def num_layers(self) -> int:
        """Total number of layers across all stacks."""
        return len(self.layers)

    def into(self, layer: Layer) -> list[Projection]:
        """Return the first projections of a layer's FFN that the model has."""
        return [p for p in layer.stack.ffn.into if layer.full(p.path) in self._paths]

    def width(self, layer: Layer, projection: Projection) -> Width:
        """Return the input and output size of a projection, which may be only a part of its module."""
        whole = self.module_width(layer.full(projection.path))
        return Width(whole.into, whole.out // projection.num_parts)

    def module_width(self, path: str) -> Width:
        """Return the input and output size of a linear module, ``nn.Linear`` or the transposed ``Conv1D`` of GPT-2."""
        return self._widths[path]

    def norm_width(self, path: str) -> int | None:
        """Return the width of a norm; None if a module without a weight takes its place."""
        return self._weights.get(path)

    def hidden_width(self, layer: Layer) -> int:
        """Return the width of the inputs and outputs of a layer's sub-layers."""
        return self.module_width(layer.full(self.into(layer)[0].path)).into

    @property
    def embedding_width(self) -> int:
        """Width of the token embeddings."""
        return int(self._embedding_width)

    def columns(self, layer: Layer, projection: Projection) -> slice | list[int]:
        """Return the output columns of the module that belong to the projection."""
        whole = self.module_width(layer.full(projection.path)).out
        size = whole // projection.num_parts
        if projection.heads_key is None:
            return slice(projection.part * size, (projection.part + 1) * size)
        num_heads = self._num_heads[projection.heads_key]
        chunk, head = size // num_heads, whole // num_heads
        starts = [number * head + projection.part * chunk for number in range(num_heads)]
        return [start + offset for start in starts for offset in range(chunk)]

    def norms(self, layer: Layer) -> list[str]:
        """Return the full paths of a layer's LayerNorms; norms outside layers belong to a stack's first or last layer."""
        stack, paths = layer.stack, []
        if layer.first and stack.embedding_norm is not None:
            paths.append(self.base + stack.embedding_norm)
        if layer.first:
            paths += [self.base + path for path in stack.outer_norms]
        paths += [layer.full(a.norm) for a in stack.attentions] + [layer.full(stack.ffn.norm)]
        paths += [layer.full(path) for path in stack.extra_norms]
        if layer.last and stack.final_norm is not None:
            paths.append(self.base + stack.final_norm)
        # Some models leave a norm out, or have an identity in its place (ModernBERT's first attention).
        return [path for path in dict.fromkeys(paths) if path in self._weights]

    def owner(self, parameter: str) -> int | None:
        """Return the number of the layer that a parameter belongs to; None for the pooler.

        Parameters before the layers of a stack belong to its first layer, those after them to its last; a separate
        output head belongs to the last layer of the model.
        """
        for layer in self.layers:
            if parameter.startswith(f"{layer.path}."):
                return layer.number
        if not parameter.startswith(self.base) or parameter.startswith("lm_head."):
            return self.layers[-1].number
        name = parameter.removeprefix(self.base)
        if self.anatomy.pooler is not None and name.startswith(f"{self.anatomy.pooler}."):
            return None
        for layer in self.layers:
            stack = layer.stack
            if layer.last and stack.final_norm is not None and name.startswith(f"{stack.final_norm}."):
                return layer.number
        for layer in self.layers:
            if layer.first and layer.stack.root and name.startswith(f"{layer.stack.root}."):
                return layer.number
        return 0

    def _layers(self, config: Any) -> Iterator[Layer]:
        number = 0
        for stack in self.anatomy.stacks:
            count = int(getattr(config, stack.num_layers_key))
            for position in range(count):
                yield Layer(
                    number=number,
                    path=self.base + stack.layer.format(position),
                    stack=stack,
                    first=position == 0,
                    last=position == count - 1,
                )
                number += 1

    def _check(self, model: str) -> None:
        missing: list[str] = []
        for layer in self.layers:
            stack, ffn = layer.stack, layer.stack.ffn
            needed = [ffn.out, ffn.result, ffn.norm]
            for attention in stack.attentions:
                needed += [attention.module, attention.out, attention.result, attention.norm]
                needed += [p.path for p in (attention.query, attention.key, attention.value)]
            missing += [path for path in map(layer.full, needed) if path not in self._paths]
            if not self.into(layer):
                missing.append(layer.full(ffn.into[0].path))
            ends = [stack.embedding_norm] * layer.first + [stack.final_norm] * layer.last
            missing += [self.base + path for path in ends if path is not None and self.base + path not in self._paths]
        prompt = self.anatomy.prompt
        if prompt is not None:
            joined = [self.base + path for path in (prompt.norm, prompt.stack, prompt.positions) if path]
            missing += [path for path in joined if path not in self._paths]
        if missing:
            raise InputError(
                f"backbone of family {self.anatomy.family!r} ({model}): the anatomy names {len(missing)} modules that the "
                f"model does not have; the first is {missing[0]!r}. The installed transformers may have renamed them: "
                "register a corrected Anatomy with continual_petl.backbones.register_anatomy."
            )


def _linear_width(module: Any) -> Width | None:
    if hasattr(module, "in_features"):
        return Width(int(module.in_features), int(module.out_features))
    # GPT-2's transposed Conv1D.
    return Width(int(module.nx), int(module.nf)) if hasattr(module, "nx") else None


def attention_of(layer: Layer, name: str) -> Attention:
    """Return the description of one of a layer's attention modules, by its name."""
    return next(attention for attention in layer.stack.attentions if attention.name == name)

"""What the methods of `adapters` 1.3 have in common that a bank can express: options, modifications, tensors, places.

A method states once what its options are called (with the defaults of `adapters`), which modifications of a bank they are,
and which parameters of the bank each of its tensors consists of; exports and imports both follow that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from transformers import activations

from continual_petl._strict_model import StrictModel
from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Placement
from continual_petl.exchange.formats import CannotExpressError, without_method
from continual_petl.exchange.subject import Subject

_BERT = {"self": "attention.output.adapters", "ffn": "output.adapters"}
_BLOCKS = {"self": "attention_adapters.adapters", "cross": "cross_attention_adapters.adapters"}
_BLOCKS |= {"ffn": "output_adapters.adapters"}
_T5 = {"self": "layer.0.adapters", "cross": "layer.1.adapters", "ffn": "layer.{last}.adapters"}
PLACES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT),
    **dict.fromkeys(("distilbert", "bart", "mbart", "gpt2"), _BLOCKS),
    **dict.fromkeys(("t5", "mt5"), _T5),
}
"""Paths of bottlenecks in a layer, for each model type."""
Take = Callable[[str], Tensor]
"""Returns the tensor at a path; raises `KeyError` or `InputError` if there is none."""
Flag = Annotated[bool, Field(strict=True)]
_Layers = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(max_length=10_000)]


@dataclass(frozen=True)
class Stacked:
    """A tensor of an adapter, and the parameters of a bank that it consists of."""

    path: str | None
    """Its path in the base model; None if `adapters` has none for these parameters, which then are zero."""
    parts: list[Tensor]
    inner: Layer | None = None
    """The layer, for factors of the inner states of an FFN."""


class Method(StrictModel):
    """The options of a method; others are refused if they are set."""

    name: ClassVar[str]
    constant: ClassVar[Mapping[str, Any]] = {}
    """Further options that are written; they have no effect, or are off."""
    leave_out: _Layers = ()

    @classmethod
    def of(cls, subject: Subject, rows: Sequence[Modification]) -> list[tuple[Method, Sequence[Modification]]]:
        """Return the methods that modifications of one form become, each with its modifications.

        Args:
            subject: the task.
            rows: the modifications of this form.

        Raises:
            CannotExpressError: if `adapters` has no equivalent.
        """
        raise NotImplementedError

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return the modifications that a method becomes.

        Raises:
            InputError: if a bank has no equivalent.
        """
        raise NotImplementedError

    def tensors(self, bank: Bank, rows: Sequence[Modification], name: str) -> Iterator[Stacked]:
        """Yield every tensor of the adapter with this name, and the parameters of these modifications that it stores."""
        raise NotImplementedError

    def written(self) -> dict[str, Any]:
        """Return the configuration in the format of `adapters`."""
        return self.model_dump(warnings=False) | dict(self.constant)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the tensor that is stored for some parameters."""
        return torch.cat(parts)

    def split(self, stacked: Stacked, backbone: Backbone, take: Take) -> Sequence[Tensor]:
        """Return the value of each parameter in a stored tensor; the caller compares the shapes."""
        assert stacked.path is not None
        tensor = take(stacked.path)
        return tensor.tensor_split(len(stacked.parts)) if tensor.ndim else [tensor] * len(stacked.parts)

    def why_not(self, backbone: Backbone, stacked: Stacked, values: Sequence[Tensor]) -> str | None:
        """Return why one of the libraries cannot express these values of a tensor; None if both can."""
        return None


def activation(name: str) -> Any:
    """Return a non-linearity of `adapters` by its name."""
    name = name.lower()
    function: Any = F.leaky_relu if name == "leakyrelu" else activations.get_activation(name)  # type: ignore[no-untyped-call]
    return function


def refused(subject: Subject, why: str) -> CannotExpressError:
    """Return the error for a bank that `adapters` has no method for."""
    return CannotExpressError(subject.plan.name, "adapters", without_method(why))


def left_out(subject: Subject) -> tuple[int, ...]:
    """Return the indices of the layers that a bank leaves unchanged."""
    inside = {layer.number for layer in subject.bank.layers}
    return tuple(layer.number for layer in subject.bank.sites.layers if layer.number not in inside)


def placed(bank: Bank, rows: Sequence[Modification]) -> list[Placement]:
    """Return the placements that belong to the given modifications of a bank, layer by layer."""
    return [placement for placement in bank.placements() if placement.modification in rows]


def same_options(rows: Sequence[Modification]) -> bool:
    """Return whether modifications differ only in their sites, and no site occurs twice."""
    sites = {row.modifies for row in rows}
    plain = [row.model_copy(update={"modifies": rows[0].modifies}) for row in rows]
    return len(sites) == len(rows) and all(row == plain[0] for row in plain)

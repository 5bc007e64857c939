"""One method of an adapter of `adapters` as modifications of a bank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError
from continual_petl.exchange.draft import Draft, put


class Stored:
    """The tensors of an adapter, and which of them have been used.

    Args:
        tensors: the tensors, keyed by their path in the base model.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._left = set(tensors)

    def take(self, path: str) -> Tensor:
        """Return the tensor at a path, and mark it as used.

        Raises:
            InputError: if there is no such tensor.
        """
        if path not in self.tensors:
            raise InputError(
                f"folder: the tensor {path[:300]!r} that adapter_config.json asks for is missing; the folder is incomplete."
            )
        self._left.discard(path)
        return self.tensors[path]

    def set(self, parameter: Tensor, path: str) -> None:
        """Copy a tensor into a parameter of the same shape."""
        put(parameter, self.take(path), path)

    def check_used(self) -> None:
        """Raise `InputError` if a tensor was not used."""
        if self._left:
            raise InputError(
                f"folder: the tensor {min(self._left)[:300]!r} is not one that adapter_config.json asks for; the adapter has "
                "parts that cannot be imported, or the configuration and the weights file do not belong together."
            )


@dataclass(frozen=True)
class Part:
    """The part of a bank that one method of an adapter becomes."""

    rows: Sequence[dict[str, Any]]
    """Its modifications."""
    fill: Callable[[Bank, Sequence[Modification], Stored], None]
    """Sets the values of these modifications in an initialised bank."""


def joined(parts: Sequence[Part], layers: str, tensors: dict[str, Tensor]) -> Draft:
    """Return the draft of a bank that combines all methods.

    Args:
        parts: the methods.
        layers: the layers that the bank modifies.
        tensors: the tensors of the adapter.
    """
    rows = [row for part in parts for row in part.rows]
    spec = BankSpec.model_validate({"modifications": rows, "layers": layers})

    @torch.no_grad()
    def fill(bank: Bank) -> None:
        stored, start = Stored(tensors), 0
        for part in parts:
            end = start + len(part.rows)
            part.fill(bank, spec.modifications[start:end], stored)
            start = end
        stored.check_used()

    return Draft(spec, fill)

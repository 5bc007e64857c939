"""Initialises fresh parameters as in the papers, with one random generator for each tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from continual_petl.banks.config.spec import Modification
from continual_petl.seeding import derive_seed


@dataclass(frozen=True)
class Generators:
    """The random generators of a module's parameters: each has its own, seeded by its name."""

    seed: int
    prefix: str
    """Name of the module in its bank."""

    def __call__(self, name: str) -> torch.Generator:
        """Return the generator of a parameter."""
        return torch.Generator().manual_seed(derive_seed(self.seed, f"{self.prefix}.{name}"))

    def of(self, part: str) -> Generators:
        """Return the generators of a part of the module."""
        return Generators(self.seed, f"{self.prefix}.{part}")


def draw(tensor: Tensor, modification: Modification, generator: torch.Generator, *, zero: bool) -> None:
    """Fill a tensor in place according to the modification's ``init``.

    Args:
        tensor: a weight matrix, or a table of vectors.
        modification: selects the initialisation.
        generator: used for this tensor only.
        zero: whether ``init: lora`` sets this tensor to zero, so that the change starts at zero.
    """
    match modification.init:
        case "houlsby":
            # Houlsby et al. 2019, section 3.6: sigma 1e-2, truncated at two standard deviations.
            sigma = modification.init_scale
            nn.init.trunc_normal_(tensor, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)
        case "bert":
            tensor.normal_(0.0, 0.02, generator=generator)
        case "lora" if zero:
            tensor.zero_()
        case "lora":
            # As torch initialises Linear, and loralib initialises A.
            nn.init.kaiming_uniform_(tensor, a=math.sqrt(5), generator=generator)


def draw_linear(layer: nn.Linear, modification: Modification, generators: Generators, name: str, *, zero: bool) -> None:
    """Fill the weight of a linear layer as `draw` does; its bias is zero."""
    draw(layer.weight, modification, generators(f"{name}.weight"), zero=zero)
    if layer.bias is not None:
        layer.bias.zero_()


def draw_as_torch(module: nn.Module, generators: Generators) -> None:
    """Fill a Linear or LSTM as torch's constructor does: uniform between plus and minus ``1 / sqrt(fan-in)``."""
    for name, parameter in module.named_parameters():
        fan = module.hidden_size if isinstance(module, nn.LSTM) else getattr(module, "in_features", None)
        assert isinstance(fan, int)
        bound = 1 / math.sqrt(fan)
        parameter.uniform_(-bound, bound, generator=generators(name))

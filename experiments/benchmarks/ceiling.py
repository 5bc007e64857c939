"""The matrix products of one training step: a lower bound on the time of any implementation in this precision.

All products that a step cannot avoid are included: forward through every layer, backward to the lowest modified place
(gradients of states, but not of frozen weights), and all products of the bank. Each product has its own weights, as in the
model; inputs and outputs of the same shape share one preallocated tensor, so no allocation is timed. Not counted: softmax,
LayerNorms, non-linearities, sums, the optimizer, the embeddings and the head.

Shape suffixes: N = B T tokens, D width, F width inside the FFN, R bottleneck, S heads times rows, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from experiments.benchmarks.peers.clock import seconds
from experiments.benchmarks.shapes import Shape

Lowest = Literal["embeddings", "attention output"]
"""The lowest place that the bank modifies: the LayerNorm of the embeddings, or the output of the first layer's attention."""


@dataclass(frozen=True)
class Product:
    """The product ``(rows, inner) @ (inner, columns)``, computed ``times`` times in each of ``layers`` layers.

    In attention, it is a batch of ``stack`` such products.
    """

    what: str
    rows: int
    inner: int
    columns: int
    times: int
    layers: int
    stack: int = 0
    transposed: Literal["none", "left", "right"] = "none"
    """The operand that is transposed in memory, as in a model."""

    @property
    def num_operations(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns * self.times * self.layers * (self.stack or 1)


def forward_products(shape: Shape, rows: int, length: int, bottleneck: int) -> list[Product]:
    """Return the products of a forward pass; without a bank if ``bottleneck`` is 0."""
    N, D, F, L = rows * length, shape.hidden, shape.ffn, shape.num_layers
    S, d = rows * shape.num_heads, shape.hidden // shape.num_heads
    found = [
        Product("q, k, v, attention output", N, D, D, 4, L, transposed="right"),
        Product("scores", length, d, length, 1, L, S, "right"),
        Product("values", length, length, d, 1, L, S),
        Product("FFN in", N, D, F, 1, L, transposed="right"),
        Product("FFN out", N, F, D, 1, L, transposed="right"),
    ]
    if bottleneck:
        found += [
            Product("bank, down", N, D, bottleneck, 2, L, transposed="right"),
            Product("bank, up", N, bottleneck, D, 2, L, transposed="right"),
        ]
    return found


def backward_products(shape: Shape, rows: int, length: int, bottleneck: int, lowest: Lowest) -> list[Product]:
    """Return the products of the backward pass from the top to the lowest modified place."""
    N, D, F, R, L = rows * length, shape.hidden, shape.ffn, bottleneck, shape.num_layers
    S, d = rows * shape.num_heads, shape.hidden // shape.num_heads
    # Below a bank on the output of the first attention, no gradients are needed.
    through = L if lowest == "embeddings" else L - 1
    return [
        Product("FFN out, states", N, D, F, 1, L),
        Product("FFN in, states", N, F, D, 1, L),
        Product("q, k, v, attention output, states", N, D, D, 4, through),
        Product("attention, probabilities", length, d, length, 1, through, S, "right"),
        Product("attention, values", length, length, d, 1, through, S, "left"),
        Product("attention, queries", length, length, d, 1, through, S),
        Product("attention, keys", length, length, d, 1, through, S, "left"),
        Product("bank, up, states", N, D, R, 2, L),
        Product("bank, up, weights", D, N, R, 2, L, transposed="left"),
        # The states below the lowest bank need no gradient.
        Product("bank, down, states", N, R, D, 2, through),
        Product("bank, down, states of the first layer", N, R, D, 1, L - through),
        Product("bank, down, weights", R, N, D, 2, L, transposed="left"),
    ]


def step_products(shape: Shape, rows: int, length: int, bottleneck: int, lowest: Lowest) -> list[Product]:
    """Return the products of one training step with Houlsby's bank in every layer."""
    forward = forward_products(shape, rows, length, bottleneck)
    return [p for p in forward + backward_products(shape, rows, length, bottleneck, lowest) if p.layers]


def num_operations(products: list[Product]) -> int:
    """Return the number of multiplications and additions in all products."""
    return sum(product.num_operations for product in products)


def multiply(products: list[Product], *, device: str, dtype: torch.dtype, count: int) -> Callable[[], float]:
    """Return a block that computes all products ``count`` times and returns the mean seconds of one pass."""
    generator = torch.Generator().manual_seed(0)
    lefts: dict[tuple[int, ...], Tensor] = {}
    results: dict[tuple[int, ...], Tensor] = {}
    work: list[tuple[Tensor, Tensor, Tensor]] = []

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(device, dtype)

    for p in products:
        stack = (p.stack,) if p.stack else ()
        size = (*stack, p.inner, p.rows) if p.transposed == "left" else (*stack, p.rows, p.inner)
        left = lefts[size] if size in lefts else lefts.setdefault(size, drawn(*size))
        left = left.mT if p.transposed == "left" else left
        out = results.setdefault((*stack, p.rows, p.columns), drawn(*stack, p.rows, p.columns))
        for _ in range(p.times * p.layers):
            right = (
                drawn(*stack, p.columns, p.inner).mT if p.transposed == "right" else drawn(*stack, p.inner, p.columns)
            )
            work.append((left, right, out))

    def once() -> None:
        for _ in range(count):
            for left, right, out in work:
                torch.matmul(left, right, out=out)

    def block() -> float:
        with torch.inference_mode():
            return seconds(device, once) / count

    return block

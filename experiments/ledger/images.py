"""Lines of LEDGER.md for a stream of images."""

from __future__ import annotations

from experiments.ledger.line import NOT_AT_HAND, Group, beside
from experiments.published.images import SPLIT_MNIST


def groups() -> list[Group]:
    """Return the lines of Split MNIST."""
    return [
        Group(
            title="Split MNIST, as Avalanche measures it",
            published=f"{SPLIT_MNIST.setting}; the command is one of several in a checkout of continual-learning-baselines",
            ours="none: MNIST is not at hand; the catalog stream `digits` has other images and other tasks",
            commands=("python experiments/split_mnist/synaptic_intelligence.py",),
            lines=[beside(row, None, NOT_AT_HAND) for row in SPLIT_MNIST.rows],
        )
    ]

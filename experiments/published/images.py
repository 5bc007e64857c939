"""Published numbers for a stream of images: Split MNIST, as Avalanche's own list of baselines measures it.

ACC is measured with Avalanche; the caveat gives the paper's number where it differs, as the list prints it.
"""

from __future__ import annotations

from experiments.published.table import Published, Table

_BASELINES = "[continual-learning-baselines](https://github.com/ContinualAI/continual-learning-baselines), README"

SPLIT_MNIST = Table(
    "Split MNIST, five tasks of two digits; ACC",
    (
        Published("RWalk, task given", "99", _BASELINES),
        Published("Synaptic Intelligence, task given", "97", _BASELINES),
        Published("GDumb", "97", _BASELINES),
        Published("GSS-greedy", "82", _BASELINES, "78 in its paper"),
        Published("Generative Replay", "75", _BASELINES),
        Published("LwF", "23", _BASELINES),
        Published("CoPE, online", "93", _BASELINES),
        Published("replay, online", "92", _BASELINES, "no paper: Avalanche's own number"),
    ),
)

"""The named streams: existing streams of this repository with one label per row, in the orders in which they are learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from continual_petl.streams.stream import TaskStream
from experiments.continual.classic5 import STREAM
from experiments.routing.streams import LONG, Scale, class_stream, long_stream
from experiments.studies.trial import Trial

Order = tuple[str, ...]
Protocol = Literal["task", "class", "domain"]
CLASSES = tuple(f"clinc150-{number:02}" for number in range(1, 11))


@dataclass(frozen=True, kw_only=True)
class Named:
    """A stream of this study."""

    orders: tuple[Order, ...]
    protocols: tuple[Protocol, ...]
    read: Callable[[Path, str, Order, int], TaskStream]
    """From the folder of data, the backbone, the order and the seed."""


def _texts(data: Path, backbone: str, order: Order, seed: int) -> TaskStream:
    trial = Trial(tasks=order, bank="probe", training={}, seed=seed, limits=STREAM.limits, backbone=backbone)
    return TaskStream(trial.stream(data))


def _long(data: Path, backbone: str, order: Order, seed: int) -> TaskStream:
    return _seeded(long_stream(data, Scale(backbone=backbone), order), order, seed)


def _classes(data: Path, backbone: str, order: Order, seed: int) -> TaskStream:
    return _seeded(class_stream(data, Scale(backbone=backbone)), order, seed)


def _seeded(stream: TaskStream, order: Order, seed: int) -> TaskStream:
    tasks = [stream[name] for name in order]
    return TaskStream(stream.spec.model_copy(update={"seed": seed, "tasks": tuple(tasks)}))


_CLASSED = tuple(name for name in LONG if name != "stsb")  # stsb predicts a number

STREAMS: dict[str, Named] = {
    "classic5": Named(orders=STREAM.orders, protocols=("task", "class"), read=_texts),
    "stars": Named(orders=(("yelp", "amazon"), ("amazon", "yelp")), protocols=("domain",), read=_texts),
    "clinc150": Named(orders=(CLASSES, CLASSES[::-1]), protocols=("task", "class"), read=_classes),
    "long": Named(orders=(_CLASSED, _CLASSED[::-1]), protocols=("task", "class"), read=_long),
}


def shorter(named: Named, count: int) -> Named:
    """Return a stream with only the first tasks of its first order, for quick runs."""
    return replace(named, orders=(named.orders[0][:count],))

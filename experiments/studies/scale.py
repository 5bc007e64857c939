"""The scale of a study: small for two cores, quick for smoke tests, or with a larger backbone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from experiments.studies.trial import Method, Trial

SEEDS = (13, 21, 34, 55, 89)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The settings that all trials of a study share, the number of seeds, and whether only some settings are tried."""

    name: str = "small"
    backbone: str = "minilm"
    layers: int = 6
    """Layers of the backbone."""
    width: int = 384
    """Hidden size; feed-forward layers are assumed to be four times as wide, as in BERT."""
    max_length: int = 64
    num_seeds: int = 3
    quick: bool = False
    """Smoke test: few rows, one epoch, only the first few and the last of each list of settings. Its numbers are
    meaningless."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of repeated trials."""
        return SEEDS[: self.num_seeds]

    @property
    def larger(self) -> bool:
        """Whether this scale has a different backbone from the small scale; if so, its pages have names of their own."""
        return self.name not in ("small", "quick")

    @property
    def encoder(self) -> int:
        """Parameters of the backbone's layers, excluding embeddings and pooler."""
        return self.layers * (12 * self.width**2 + 13 * self.width)

    def some(self, values: tuple[Any, ...], most: int = 2) -> tuple[Any, ...]:
        """Return all values; for a quick study, at most ``most``: the first ones and the last."""
        if not self.quick or len(values) <= most:
            return values
        return (*values[: most - 1], values[-1])

    def trial(
        self,
        tasks: str | tuple[str, ...],
        bank: str | dict[str, Any],
        *,
        epochs: int,
        learning_rate: float,
        seed: int,
        train: int | None = None,
        method: Method = "learn",
        options: dict[str, Any] | None = None,
        **training: Any,
    ) -> Trial:
        """Return a trial at this scale.

        Args:
            tasks: one task, or several in the order in which they are learned.
            bank: as in a stream file.
            epochs: passes over the training rows.
            learning_rate: peak of the schedule.
            seed: seed of the stream.
            train: maximum training rows per task.
            method: see `Trial`.
            options: see `Trial`.
            training: further keys of ``training``.
        """
        limits = {} if train is None else {"train": train}
        if self.quick:
            epochs, limits = 1, {"train": 16, "validation": 8, "test": 8}
        return Trial(
            tasks=(tasks,) if isinstance(tasks, str) else tasks,
            bank=bank,
            training={"epochs": epochs, "learning_rate": learning_rate, **training},
            seed=seed,
            limits=limits,
            backbone=self.backbone,
            max_length=self.max_length,
            method=method,
            options=options or {},
        )


SMALL = Scale()
QUICK = replace(SMALL, name="quick", backbone="tiny", num_seeds=1, quick=True)

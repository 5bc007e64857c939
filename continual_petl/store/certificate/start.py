"""The part of a certificate that says what a bank started from, if this was chosen automatically or is an average."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from continual_petl._frozen import FrozenModel
from continual_petl.store.certificate.values import Index, Parent


class StartCandidate(FrozenModel):
    """One of the starting points that were tried."""

    parents: tuple[Parent, ...] = ()
    """The bank that is copied, or the banks that are averaged; empty for a fresh bank."""
    weights: tuple[float, ...] = ()
    """Weight of each averaged bank."""
    score: float | None = None
    """The task's metric on validation rows after the short fit; None if it is undefined, or nothing was tried."""

    @model_validator(mode="after")
    def _weighs_parents(self) -> StartCandidate:
        if len(self.weights) != (len(self.parents) if len(self.parents) > 1 else 0):
            raise ValueError(f"weights: got {len(self.weights)} for {len(self.parents)} parents")
        return self

    @property
    def in_words(self) -> str:
        """Description of this starting point."""
        names = [repr(parent.task) for parent in self.parents]
        if len(names) > 1:
            return "an average of " + ", ".join(f"{n} ({w:.2f})" for n, w in zip(names, self.weights, strict=True))
        return f"a copy of {names[0]}" if names else "a fresh bank"


class Start(FrozenModel):
    """What a bank started from: the starting points that were tried, and the one that was taken."""

    num_steps: Index
    """Number of optimizer steps that a bank was trained for from each starting point."""
    num_rows: Index
    """Number of validation rows that these banks were scored on."""
    candidates: Annotated[tuple[StartCandidate, ...], Field(min_length=1)]
    chosen: Index
    """Position in `candidates`."""

    @model_validator(mode="after")
    def _has_chosen(self) -> Start:
        if self.chosen >= len(self.candidates):
            raise ValueError(f"chosen: got {self.chosen}, with {len(self.candidates)} candidates")
        return self

    @property
    def taken(self) -> StartCandidate:
        """The starting point that was taken."""
        return self.candidates[self.chosen]

    @property
    def gain(self) -> float | None:
        """Score from the starting point that was taken minus the score from a fresh bank, both after the short fit."""
        fresh = next((each.score for each in self.candidates if not each.parents), None)
        return None if fresh is None or self.taken.score is None else self.taken.score - fresh

    @property
    def in_words(self) -> str:
        """Description of the starting point that was taken and of all that were tried."""
        if len(self.candidates) == 1:
            return self.taken.in_words
        scores = ", ".join(
            f"{each.in_words} {'diverged' if each.score is None else f'{each.score:.4f}'}" for each in self.candidates
        )
        return f"{self.taken.in_words}; validation scores after {self.num_steps:,} steps: {scores}"

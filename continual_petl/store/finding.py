"""What a check found, for people and for programs: the paragraph, and its parts by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from continual_petl.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor


UNCHANGED = "digests and probe, bit for bit"
"""What the best verdict rests on."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not as it was certified."""

    message: str
    """One paragraph: which task, what, where, how it was, what to look at."""
    file: str | None = None
    tensor: str | None = None
    """Name of the tensor, or ``outputs`` for the probe's answers."""
    position: tuple[int, ...] | None = None
    """Of the first value that differs, inside the tensor."""
    found: float | None = None
    certified: float | None = None
    cause: str | None = None
    """The likely cause."""
    unchecked: bool | None = None
    """True where something could not be looked at, which is no sign of a change."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what is not known is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def also(self, text: str) -> Finding:
        """Return the same finding with one more sentence."""
        return replace(self, message=f"{self.message}. {text}")


@dataclass(frozen=True, kw_only=True)
class TaskCheck:
    """What verifying one task found."""

    task: str
    """The task; in round brackets a file of the run that belongs to no task, listed only if something is wrong with it."""
    findings: tuple[Finding, ...]
    """Empty if nothing was forgotten."""
    how: str
    """What the verdict rests on: bit for bit, or within a tolerance and why."""
    largest_difference: float
    """Of the probe's outputs from the certified ones; NaN if it was not replayed."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "task": self.task,
            "ok": self.ok,
            "how": self.how,
            "largest_difference": self.largest_difference,
            "seconds": self.seconds,
            "problems": list(self.problems),
            "findings": [finding.to_json() for finding in self.findings],
        }

    @property
    def problems(self) -> tuple[str, ...]:
        """The findings as paragraphs."""
        return tuple(finding.message for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether everything was looked at, and is unchanged."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """``unchanged``; ``not checked`` where all that is reported is something that is not available; else ``CHANGED``."""
        if self.ok:
            return "unchanged"
        return "not checked" if all(finding.unchecked for finding in self.findings) else "CHANGED"


class Damaged(StoreError):
    """Something can be read and is not what was certified."""

    def __init__(self, finding: Finding, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.finding = finding
        self.tensors: Mapping[str, Tensor] = tensors or {}
        """What was read, where it could be."""
        super().__init__(finding.message)


@dataclass(frozen=True)
class Difference:
    """The first place where two tensors of one shape differ, bit for bit."""

    position: tuple[int, ...]
    found: float
    certified: float


def first_difference(found: Tensor, certified: Tensor) -> Difference | None:
    """Return the first place, in row-major order, where the bits of two tensors of one shape and dtype differ."""
    import torch  # takes seconds, and who has tensors to compare has it

    one, other = (t.detach().cpu().contiguous().reshape(-1) for t in (found, certified))
    if not one.numel():
        return None
    size = one.element_size()
    differs = (one.view(torch.uint8).view(-1, size) != other.view(torch.uint8).view(-1, size)).any(dim=1)
    places = differs.nonzero()
    if not len(places):
        return None
    flat = int(places[0])
    position = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), found.shape)) if found.ndim else ()
    return Difference(position, float(one[flat]), float(other[flat]))

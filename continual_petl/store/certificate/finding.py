"""The findings of a check, as text for people and as fields for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

UNCHANGED = "digests and probe, bit for bit"
"""The basis of the verdict if everything was compared bit for bit and is equal."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference from a certificate."""

    message: str
    """One paragraph: the task, what differs and where, the certified value, and where to look for the cause."""
    file: str | None = None
    tensor: str | None = None
    """Name of the tensor, or ``outputs`` for the probe's outputs."""
    position: tuple[int, ...] | None = None
    """Position of the first differing value in the tensor."""
    found: float | None = None
    certified: float | None = None
    cause: str | None = None
    """The likely cause."""
    unchecked: Literal["rows", "score"] | None = None
    """What could not be checked (rows: their predictions; score: only their score); this does not indicate a change."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, leaving out unknown ones."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def also(self, text: str) -> Finding:
        """Return the same finding with a sentence added to its message."""
        return replace(self, message=f"{self.message}. {text}")


@dataclass(frozen=True, kw_only=True)
class TaskCheck:
    """The result of verifying one task."""

    task: str
    """The task or, in parentheses, a file that belongs to no task."""
    findings: tuple[Finding, ...]
    """Empty if nothing changed."""
    how: str
    """The basis of the verdict: bit for bit, or within a tolerance and why."""
    largest_difference: float
    """Largest difference between the probe's outputs and the certified ones; NaN if it was not replayed."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the verdict as plain values."""
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
        """Whether everything was checked and is unchanged."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """``unchanged``, ``CHANGED``, or, if nothing worse was found, ``rows not checked`` or ``score not checked``.

        Rows cannot be checked if they are missing; a score cannot be checked if the code of the task's own metric is missing
        or differs.
        """
        if self.ok:
            return "unchanged"
        unchecked = {finding.unchecked for finding in self.findings}
        return "CHANGED" if None in unchecked else "rows not checked" if "rows" in unchecked else "score not checked"


class Damaged(StoreError):
    """A file can be read but differs from the certified one."""

    def __init__(self, finding: Finding, tensors: Mapping[str, StoredTensor] | None = None) -> None:
        self.finding = finding
        self.tensors: Mapping[str, StoredTensor] = tensors or {}
        """The content that was read, if available."""
        super().__init__(finding.message)


@dataclass(frozen=True)
class Difference:
    """The first position at which two tensors of the same shape differ, bit for bit."""

    position: tuple[int, ...]
    found: float
    certified: float


def first_difference(found: Tensor, certified: Tensor) -> Difference | None:
    """Return the first difference, in row-major order, between the bits of two tensors of the same shape and dtype."""
    import torch  # imported here because it takes seconds; callers that have tensors have already imported it

    actual, expected = (t.detach().cpu().contiguous().reshape(-1) for t in (found, certified))
    if not actual.numel():
        return None
    size = actual.element_size()
    differs = (actual.view(torch.uint8).view(-1, size) != expected.view(torch.uint8).view(-1, size)).any(dim=1)
    indices = differs.nonzero()
    if not len(indices):
        return None
    flat = int(indices[0])
    position = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), found.shape)) if found.ndim else ()
    return Difference(position, float(actual[flat]), float(expected[flat]))

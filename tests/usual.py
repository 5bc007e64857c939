"""Tests over all families run on representative ones by default, and on the rest in the slow suite.

The representative families cover post-norm and pre-norm, custom attention and the attention registry, separate and fused
projections, encoders, decoders, encoder-decoders, and images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

THREE = ("bert", "bart", "gpt2")
"""An encoder, an encoder-decoder and a decoder, for slower tests."""
USUAL = ("bert", "distilbert", "deberta-v2", "modernbert", "bart", "t5", "gpt2", "llama", "vit")


def walk(cases: Iterable[Any], usual: Sequence[str] = USUAL) -> list[Any]:
    """Return the cases (families, or tuples that begin with a family), with those outside ``usual`` marked as slow."""
    return [case if _family(case) in usual else _slow(case) for case in cases]


def few(cases: Sequence[Any], most: int = 1) -> list[Any]:
    """Return the cases, all but ``most`` marked as slow; the unmarked ones are evenly spaced, starting with the first."""
    kept = {number * len(cases) // most for number in range(most)}
    return [case if number in kept else _slow(case) for number, case in enumerate(cases)]


def _family(case: Any) -> str:
    return str(case[0] if isinstance(case, tuple) else case)


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

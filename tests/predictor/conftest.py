"""A run with tasks on rows of several forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run
from tests.learned import LearnedRuns
from tests.predictor.committed import Made, committed

FORMS = {
    "pairs": Made("houlsby", pair=True),
    "wide": Made("houlsby"),
    "tags": Made("houlsby", "token-classification", ("O", "B-P", "I-P")),
}


@pytest.fixture(scope="module")
def run(
    learned_runs: LearnedRuns, backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Return a run with tasks on texts, pairs and words, with the standard columns."""
    return committed(learned_runs, tmp_path_factory.mktemp("run") / "run", backbone_folder(), FORMS, shorter=0)

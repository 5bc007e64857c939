"""Untrusted content of a run folder is accepted or refused; past findings stay fixed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import run
from tests.fuzz.mutation import mutate
from tests.fuzz.store_targets import STORE_TARGETS
from tests.fuzz.target import attempt, corpus

KEPT = [(name, path) for name in STORE_TARGETS for path in corpus(name)]

# Warnings of transformers and torch are not errors of this package.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.stem}" for name, path in KEPT])
def test_past_findings_stay_fixed(name: str, path: Path) -> None:
    finding = attempt(STORE_TARGETS[name], path.read_bytes())
    assert finding is None, finding.what


@pytest.mark.parametrize("name", STORE_TARGETS)
def test_any_input_is_accepted_or_refused(name: str) -> None:
    target, draw = STORE_TARGETS[name], Random(0)
    assert corpus(name)
    for _ in range(5):
        data = target.generate(draw) if target.generate else mutate(target.seeds[0], target.seeds, target.tokens, draw)
        finding = attempt(target, data)
        assert finding is None, finding


@pytest.mark.slow
@pytest.mark.parametrize("name", STORE_TARGETS)
def test_any_input_is_accepted_or_refused_many_examples(name: str, tmp_path: Path) -> None:
    assert run.main([name, "--count", "300", "--seed", "7", "--found", str(tmp_path)]) == 0

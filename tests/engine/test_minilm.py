"""The packaged MiniLM has the published weights, and learns two quickstart tasks with a few rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl import TaskStream, learn
from continual_petl.backbones.packaged import MINILM_DIGEST, minilm_path
from continual_petl.digests import file_digest

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[2] / "streams" / "catalog" / "quickstart.yaml"
LIMITS = "{train: 128, validation: 64, test: 64}"


def test_the_packaged_weights_are_the_published_ones() -> None:
    assert file_digest(minilm_path() / "model.safetensors") == MINILM_DIGEST


def test_two_tasks_of_quickstart_are_learned_and_verified(tmp_path: Path) -> None:
    overrides = [("tasks.signatures.limits", LIMITS), ("tasks.definitions.limits", LIMITS), ("training.epochs", "1")]
    whole = TaskStream.from_yaml(QUICKSTART, overrides).spec
    few = tuple(task for task in whole.tasks if task.name in {"signatures", "definitions"})
    run = learn(TaskStream(whole.model_copy(update={"tasks": few})), tmp_path / "run")
    assert run.results.tasks == ("signatures", "definitions")
    assert run.results.forgetting == 0.0
    assert [check.how for check in run.verify()] == ["digests and probe, bit for bit"] * 2
    # 12 adapters of 2 x 64 x 384 + 64 + 384, 13 LayerNorms of 2 x 384, a head of 2 x 384 + 2.
    assert run.growth[0].trainable == 12 * (2 * 64 * 384 + 64 + 384) + 13 * 2 * 384 + 2 * 384 + 2

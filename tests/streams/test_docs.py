"""docs/tasks.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.kinds import METRICS

TEXT = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text("utf-8")


def test_table_has_every_kind_with_its_scores() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([^|]*) \|", TEXT, re.MULTILINE)
    assert {kind: tuple(scores.split(", ")) for kind, scores in rows} == METRICS


def test_documented_tasks_are_valid() -> None:
    block = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0]
    tasks: list[dict[str, Any]] = yaml.safe_load(block)
    spec = StreamSpec.model_validate({"name": "shown", "backbone": "minilm", "tasks": tasks})
    assert [task.name for task in spec.tasks] == ["headlines", "entities", "topics", "intent"]

"""A missing file is reported without loading the model, unless there may be another mistake that only the model reveals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError
from continual_petl.engine.checks.mistakes import refuse_missing_files
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream

GONE = {"name": "gone", "kind": "classification", "data": "nowhere.csv"}


def refused(tasks: TaskStream) -> bool:
    try:
        refuse_missing_files(tasks.spec, tasks.spec.tasks)
    except InputError as error:
        return "nowhere.csv" in str(error)
    return False


def test_missing_file_is_reported_without_loading_the_backbone(backbone_folder: Callable[..., Path]) -> None:
    assert refused(stream(backbone_folder(), [GONE], bank={"preset": "houlsby", "bottleneck": 4}))


@pytest.mark.parametrize(
    "asked",
    [
        {"bank": {"preset": "houlsby", "bottleneck": 17}},
        {"bank": {"preset": "lora", "rank": 17}},
        {"bank": "prefix"},
        {"bank": {"preset": "houlsby", "bottleneck": 4, "layers": "7"}},
        {"bank": {"preset": "houlsby", "bottleneck": 4, "start_from": "other"}},
        {"pooling": "pooler"},
        {"training": {"prefix_cache": "on"}},
        {"kind": "seq2seq"},
        {"kind": "image-classification"},
    ],
)
def test_bank_that_needs_the_model_to_check_is_not_refused_early(
    backbone_folder: Callable[..., Path], asked: dict[str, Any]
) -> None:
    others = {"name": "other", "kind": "classification", "data": {"train": []}}
    bank = {"preset": "houlsby", "bottleneck": 4}
    assert not refused(stream(backbone_folder(), [others, GONE | asked], bank=bank))


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "unheard-of"}, {"hidden_size": None}, {"num_key_value_heads": 1}, {"intermediate_size": 2}],
)
def test_backbone_with_unclear_configuration_is_loaded(
    backbone_folder: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = json.loads((backbone_folder() / "config.json").read_text())
    tasks = stream(tmp_path, [GONE], bank={"preset": "houlsby", "bottleneck": 4})
    assert not refused(tasks), "a folder without a config.json must not be refused early"
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert not refused(tasks)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refused(tasks)

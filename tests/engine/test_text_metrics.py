"""A metric of generated texts that a task selects is certified, reported in R, and reproduced by verification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from continual_petl.heads.metric_names import IF_CHOSEN
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few


@pytest.mark.parametrize("metric", few(IF_CHOSEN))
def test_chosen_metric_is_certified_and_reported(
    backbone_folder: Callable[..., Path], tmp_path: Path, metric: str
) -> None:
    task = task_of_kind("seq2seq", "own", num_rows=16) | {"metric": metric, "generation": {"max_new_tokens": 4}}
    backbone = backbone_folder("t5")
    run = learn(
        stream(backbone, [task], training={"epochs": 1}, backbone={"name": str(backbone)}),
        tmp_path / "run",
        progress=False,
    )
    certificate = run.store.certificate("own")
    assert set(certificate.scores["test"].scores) == {"rougeL", "rouge1", "rouge2", "bleu", metric}
    (row,) = (line for line in run.store.results() if line.type == "row")
    assert (row.cells[0].metric, row.cells[0].value) == (metric, certificate.scores["test"].scores[metric])
    assert all(check.ok for check in run.verify(data=True))

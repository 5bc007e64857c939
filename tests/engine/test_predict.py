"""Predictions for texts equal the outputs that were evaluated for the same texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import learn
from continual_petl.engine.scoring.evaluate import outputs_of
from continual_petl.predictor.predictor import Predictor
from tests.heads.words import predictions
from tests.streams_in_code import regression_task, stream, task

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def left_padding(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backbone whose tokenizer pads on the left and has no padding token, like some on the Hub."""
    folder = shutil.copytree(backbone_folder(), tmp_path_factory.mktemp("left") / "bert")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"padding_side": "left", "pad_token": None}
    file.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("tokens", ["usual", "padded on the left"])
@pytest.mark.parametrize("spec", [task("one"), task("one", pairs=True), regression_task("one")])
def test_predictions_match_the_scores(
    backbone_folder: Folder, left_padding: Path, tmp_path: Path, tokens: str, spec: dict[str, Any]
) -> None:
    run = learn(stream(backbone_folder() if tokens == "usual" else left_padding, [spec]), tmp_path / "run")
    test = spec["data"]["test"]
    rows = [(row["text"], row["text_pair"]) if "text_pair" in row else row["text"] for row in test]
    models, certificate = run.session.models, run.store.certificate("one")
    split = run.session.split(run.session.spec.tasks[0]).rows
    learner = models.resident("one")
    outputs = outputs_of(run.session, learner, split)
    # Equal bit for bit, since the batches are the same as in the evaluation.
    size = certificate.training.batch_size
    expected = predictions(certificate.kind, certificate.labels, torch.stack(outputs), certificate.targets)
    assert Predictor(models).predict(rows, "one", batch_size=size) == [replace(each, task="one") for each in expected]
    assert run.predict([], "one") == []

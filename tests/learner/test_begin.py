"""With a custom Trainer, data and bank are as described in the stream; a mismatch is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import ContinualLearner, InputError, load_backbone
from continual_petl.digests import tensor_digests
from tests.desk import SILENT
from tests.streams_in_code import stream, task, task_of_kind

Folder = Callable[..., Path]


def test_max_length_and_pooling_come_from_the_stream(backbone_folder: Folder) -> None:
    backbone = {"name": str(backbone_folder()), "pooling": "mean", "max_length": 6}
    tasks = stream(backbone_folder(), [task("one", num_rows=16)], backbone=backbone)
    learner = ContinualLearner(load_backbone(os.path.relpath(backbone_folder())))
    data = learner.begin(tasks, "one")
    assert data.data.train.lengths.max() == 6
    assert learner.plan.pooling == "mean"


@pytest.mark.parametrize(
    ("says", "loaded", "message"),
    [
        ({"training": {"precision": "bf16"}}, {}, "precision 'fp32', not 'bf16'"),
        ({"backbone": {"max_length": 20}}, {"max_length": 10}, "max_length 10, less than 20"),
        ({"backbone": {"attention": "sdpa"}}, {"attention": "eager"}, "attention 'eager', not 'sdpa'"),
        ({"backbone": {"revision": "main"}}, {}, "revision None, not 'main'"),
    ],
)
def test_backbone_other_than_the_streams_is_refused(
    backbone_folder: Folder, says: dict[str, Any], loaded: dict[str, Any], message: str
) -> None:
    backbone = {"name": str(backbone_folder()), "pooling": "mean"} | says.get("backbone", {})
    tasks = stream(backbone_folder(), [task("one", num_rows=16)], backbone=backbone, training=says.get("training", {}))
    learner = ContinualLearner(load_backbone(str(backbone_folder()), **loaded))
    with pytest.raises(
        InputError, match=f"task 'one': the learner's backbone does not match the stream: it has {message}"
    ):
        learner.begin(tasks, "one")
    assert list(learner.plans) == []


def test_a_backbone_of_another_name_is_refused(backbone_folder: Folder) -> None:
    learner = ContinualLearner(load_backbone(str(backbone_folder("electra"))))
    with pytest.raises(InputError, match=r"name '.*electra', not '.*bert'"):
        learner.begin(stream(backbone_folder(), [task("one", num_rows=16)]), "one")


def test_bank_can_start_from_a_bank_in_memory(backbone_folder: Folder) -> None:
    first, second = task("one", num_rows=16), task("two", num_rows=16, bank={"start_from": "one"})
    tasks = stream(backbone_folder(), [first, second])
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    with pytest.raises(
        InputError, match=r"bank\.start_from: the learner has no bank of task 'one' in memory; banks in memory: none"
    ):
        learner.begin(tasks, "two")
    data = learner.begin(tasks, "one")
    L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=data)
    parent = tensor_digests(learner.bank("one").tensors())
    learner.begin(tasks, "two")
    assert tensor_digests(learner.bank("two").tensors()) == parent
    assert all(p.requires_grad for p in learner.bank("two").parameters())
    assert not any(p.requires_grad for p in learner.bank("one").parameters())


def test_starting_from_an_incompatible_bank_is_refused(backbone_folder: Folder) -> None:
    first, second = task("one", num_rows=16), task("two", num_rows=16, bank={"start_from": "one", "preset": "lora"})
    tasks = stream(backbone_folder(), [first, second])
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    learner.begin(tasks, "one")
    with pytest.raises(InputError, match=r"task 'two', bank\.start_from: 'one' has a different bank: tensor"):
        learner.begin(tasks, "two")
    assert list(learner.plans) == ["one"]


def test_unsupported_kind_is_refused_before_reading_data(backbone_folder: Folder) -> None:
    tasks = stream(backbone_folder(), [task_of_kind("image-classification", "one")])
    learner = ContinualLearner(load_backbone(str(backbone_folder())))
    with pytest.raises(InputError, match=r"kind 'image-classification' cannot be learned on backbone .* it reads text"):
        learner.begin(tasks, "one")

"""A plan resolves settings, and refuses task kinds that the backbone does not support."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from continual_petl.backbones.backbone import load_backbone
from continual_petl.errors import InputError
from continual_petl.learner.learner import without_float64
from continual_petl.learner.plan import RowFacts, allowed_kinds, build_bank, plan_task
from continual_petl.streams.schema.stream_spec import GenerationSpec
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import make_model

Folder = Callable[..., Path]
TEXT = ("classification", "regression", "multilabel", "token-classification")
READ = ("multiple-choice", "question-answering")


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("bert", (*TEXT, *READ)),
        ("bart", (*TEXT, "seq2seq", *READ)),
        ("t5", (*TEXT, "seq2seq", *READ)),
        ("gpt2", (*TEXT, "causal-lm", *READ)),
        ("vit", ("image-classification",)),
    ],
)
def test_supported_kinds_per_family(backbone_folder: Folder, family: str, kinds: tuple[str, ...]) -> None:
    assert allowed_kinds(load_backbone(str(backbone_folder(family)))) == tuple(sorted(kinds))


@pytest.mark.parametrize(
    ("family", "kind", "why"),
    [
        ("bert", "seq2seq", "models of family 'bert' have no language-modelling head"),
        ("bert", "image-classification", "it reads text, not images"),
        ("bart", "causal-lm", "its language-modelling head is for tasks of kind 'seq2seq'"),
        ("gpt2", "seq2seq", "its language-modelling head is for tasks of kind 'causal-lm'"),
        ("vit", "classification", "it reads images, not text"),
    ],
)
def test_unsupported_kinds_are_refused(backbone_folder: Folder, family: str, kind: str, why: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    tasks = stream(backbone_folder(family), [task_of_kind(kind, "one")])
    with pytest.raises(InputError, match=f"task 'one': kind '{kind}' .*{why}.*It supports .*: change"):
        plan_task(tasks.spec, tasks["one"], backbone, RowFacts(("a", "b")))


def test_a_checkpoint_without_its_output_head_does_not_generate(tmp_path: Path) -> None:
    """Llama's head has its own weights, which a base model's checkpoint lacks; the heads of BART and GPT-2 are tied."""
    kind = "causal-lm"
    base: Any = make_model("llama").base_model
    base.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert allowed_kinds(backbone) == tuple(sorted((*TEXT, *READ)))
    tasks = stream(tmp_path, [task_of_kind(kind, "one")])
    with pytest.raises(InputError, match="its checkpoint was saved without the language-modelling head"):
        plan_task(tasks.spec, tasks["one"], backbone)


def test_generation_and_target_length_are_resolved(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder("bart")))
    generation = {"max_new_tokens": 9, "num_beams": 2}
    tasks = stream(
        backbone_folder("bart"),
        [task_of_kind("seq2seq", "a", generation=generation), task_of_kind("seq2seq", "b", max_target_length=7)],
    )
    plans = [plan_task(tasks.spec, task, backbone) for task in tasks]
    assert plans[0].generation == GenerationSpec(max_new_tokens=9, num_beams=2)
    assert [plan.max_target_length for plan in plans] == [64, 7]  # the tiny BART has 64 positions
    head: Any = build_bank(plans[0], backbone).head
    assert list(head.parameters()) == []


@pytest.mark.parametrize(
    ("family", "kind", "more", "message"),
    [
        (
            "bart",
            "seq2seq",
            {"max_target_length": 65},
            "max_target_length is 65, .* positions for 64 tokens: use at most 64",
        ),
        ("bart", "seq2seq", {"generation": {"max_new_tokens": 70}}, r"generation\.max_new_tokens is 70, .* at most 64"),
        ("gpt2", "causal-lm", {"generation": {}}, "max_new_tokens is 64 after a source of up to 32, .* at most 32"),
        (
            "gpt2",
            "causal-lm",
            {"max_target_length": 64},
            "task 'one', max_target_length: got 64, but source and target",
        ),
    ],
)
def test_too_long_generation_is_refused(
    backbone_folder: Folder, family: str, kind: str, more: dict[str, Any], message: str
) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    tasks = stream(backbone_folder(family), [task_of_kind(kind, "one") | more])
    with pytest.raises(InputError, match=message):
        plan_task(tasks.spec, tasks["one"], backbone)


def test_relative_positions_set_no_limit(backbone_folder: Folder) -> None:
    tasks = stream(backbone_folder("t5"), [task_of_kind("seq2seq", "one", max_target_length=3000)])
    plan = plan_task(tasks.spec, tasks["one"], load_backbone(str(backbone_folder("t5"))))
    assert plan.max_target_length == 3000


def test_class_weights_are_resolved_only_for_kinds_that_use_them(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder()))
    tasks = stream(
        backbone_folder(),
        [task_of_kind("classification", "a"), task_of_kind("regression", "b")],
        training={"class_weights": "balanced", "label_smoothing": 0.1},
    )
    plan = plan_task(tasks.spec, tasks["a"], backbone, RowFacts(("no", "yes"), np.array([0, 0, 0, 1])))
    assert plan.class_weights == (4 / 6, 4 / 2)
    head: Any = build_bank(plan, backbone).head
    assert (head.class_weights.tolist(), head.label_smoothing) == (pytest.approx([4 / 6, 2.0]), 0.1)
    assert plan_task(tasks.spec, tasks["b"], backbone, RowFacts(train=np.array([0.5]))).class_weights is None


def test_targets_in_float64_stay_on_the_cpu_if_the_device_has_none() -> None:
    def move(module: Any, batch: Any, device: torch.device, number: int) -> Any:
        return dict.fromkeys(batch, "moved")

    settings = SimpleNamespace(
        batch_size=1,
        max_tokens=None,
        eval_max_tokens=None,
        eval_batch_size=None,
        gradient_checkpointing=False,
        accumulate=1,
        precision="fp32",
    )
    plan = SimpleNamespace(name="one", kind="regression", training=settings)
    module: Any = SimpleNamespace(plan=plan, training=True, last_batch={})
    batch = {"input_ids": torch.tensor([1]), "labels": torch.tensor([1.6e9], dtype=torch.float64)}
    found = without_float64(move)(module, batch, torch.device("mps"), 0)
    assert found == {"input_ids": "moved", "labels": batch["labels"]}
    assert without_float64(move)(module, batch, torch.device("cpu"), 0) == dict.fromkeys(batch, "moved")

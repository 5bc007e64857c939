"""The probe of every task kind is small, seeded and sensitive, with a tolerance in other environments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from continual_petl import Run, learn
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.verify import certificate, compare_probe
from continual_petl.store.verify.probe import _special_tokens_around, make_probe
from continual_petl.store.verify.probe_file import DECODED, OUTPUTS, certified_probe
from continual_petl.store.verify.probe_inputs import check_probe
from continual_petl.store.verify.replay import replay, tolerance
from tests.kinds import LABELLED
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import make_tokenizer

Folder = Callable[..., Path]
KINDS = {
    "regression": "bert",
    "multilabel": "bert",
    "token-classification": "bert",
    "seq2seq": "bart",
    "causal-lm": "gpt2",
    "image-classification": "vit",
    "multiple-choice": "bert",
    "question-answering": "bert",
}
SHAPES = {
    "regression": (8, 1),
    "multilabel": (8, 3),
    "token-classification": (8, 32, 3),
    "seq2seq": (8, 8),
    "causal-lm": (8, 8),
    "image-classification": (8, 2),
    "multiple-choice": (4, 2),
    "question-answering": (4, 2, 32, 2),
}


@pytest.fixture(scope="module")
def runs(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    for kind, family in KINDS.items():
        backbone = {"name": str(backbone_folder(family))}
        tasks = [task_of_kind(kind, "one", num_rows=16)]
        learn(stream(backbone_folder(family), tasks, backbone=backbone, training={"epochs": 1}), folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_probe_file_contents(runs: dict[str, Path], kind: str) -> None:
    run = Run(runs[kind])
    inputs, certified = certified_probe(run.store, "one")
    outputs = certified["outputs"]
    assert outputs.shape == SHAPES[kind]
    assert outputs.dtype == torch.float32
    assert all(len(tensor) == len(outputs) for name, tensor in inputs.items() if name != "ends")
    assert ("decoded" in certified) == (kind in ("seq2seq", "causal-lm"))
    if kind == "image-classification":
        assert inputs["pixel_values"].dtype == torch.int8
        assert inputs["pixel_values"].shape == (8, 3, 8, 8)
    elif kind == "token-classification":
        assert not outputs[inputs["attention_mask"] == 0].any()
        assert outputs[inputs["attention_mask"] == 1].all()
    elif kind in ("seq2seq", "causal-lm"):
        assert bool((outputs < 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_probe_depends_only_on_the_tasks_seed(runs: dict[str, Path], kind: str) -> None:
    run = Run(runs[kind])
    models, plan = run.session.models, run.store.plan("one")
    backbone = models.backbone("fp32")
    torch.manual_seed(99)
    made = make_probe(plan, backbone, models.tokenizer, backbone.max_length)
    stored, outputs = certified_probe(run.store, "one")
    certified = outputs["outputs"]
    assert tensor_digests(made) == tensor_digests(stored)
    found = replay(TaskBank(backbone, plan, run.store.load_bank("one", backbone)), made)
    assert combined_digest(tensor_digests({"o": found})) == combined_digest(tensor_digests({"o": certified}))


def test_log_probabilities_match_the_models_loss(runs: dict[str, Path]) -> None:
    for kind in ("seq2seq", "causal-lm"):
        run = Run(runs[kind])
        backbone, plan = run.session.models.backbone("fp32"), run.store.plan("one")
        inputs, outputs = certified_probe(run.store, "one")
        certified = outputs["outputs"]
        own = TaskBank(backbone, plan, run.store.load_bank("one", backbone))
        with torch.no_grad():
            (logits,) = respond([own], inputs)
            loss = own.head.loss(logits, inputs["labels"])
        torch.testing.assert_close(-certified.mean(), loss)


@pytest.mark.parametrize("family", ["bert", "roberta", "bart", "t5", "llama"])
def test_probe_rows_have_the_tokenizers_special_tokens(family: str) -> None:
    tokenizer = make_tokenizer(family)
    first, last = _special_tokens_around(tokenizer)
    assert [*first, 10, *last] == tokenizer("w5")["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_changed_model_is_detected(runs: dict[str, Path], kind: str) -> None:
    run = Run(runs[kind])
    model = run.session.models.backbone("fp32").model
    layer = run.session.models.backbone("fp32").sites.layers[-1]
    handle = model.get_submodule(layer.full(layer.stack.ffn.out)).register_forward_hook(lambda m, a, out: out * 1.001)
    (check,) = run.verify()
    handle.remove()
    assert "largest difference" in check.problems[0]
    assert run.verify()[0].ok


Rows = dict[str, Tensor]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "regression",
            lambda rows: {n: torch.cat([t, t[:1]]) for n, t in rows.items()},
            "tensors have 9 rows.*from 1 to 8",
        ),
        ("regression", lambda rows: {n: t[:0] for n, t in rows.items()}, "its tensors have 0 rows"),
        ("regression", lambda rows: {"input_ids": rows["input_ids"][:7]}, "its tensors have 7 and 8 rows"),
        ("regression", lambda rows: {n: t[:, :, None] for n, t in rows.items()}, r"int64 \(8, 32, 1\)"),
        ("regression", lambda rows: {"attention_mask": rows["attention_mask"][:, :5]}, r"attention_mask .* \(8, 5\)"),
        ("regression", lambda rows: {n: t.repeat(1, 3) for n, t in rows.items()}, "are 96 tokens long.* takes 64"),
        ("regression", lambda rows: {n: t[:, :0] for n, t in rows.items()}, "are 0 tokens long"),
        (
            "seq2seq",
            lambda rows: {"labels": torch.full_like(rows["labels"], -50)},
            "labels hold values outside -100",
        ),
        (
            "seq2seq",
            lambda rows: {"labels": torch.full_like(rows["labels"], -101)},
            "labels hold values outside -100",
        ),
        ("multiple-choice", lambda rows: {n: t[:, 0] for n, t in rows.items()}, r"int64 \(4, 32\)"),
        ("multiple-choice", lambda rows: {n: t[:, :0] for n, t in rows.items()}, "its rows have 0 sequences"),
        (
            "multiple-choice",
            lambda rows: {n: t.repeat(1, 501, 1) for n, t in rows.items()},
            "its rows have 1002 sequences; at most 1000 are allowed",
        ),
        ("image-classification", lambda rows: {n: t[..., :4] for n, t in rows.items()}, r"have the shape \(3, 8, 4\)"),
    ],
)
def test_probe_inputs_are_validated_before_use(
    runs: dict[str, Path], kind: str, change: Callable[[Rows], Rows], message: str
) -> None:
    run = Run(runs[kind])
    backbone, certificate = run.session.models.backbone("fp32"), run.store.certificate("one")
    inputs, certified = certified_probe(run.store, "one")
    check_probe(certificate, backbone, inputs, certified[OUTPUTS])
    with pytest.raises(StoreError, match=message):
        check_probe(certificate, backbone, inputs | change(inputs), certified[OUTPUTS])


def test_unanswerable_probe_is_reported(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> Tensor:
        raise RuntimeError("sizes do not fit")

    monkeypatch.setattr(compare_probe, "replay", fail)
    (check,) = Run(runs["regression"]).verify()
    assert "task 'one': its probe cannot be replayed (sizes do not fit)" in check.problems[0]


def test_probe_of_an_unsupported_kind_is_reported(runs: dict[str, Path]) -> None:
    run = Run(runs["regression"])
    inputs, certified = certified_probe(run.store, "one")
    certificate = run.store.certificate("one").model_copy(update={"kind": "seq2seq"})
    with pytest.raises(StoreError, match="does not support tasks of kind seq2seq"):
        check_probe(certificate, run.session.models.backbone("fp32"), inputs, certified[OUTPUTS])


@pytest.mark.parametrize("kind", KINDS)
def test_other_environment_allows_rounding_but_not_other_labels(
    runs: dict[str, Path], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(runs[kind])
    backbone, real = run.session.models.backbone("fp32"), replay

    def moved(by: float) -> Callable[..., Tensor]:
        return lambda *args: real(*args) + by

    elsewhere = current_environment(backbone.model.device, "fp32", "eager").model_copy(update={"torch": "9"})
    monkeypatch.setattr(compare_probe, "current_environment", lambda *args: elsewhere)
    allowed = tolerance(kind, "fp32")
    for by, good in ((0.5 * allowed, True), (2 * allowed, False)):
        monkeypatch.setattr(compare_probe, "replay", moved(by))
        assert certificate.check_task(run.store, "one", backbone).ok == good
    if kind in LABELLED or kind == "multiple-choice":
        # The outputs are within the tolerance, but predict other labels.
        monkeypatch.setattr(compare_probe, "tolerance", lambda *args: 1e9)
        monkeypatch.setattr(compare_probe, "replay", lambda *args: -real(*args))
        assert not certificate.check_task(run.store, "one", backbone).ok


def test_processor_and_library_settings_are_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    here = current_environment(torch.device("cpu"), "fp32", "eager")
    assert here.processor
    assert here.differences(here.model_copy(update={"processor": "another"})) == [
        f"processor was {here.processor}, is another"
    ]
    # Older certificates do not name the processor.
    assert here.model_copy(update={"processor": ""}).differences(here) == []
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    now = current_environment(torch.device("cpu"), "fp32", "eager")
    assert here.differences(now) == [
        "switches was none, is MKL_CBWR=COMPATIBLE, float32_matmul_precision=high, mkldnn=off"
    ]


def test_output_certificate_is_part_of_the_certificate(runs: dict[str, Path]) -> None:
    certificate = Run(runs["causal-lm"]).store.certificate("one")
    tensors, outputs = certified_probe(Run(runs["causal-lm"]).store, "one")
    assert outputs.keys() == {OUTPUTS, DECODED}
    assert certificate.probe == combined_digest(tensor_digests({**tensors, **outputs}))

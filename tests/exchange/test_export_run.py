"""`Run.model`, `Run.pipeline` and `Run.to_frame`, and exports of tasks that were actually learned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from continual_petl import InputError, Run, learn
from continual_petl.exchange.adapter_files import save_tensors
from continual_petl.store.verify.probe_file import OUTPUTS, certified_probe
from tests.exchange.subjects import Folder
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import WORDS

ROWS = [" ".join(WORDS[number : number + 5]) for number in range(0, 40, 5)]


@pytest.fixture(scope="module")
def folders(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return three run folders: classifiers with a shared bank, a classifier and a tagger in bfloat16, and a T5."""
    place = tmp_path_factory.mktemp("runs")
    bert, t5 = backbone_folder("bert"), backbone_folder("t5")
    named: dict[str, Any] = {"backbone": {"name": str(bert)}, "bank": {"preset": "lora", "rank": 2}}
    once = {"epochs": 1}
    shared = named | {"bank": {"preset": "lora", "rank": 2, "scope": "shared"}}
    learn(stream(bert, [task("one"), task("two")], training=once, **shared), place / "shared")
    low = {**once, "precision": "bf16"}
    learn(stream(bert, [task("one"), task_of_kind("token-classification")], training=low, **named), place / "bf16")
    named = {"backbone": {"name": str(t5)}, "bank": {"preset": "lora", "rank": 2}}
    learn(stream(t5, [task_of_kind("seq2seq")], training=once, **named), place / "t5")
    return {name: place / name for name in ("shared", "bf16", "t5")}


@pytest.mark.parametrize("format", ["merged", "peft"])
@pytest.mark.parametrize("name", ["shared", "bf16"])
def test_bfloat16_and_shared_banks_can_be_exported(
    folders: dict[str, Path], tmp_path: Path, name: str, format: str
) -> None:
    assert Run(folders[name]).export("one", format, tmp_path / "out").is_dir()


def test_pipeline_of_transformers_agrees_with_predictions(folders: dict[str, Path], tmp_path: Path) -> None:
    run = Run(folders["shared"])
    run.export("one", "merged", tmp_path / "out")
    ours = run.predict(ROWS, task="one")
    pipeline: Any = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    for answer, found in zip(ours, pipeline(ROWS, batch_size=4), strict=True):
        assert answer.probabilities == pytest.approx({e["label"]: e["score"] for e in found}, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "task"), [("shared", "two"), ("bf16", "one"), ("bf16", "token-classification"), ("t5", "seq2seq")]
)
def test_module_computes_what_is_certified(folders: dict[str, Path], name: str, task: str) -> None:
    run = Run(folders[name])
    model = run.model(task)
    inputs, certified = certified_probe(run.store, task)
    inputs.pop("ends", None)
    outputs = model(**inputs)
    if task == "seq2seq":
        outputs = outputs.log_softmax(-1).gather(-1, inputs["labels"].unsqueeze(-1)).squeeze(-1)
    if task == "token-classification":
        outputs = outputs * inputs["attention_mask"].unsqueeze(-1)
    assert torch.equal(outputs, certified[OUTPUTS])
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.train().training
    assert not any(module.training for module in model.modules())


def test_module_refuses_missing_and_unused_inputs(folders: dict[str, Path]) -> None:
    model = Run(folders["shared"]).model("one")
    ids = torch.tensor([[2, 10, 3]])
    with pytest.raises(
        InputError, match=r"^inputs of task 'one' \(classification\): got none; needed: input_ids; allowed"
    ):
        model()
    with pytest.raises(
        InputError, match=r"got input_ids, position_ids; needed: input_ids; allowed: attention_mask, in"
    ):
        model(input_ids=ids, position_ids=ids)
    with pytest.raises(InputError, match=r"attention_mask has a 0 before a 1, .*padding_side = 'right'"):
        model(input_ids=ids, attention_mask=torch.tensor([[0, 1, 1]]))
    with pytest.raises(InputError, match="needed: input_ids, labels"):
        Run(folders["t5"]).model("seq2seq")(input_ids=ids)


def test_pipeline_of_a_run_is_its_predictions(folders: dict[str, Path]) -> None:
    run = Run(folders["shared"])
    classify = run.pipeline("two")
    assert classify(ROWS) == run.predict(ROWS, task="two")
    assert classify(ROWS[0]) == run.predict(ROWS[0], task="two")


def test_frame_has_a_row_for_each_task(folders: dict[str, Path]) -> None:
    run = Run(folders["bf16"])
    frame = run.to_frame()
    assert list(frame.index) == run.store.tasks
    assert list(frame.columns) == ["kind", "bank", "metric", "score", "parameters", "bytes", "routing_bytes"]
    certificate = run.store.certificate("one")
    assert frame.loc["one", "score"] == certificate.scores["test"].scores["accuracy"]
    assert frame.loc["one", "parameters"] == sum(certificate.parameters.values())


@pytest.mark.parametrize("method", ["model", "pipeline"])
def test_task_must_be_learned(folders: dict[str, Path], method: str) -> None:
    with pytest.raises(InputError, match="one, two"):
        partial(getattr(Run(folders["shared"]), method), "other")()


def test_same_tensors_and_notes_give_the_same_bytes(tmp_path: Path) -> None:
    """Safetensors itself writes metadata in a random order, so an unchanged export would be uploaded again."""
    notes = {"kind": "classification", "pooling": "mean", "labels": '["né", "yes"]'}
    written = set()
    for number in range(20):
        save_tensors({"weight": torch.ones(3), "bias": torch.zeros(2)}, path := tmp_path / f"{number}", notes)
        written.add(path.read_bytes())
    assert len(written) == 1
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt", **notes}
        assert torch.equal(opened.get_tensor("weight"), torch.ones(3))

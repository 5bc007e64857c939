"""A merged checkpoint gives the bank's outputs when it is loaded with transformers alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from continual_petl.exchange.classes import auto_class
from continual_petl.exchange.merged import write_checkpoint
from continual_petl.learner.generate import Decoding
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import shifted_right
from continual_petl.streams.schema.generation import GenerationSpec
from tests.exchange.subjects import LABELS, Folder, answers_of, inputs_of, masked, subject_of
from tests.kinds import GENERATIVE
from tests.tiny import TEXT_FAMILIES
from tests.usual import walk

FIRST = [
    *(("bert", "pooler"), ("bert", "first")),
    *((f, "first") for f in ("roberta", "electra", "xlm-roberta", "mpnet", "deberta", "deberta-v2")),
    *((f, "last") for f in ("bart", "t5", "mt5", "gpt2")),
]
SOME = ("bert", "roberta", "electra", "deberta-v2", "bart", "t5", "gpt2")
TAGGERS = [f for f in TEXT_FAMILIES if f not in {"modernbert", "bart", "mbart", "t5", "mt5", "qwen2"}]
GENERATORS = [(f, "seq2seq") for f in ("bart", "mbart", "t5", "mt5")]
GENERATORS += [(f, "causal-lm") for f in ("gpt2", "llama", "qwen3")]


def loaded(folder: Path, kind: Any) -> Any:
    return getattr(transformers, auto_class(kind)).from_pretrained(folder).eval()


@torch.no_grad()
def compare(folder: Path, kind: str, choice: Any, pooling: str | None, to: Path) -> Any:
    """Export, load with transformers, and compare the outputs on inputs that the export did not use; return the model."""
    subject = subject_of(folder, kind, choice, pooling)
    assert write_checkpoint(subject, to) <= 1e-5
    model, inputs = loaded(to, kind), inputs_of(subject)
    given = dict(inputs)
    if kind == "seq2seq":
        given["decoder_input_ids"] = shifted_right(subject.backbone, inputs["input_ids"])
    # Not exact: merging changes the order of additions, and a head's second layer is cancelled only approximately.
    found = _one_by_one(model, inputs) if pooling == "last" else masked(model(**given).logits, inputs)
    torch.testing.assert_close(found, answers_of(subject, inputs), atol=1e-5, rtol=1e-5)
    if kind not in GENERATIVE:
        assert model.config.id2label == dict(enumerate(subject.plan.labels or ("score",)))
        assert model.config.label2id == {name: n for n, name in model.config.id2label.items()}
    return model


def _one_by_one(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the logits of a class that finds the last token by its id."""
    masks = inputs["attention_mask"].bool()
    rows = [{name: each[n : n + 1, mask] for name, each in inputs.items()} for n, mask in enumerate(masks)]
    return torch.cat([model(**row).logits for row in rows])


@pytest.mark.parametrize(("family", "pooling"), walk(FIRST, SOME))
def test_classifier_gives_the_answers_of_the_bank(
    backbone_folder: Folder, tmp_path: Path, family: str, pooling: str
) -> None:
    model = compare(backbone_folder(family), "classification", "lora", pooling, tmp_path)
    assert model.config.problem_type == "single_label_classification"


@pytest.mark.parametrize("family", walk(TAGGERS, ("distilbert", "llama")))
def test_tagger_gives_the_answers_of_the_bank(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    compare(backbone_folder(family), "token-classification", "lora", None, tmp_path)


@pytest.mark.parametrize(("family", "kind"), walk(GENERATORS, ("mt5", "bart", "gpt2")))
def test_generator_gives_the_logits_of_the_bank(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    model = compare(backbone_folder(family), kind, "lora", None, tmp_path)
    subject = subject_of(backbone_folder(family), kind, "lora")
    assert subject.tokenizer is not None
    assert subject.plan.generation is not None
    inputs = inputs_of(subject)
    (ours,) = respond([subject], inputs, decoding=Decoding(tokenizer=subject.tokenizer))
    assert isinstance(ours, list)
    ids = model.generate(**inputs)[:, 1 if kind == "seq2seq" else inputs["input_ids"].shape[1] :].tolist()
    end, pad = subject.tokenizer.eos_token_id, subject.pad
    assert [[t for t in row if t not in {end, pad}] for row in ids] == [[t for t in row if t != pad] for row in ours]
    assert max(map(len, ours)) == 4


def test_image_classifier_gives_the_answers_of_the_bank(backbone_folder: Folder, tmp_path: Path) -> None:
    compare(backbone_folder("vit"), "image-classification", "lora", "first", tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()


PRESETS = ("full", "dora", "ia3", "bitfit", "layernorm", "diff_pruning", "top_layers", "lora_ffn", "probe")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_mergeable_preset_can_be_exported(backbone_folder: Folder, tmp_path: Path, preset: str) -> None:
    compare(backbone_folder("bert"), "classification", preset, "pooler", tmp_path)


@pytest.mark.parametrize(
    ("kind", "problem"), [("regression", "regression"), ("multilabel", "multi_label_classification")]
)
def test_problem_type_is_in_the_configuration(backbone_folder: Folder, tmp_path: Path, kind: str, problem: str) -> None:
    assert compare(backbone_folder("roberta"), kind, "lora", "first", tmp_path).config.problem_type == problem


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_exported_classifier_can_be_converted_to_bfloat16(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    subject = subject_of(backbone_folder(family), "classification", "lora", "first")
    write_checkpoint(subject, tmp_path)
    inputs = inputs_of(subject)
    with torch.no_grad():
        found = loaded(tmp_path, "classification").bfloat16()(**inputs).logits.float()
    # bfloat16 has two to three significant digits.
    torch.testing.assert_close(found, answers_of(subject, inputs), atol=0.03, rtol=0.03)


def test_pipeline_knows_the_labels(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("roberta"), "classification", "lora", "first")
    write_checkpoint(subject, tmp_path)
    found: Any = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)("w1 w2 w3")
    assert sorted(entry["label"] for entry in found[0]) == list(LABELS)


def test_sampling_is_exported_and_different_penalties_are_in_the_readme(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    subject = subject_of(backbone_folder("gpt2"), "causal-lm", "lora")
    spec = GenerationSpec(max_new_tokens=4, do_sample=True, repetition_penalty=1.5)
    write_checkpoint(replace(subject, plan=subject.plan.model_copy(update={"generation": spec})), tmp_path)
    # If top_k is not set, transformers samples from the 50 most likely tokens.
    assert loaded(tmp_path, "causal-lm").generation_config.top_k == 0
    assert "also counts the tokens of the source" in (tmp_path / "README.md").read_text("utf-8")

"""A bank that is exported for peft and imported again is the same bit for bit, unless the format cannot store all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.banks.config.spec import BankSpec
from continual_petl.digests import tensor_digests
from continual_petl.exchange.import_adapter import read_adapter, translate
from continual_petl.exchange.imported import check_imported, resolve_labels
from continual_petl.exchange.peft.adapter import write_peft
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.learner.plan import build_bank
from continual_petl.store.verify.replay import replay
from tests.exchange.subjects import Folder, subject_of
from tests.exchange.test_peft import EVERY, MIXED, UPPER, learned
from tests.kinds import GENERATIVE
from tests.usual import walk

SIX = ("bert", "roberta", "distilbert", "bart", "t5", "gpt2")
PRESETS: list[Any] = ["lora", "lora_ffn", "dora", "ia3", "layernorm", UPPER]
CASES = [(f, p) for f in (*SIX, "llama", "modernbert", "deberta", "vit") for p in PRESETS]


@torch.no_grad()
def again(subject: Subject, folder: Path, **asked: Any) -> Subject:
    """Export a task for peft and import it again; return the imported task."""
    folder.mkdir(exist_ok=True)
    write_peft(subject, folder)
    return imported(subject, folder, **asked)


@torch.no_grad()
def imported(subject: Subject, folder: Path, kind: str | None = None, pooling: str | None = None) -> Subject:
    """Import the adapter in a folder onto the backbone of ``subject``, and return the imported task."""
    made = translate(read_adapter(folder), subject.backbone, kind=kind, pooling=pooling)
    head = made.head
    changes: dict[str, Any] = {"bank": made.draft.spec, "kind": head.kind, "labels": resolve_labels(head, None)}
    plan = subject.plan.model_copy(update=changes | ({} if head.pooling is None else {"pooling": head.pooling}))
    bank = build_bank(plan, subject.backbone, folded=True)
    bank.initialise(subject.backbone.model, 99)
    made.draft.write(bank)
    if isinstance(bank.head, LinearHead):
        bank.head.output.weight.copy_(head.tensors["weight"])
        bank.head.output.bias.copy_(head.tensors["bias"])
    bank.requires_grad_(False).eval()
    found = Subject(
        plan=plan,
        bank=bank,
        backbone=subject.backbone,
        probe=subject.probe,
        tokenizer=subject.tokenizer,
        pad=subject.pad,
        max_length=subject.max_length,
    )
    assert check_imported(made, found)[0] <= 1e-5
    return found


def outputs_of(subject: Subject) -> torch.Tensor:
    return replay(subject, subject.probe)


def same(one: Subject, other: Subject) -> None:
    """Assert that two tasks have the same tensors and outputs, bit for bit."""
    assert tensor_digests(other.bank.tensors()) == tensor_digests(one.bank.tensors())
    assert torch.equal(outputs_of(other), outputs_of(one))
    assert (other.plan.kind, other.plan.labels, other.plan.pooling) == (
        one.plan.kind,
        one.plan.labels,
        one.plan.pooling,
    )


def marked(cases: list[tuple[str, Any]]) -> list[Any]:
    """Return the cases, marked as slow except for BERT's and for LoRA on the families in `SIX`."""
    return [
        c if c[0] == "bert" or (c[0] in SIX and c[1] == "lora") else pytest.param(*c, marks=pytest.mark.slow)
        for c in cases
    ]


@pytest.mark.parametrize(("family", "preset"), marked(CASES))
def test_bank_comes_back_bit_for_bit(backbone_folder: Folder, tmp_path: Path, family: str, preset: Any) -> None:
    kind = "image-classification" if family == "vit" else "classification"
    subject = subject_of(backbone_folder(family), kind, preset)
    back = again(subject, tmp_path / "out")
    same(subject, back)
    whole = subject.plan.bank.layers == "all"
    assert back.plan.bank == subject.plan.bank or not whole


@pytest.mark.parametrize("preset", ["prompt", "p_tuning"])
@pytest.mark.parametrize("family", walk(("t5", "llama", "modernbert", "qwen3"), ("t5", "llama")))
def test_prompt_comes_back_bit_for_bit(backbone_folder: Folder, tmp_path: Path, family: str, preset: str) -> None:
    same(subject := subject_of(backbone_folder(family), "classification", preset), again(subject, tmp_path / "out"))


@pytest.mark.parametrize("family", walk(("llama", "qwen2", "qwen3"), ("llama",)))
def test_prefix_comes_back_up_to_the_rounding_of_its_rotation(
    backbone_folder: Folder, tmp_path: Path, family: str
) -> None:
    subject = subject_of(backbone_folder(family), "causal-lm", "prefix_flat")
    back = again(subject, tmp_path / "out")
    ours, theirs = subject.bank.tensors(), back.bank.tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if name.endswith(".key"):
            # Rotated and rotated back: cos^2 + sin^2 is one only up to rounding.
            torch.testing.assert_close(theirs[name], tensor, atol=1e-6, rtol=1e-6)
        else:
            assert torch.equal(theirs[name], tensor)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("t5", "seq2seq"), ("gpt2", "causal-lm"), ("bert", "token-classification"), ("llama", "token-classification")],
)
def test_every_kind_comes_back(backbone_folder: Folder, tmp_path: Path, family: str, kind: str) -> None:
    subject = subject_of(backbone_folder(family), kind, "lora")
    back = again(subject, tmp_path / "out")
    same(subject, back)
    assert (back.plan.kind in GENERATIVE) == (back.plan.labels is None)


@pytest.mark.parametrize("pooling", ["pooler", "first", "mean", "last"])
@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_head_comes_back_with_its_pooling(backbone_folder: Folder, tmp_path: Path, pooling: str, kind: str) -> None:
    subject = subject_of(backbone_folder("bert"), kind, "lora", pooling)
    same(subject, again(subject, tmp_path / "out"))


@pytest.mark.parametrize("choice", [EVERY, MIXED, learned(0.5)], ids=["every", "mixed", "learned"])
@pytest.mark.parametrize("family", walk(("bert", "gpt2", "t5", "deberta"), ("bert", "gpt2")))
def test_what_the_format_joins_comes_back_with_the_same_outputs(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any
) -> None:
    subject = subject_of(backbone_folder(family), "classification", choice)
    back = again(subject, tmp_path / "out")
    assert isinstance(back.plan.bank, BankSpec)
    # Not exact, since matrices were joined and factors multiplied into them.
    torch.testing.assert_close(outputs_of(back), outputs_of(subject), atol=1e-5, rtol=1e-5)

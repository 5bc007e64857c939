"""Tasks to export, with tiny backbones and random banks, and inputs that are not in their certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from continual_petl.exchange.subject import Subject
from continual_petl.learner.plan import RowFacts, build_bank, plan_task
from continual_petl.learner.respond import respond
from continual_petl.store.verify.probe import make_probe
from continual_petl.streams.encoding.tokenise import padding_id
from tests.kinds import GENERATIVE, LABELLED
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import WORDS

Folder = Callable[..., Path]
LABELS = ("x", "y", "z")


def subject_of(folder: Path, kind: str, choice: Any, pooling: str | None = None) -> Subject:
    """Return a task on the backbone in a folder, with a bank whose parameters are all changed by random noise."""
    backbone = load_backbone(str(folder), pooling=pooling)  # type: ignore[arg-type]
    settings = {"name": str(folder)} | ({} if pooling is None else {"pooling": pooling})
    choice = small(choice) if isinstance(choice, str) else choice
    spec = stream(folder, [task_of_kind(kind, num_rows=2)], backbone=settings, bank=choice).spec
    plan = plan_task(spec, spec.tasks[0], backbone, RowFacts(LABELS if kind in LABELLED else None))
    bank = build_bank(plan, backbone)
    bank.initialise(backbone.model, 0)
    bank.requires_grad_(False).fold()
    generator = torch.Generator().manual_seed(7)
    for parameter in bank.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    tokenizer = None if backbone.anatomy.images else load_tokenizer(str(folder))
    probe = make_probe(plan, backbone, tokenizer, 16)
    pad = None
    if tokenizer is not None:
        pad = padding_id(tokenizer)
        tokenizer.padding_side = "left" if kind == "causal-lm" else "right"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    return Subject(
        plan=plan,
        bank=bank.eval(),
        backbone=backbone,
        probe=probe,
        tokenizer=tokenizer,
        pad=pad,
        max_length=max(0, backbone.max_length - 8),  # room for a prefix in GPT-2's positions
    )


TEXTS = [" ".join(WORDS[20:27]), " ".join(WORDS[3:6]), WORDS[50]]


def inputs_of(subject: Subject) -> dict[str, Tensor]:
    """Return a batch of texts, encoded with the task's tokenizer, or a batch of images if it has none."""
    if subject.tokenizer is None:
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))}
    rows = dict(subject.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    return {name: tensor for name, tensor in rows.items() if isinstance(tensor, Tensor)}


@torch.no_grad()
def answers_of(subject: Subject, inputs: dict[str, Tensor]) -> Tensor:
    """Return the bank's outputs; if there are outputs for each token, those at padding are zero."""
    batch = dict(inputs)
    if subject.plan.kind in GENERATIVE:
        batch["labels"] = inputs["input_ids"]
    (outputs,) = respond([subject], batch)
    return masked(outputs, inputs)


def masked(outputs: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return outputs (B, C) unchanged, and outputs (B, W, C) with zeros at padding."""
    return outputs * inputs["attention_mask"].unsqueeze(-1) if outputs.ndim == 3 else outputs

"""A bank merged into its backbone as a `transformers` checkpoint, which `pipeline` loads without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from continual_petl.backbones.weights import quiet
from continual_petl.banks.merge import merged
from continual_petl.errors import ExportError
from continual_petl.export.card import checkpoint_card
from continual_petl.export.classes import AUTO, configured, find_place, with_head
from continual_petl.export.compare import Compute, check_outputs
from continual_petl.export.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.learner.answer import head_of, start_token
from continual_petl.learner.generate import ends_of


def write_checkpoint(subject: Subject, folder: Path) -> float:
    """Write a task's merged checkpoint into a folder, read it back, and compare it with the bank.

    Args:
        subject: the task.
        folder: an empty folder.

    Returns:
        The largest difference found; see `check_outputs`.

    Raises:
        InputError: if the bank cannot be merged, or the class cannot express its head.
        ExportError: if the checkpoint read back from the files gives different outputs from the bank, or would tokenise
            texts differently.
    """
    plan, backbone = subject.plan, subject.backbone
    whole = merged(backbone.model, subject.bank)
    place = find_place(plan, backbone)
    head, tokenizer = head_of(subject.bank), subject.tokenizer
    config = configured(plan, whole, place, subject.pad)
    if place is None:
        made, whole.config = whole, config
        made.generation_config = _generation(subject)
    else:
        assert isinstance(head, LinearHead)
        made = with_head(plan, whole, head, place, config)
    with quiet():
        made.save_pretrained(folder)
        model, info = getattr(transformers, AUTO[plan.kind]).from_pretrained(folder, output_loading_info=True)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        if plan.chat is not None:
            (folder / "chat_template.jinja").write_text(plan.chat.template, encoding="utf-8")
        subject.check_tokenizer(folder)
    subject.copy_image_settings(folder)
    (folder / "README.md").write_text(checkpoint_card(subject), encoding="utf-8")
    lost = sorted({str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]})
    if lost:
        raise ExportError(
            f"task {plan.name!r}: transformers does not load the exported {lost[0]!r} as it was written. Nothing was "
            "written; please report this with the version of transformers."
        )
    model.to(backbone.model.device)
    return check_outputs(subject, logits_of(model))


def logits_of(model: PreTrainedModel) -> Compute:
    """Return the function from a model's inputs to its logits."""

    def compute(inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**inputs).logits
        return logits

    return compute


def _generation(subject: Subject) -> GenerationConfig:
    """Return the task's generation settings, except for its stop strings, which a checkpoint cannot hold."""
    spec = subject.plan.generation
    assert subject.tokenizer is not None
    given: dict[str, Any] = {}
    if spec is not None:  # a task with options has none
        given = spec.model_dump(exclude={"stop"}, exclude_defaults=True) | {"max_new_tokens": spec.max_new_tokens}
        if spec.do_sample:
            given["top_k"] = spec.top_k  # transformers samples among the 50 most likely tokens if this is not set
    end, pad = ends_of(subject.tokenizer, subject.plan.chat)
    given |= {"eos_token_id": end, "pad_token_id": pad}
    if subject.plan.kind == "seq2seq":
        given["decoder_start_token_id"] = start_token(subject.backbone)
    return GenerationConfig(**given)  # type: ignore[no-untyped-call]

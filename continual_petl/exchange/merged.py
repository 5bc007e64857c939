"""A bank merged into its backbone as a `transformers` checkpoint, which `pipeline` loads without this package."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from continual_petl.backbones.weights import quiet
from continual_petl.banks.merge import merged
from continual_petl.errors import ExportError
from continual_petl.exchange.check_readme import check_export
from continual_petl.exchange.classes import Place, auto_class, configured, find_place, with_head
from continual_petl.exchange.compare import Compute, ends_every_text
from continual_petl.exchange.formats import CannotExpressError, check_bank
from continual_petl.exchange.readme import write_readme
from continual_petl.exchange.readme_code import Loading, generation_settings
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.learner.task_bank import head_of


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
    place = check_merged(subject)
    whole = merged(backbone.model, subject.bank)
    head, tokenizer = head_of(subject.bank), subject.tokenizer
    config = configured(plan, whole, place, subject.pad)
    if place is None:
        checkpoint, whole.config = whole, config
        checkpoint.generation_config = GenerationConfig(**generation_settings(subject, file=True))  # type: ignore[no-untyped-call]
    else:
        assert isinstance(head, LinearHead)
        checkpoint = with_head(plan, whole, head, place, config)
    with quiet():
        checkpoint.save_pretrained(folder)
        model, info = getattr(transformers, auto_class(plan.kind)).from_pretrained(folder, output_loading_info=True)
    if tokenizer is not None:
        subject.save_tokenizer(folder)
        if plan.chat is not None:
            (folder / "chat_template.jinja").write_text(plan.chat.template, encoding="utf-8")
    subject.copy_image_settings(folder)
    one_by_one = place is not None and place.last_by is not None
    how = Loading(library="transformers", auto=auto_class(plan.kind), headed=place is not None, one_by_one=one_by_one)
    code = write_readme(subject, folder, how, {})
    lost = sorted({str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]})
    if lost:
        raise ExportError(
            f"task {plan.name!r}: transformers does not load the exported {lost[0]!r} as it was written. Nothing was "
            "written; please report this with the version of transformers."
        )
    model.to(backbone.model.device)
    return check_export(subject, code, folder, logits_of(model), model, one_by_one=one_by_one)


def check_merged(subject: Subject) -> Place | None:
    """Return where the head is in the task's class; None for a generative task. Only the bank's structure is read.

    Raises:
        CannotExpressError: if the bank cannot be merged, the class cannot express its head, or `transformers` reads the
            tokenizer otherwise.
    """
    plan = subject.plan
    check_bank(plan.name, plan.bank, "merged")
    place = find_place(plan, subject.backbone)
    if place is not None and place.last_by == "eos_token_id" and not ends_every_text(subject):
        why = (
            f"{auto_class(plan.kind)} reads the state of the end token, and the backbone's tokenizer does not end every text "
            "with it, as the bank's pooling ('last') needs"
        )
        raise CannotExpressError(plan.name, "merged", why)
    if subject.tokenizer is not None:
        with TemporaryDirectory() as folder:
            subject.backbone.model.config.save_pretrained(folder)
            subject.save_tokenizer(Path(folder))
            subject.check_tokenizer(Path(folder))
    return place


def logits_of(model: PreTrainedModel) -> Compute:
    """Return the function from a model's inputs to its logits."""

    def compute(inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**inputs).logits
        return logits

    return compute

"""One learned task with everything that an export needs: bank and backbone in float32, tokenizer, certified inputs."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.backbone_files import files_there, source_of
from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.heads.linear import NumberHead
from continual_petl.heads.targets import AS_GIVEN, Targets
from continual_petl.kind_registry import find_kind
from continual_petl.learner.task_bank import TaskBank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.verify.probe_file import certified_probe
from continual_petl.streams.encoding.image_processing import FILE
from continual_petl.streams.encoding.tokenizer_calls import padding_id

MAX_MEAN = 64.0
"""Largest mean of a regression's targets, in deviations, that a head in float32 can express: rounding is then up to 64 times
as large as without a mean, 4e-6 deviations."""
MAX_UNIT = 1e30
"""Largest deviation, and the inverse of the smallest."""


@dataclass(frozen=True, kw_only=True)
class Subject(TaskBank):
    """The task that is exported; its backbone is in float32, whatever precision the task was learned in."""

    plan: TaskPlan
    probe: dict[str, Tensor]
    """The inputs in its certificate."""
    unit: Targets = AS_GIVEN
    """For a regression, the mean and the deviation of its targets; the bank's head already predicts in their units."""
    tokenizer: PreTrainedTokenizerBase | None
    """A copy that pads on the side that the exported model expects; None for images."""
    pad: int | None
    max_length: int
    """Maximum tokens per row; 0 if the backbone reads images."""

    @classmethod
    def of(
        cls,
        plan: TaskPlan,
        bank: Bank,
        backbone: Backbone,
        probe: dict[str, Tensor],
        tokenizer: PreTrainedTokenizerBase | None,
        max_length: int,
    ) -> Subject:
        """Return a task, with a copy of the backbone's tokenizer that pads and truncates as the exported model expects."""
        return cls(
            plan=plan,
            bank=bank,
            backbone=backbone,
            probe=probe,
            tokenizer=None if tokenizer is None else tokenizer_of(tokenizer, plan.kind, max_length),
            pad=None if tokenizer is None else padding_id(tokenizer),
            max_length=max_length,
        )

    def copy_image_settings(self, folder: Path) -> None:
        """Copy the settings of the image processor, if the backbone reads images."""
        for path in files_there(source_of(self.backbone.name), self.backbone.revision, (FILE,)).values():
            if self.backbone.anatomy.images:
                shutil.copyfile(path, folder / FILE)

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer, with everything that another class may have another default for."""
        tokenizer: Any = copy.deepcopy(self.tokenizer)
        # Only what was in the backbone's tokenizer_config.json would be written otherwise.
        tokenizer.init_kwargs |= {name: getattr(tokenizer, name) for name in _ATTRIBUTES}
        tokenizer.save_pretrained(folder)

    def check_tokenizer(self, folder: Path) -> None:
        """Raise `CannotExpressError` if the tokenizer in a folder would tokenise texts differently from the task's."""
        if self.tokenizer is None:
            return
        tokenizer = AutoTokenizer.from_pretrained(folder)
        wrong = tokenizer_differences(tokenizer, self.tokenizer)
        if wrong:
            why = f"transformers would tokenise texts differently with the exported tokenizer: {'; '.join(wrong)}"
            raise CannotExpressError(self.plan.name, "merged", why)


_ATTRIBUTES = (
    "padding_side",
    "truncation_side",
    "model_input_names",
    "clean_up_tokenization_spaces",
    "split_special_tokens",
    "model_max_length",
)
"""Attributes of tokenizers that are not among the rules in tokenizer.json."""


def tokenizer_differences(found: Any, wanted: Any) -> list[str]:
    """Return in which respects a tokenizer differs from the one that is wanted, in words; empty if in none."""
    wrong = []
    if type(found).__name__ != type(wanted).__name__:
        wrong.append(f"it builds a {type(found).__name__} instead of a {type(wanted).__name__}")
    names = [*_ATTRIBUTES, "all_special_ids", "pad_token_id", "eos_token_id", "bos_token_id", "unk_token_id"]
    pairs = [(name, _value(found, name), _value(wanted, name)) for name in names]
    wrong_values = [f"{name} is {has!r} instead of {wants!r}" for name, has, wants in pairs if has != wants]
    rules, known = _rules(found), _rules(wanted)
    wrong_values += [
        f"the rules under {key!r} differ" for key in sorted({*rules, *known}) if rules.get(key) != known.get(key)
    ]
    # Another class is harmless if all that it does is the same.
    return [*wrong, *wrong_values] if wrong_values else []


def _value(tokenizer: Any, name: str) -> Any:
    value = getattr(tokenizer, name)
    return sorted(value) if name == "all_special_ids" else value


def find_subject(models: ModelCache, task: str) -> Subject:
    """Return a learned task, ready to be exported.

    Args:
        models: the run's backbone and banks.
        task: a learned task.

    Raises:
        InputError: if the backbone needs remote code, or is quantised.
        StoreError: if the bank, the probe or the backbone does not match the certificate.
    """
    held = models.held(task)
    if (why := why_not_at_all(held.backbone)) is not None:
        raise InputError(f"task {task!r}: {why}. Use Run.predict, or continual-petl serve.")
    backbone, targets = models.backbone("fp32"), held.plan.targets
    # A backbone in another precision may be on another device, and a head that predicts in other units is another head.
    same = backbone is held.backbone and targets is None
    bank = held.bank if same else copy.deepcopy(held.bank).to(backbone.model.device)
    if targets is not None:
        _predict_in_units(task, bank, targets)
    plan, probe = held.plan.model_copy(update={"targets": None}), certified_probe(models.store, task)[0]
    subject = Subject.of(plan, bank, backbone, probe, models.tokenizer, held.max_length)
    return replace(subject, unit=targets or AS_GIVEN)


def why_not_at_all(backbone: Backbone) -> str | None:
    """Return why no task on a backbone can be exported, in any format; None if it can."""
    if backbone.remote_code:
        return (
            f"backbone {backbone.name!r} needs Python code that comes with it, so an export would not load on its own; only "
            "backbones whose classes are part of transformers can be exported"
        )
    if backbone.quantize is not None:
        return (
            f"backbone {backbone.name!r} is quantised ({backbone.quantize}): a merged export would round the bank's changes "
            "to quantised values, and an adapter on a different backbone would predict differently, so no export could be "
            "compared with the certificate"
        )
    return None


def tokenizer_of(tokenizer: PreTrainedTokenizerBase, kind: str, max_length: int) -> PreTrainedTokenizerBase:
    """Return a copy of a backbone's tokenizer with the padding and the maximum length of a task."""
    own: Any = copy.deepcopy(tokenizer)
    # A generated text starts where its source ends; all other tasks are padded on the right.
    own.padding_side = "left" if find_kind(kind).continues else "right"
    own.model_max_length = max_length
    if own.pad_token_id is None:
        own.pad_token = own.convert_ids_to_tokens(padding_id(tokenizer))
    return cast(PreTrainedTokenizerBase, own)


def _predict_in_units(task: str, bank: Bank, targets: Targets) -> None:
    """Let a bank's head predict in the units of the targets, as other libraries expect.

    Raises:
        InputError: if float32, in which other libraries predict, cannot tell such numbers apart.
    """
    if abs(targets.mean) > MAX_MEAN * targets.deviation or not 1 / MAX_UNIT <= targets.deviation <= MAX_UNIT:
        raise InputError(
            f"task {task!r}: its targets have the mean {targets.mean:g} and the deviation {targets.deviation:g}. Other "
            "libraries predict in float32, which cannot hold such numbers precisely enough, so no export could be compared "
            "with the certificate. Use Run.predict, or continual-petl serve, or learn the task with targets from which a "
            "constant is subtracted."
        )
    head = bank.head
    assert isinstance(head, NumberHead)
    head.rescale(targets.deviation, targets.mean)
    head.targets = None


def _rules(tokenizer: Any) -> Any:
    """Return a tokenizer's rules, without truncation and padding, which only reflect its last call."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in rules.items() if key not in {"truncation", "padding"}}

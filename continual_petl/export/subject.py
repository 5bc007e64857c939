"""One learned task with everything that an export needs: bank and backbone in float32, tokenizer, certified inputs."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.files import files_there, source_of
from continual_petl.banks.bank import Bank
from continual_petl.errors import ExportError, InputError
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.verify.probe_file import certified_probe
from continual_petl.streams.encoding.image_processing import FILE


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The task that is exported."""

    plan: TaskPlan
    bank: Bank
    backbone: Backbone
    """In float32, whatever precision the task was learned in."""
    probe: dict[str, Tensor]
    """The inputs in its certificate."""
    tokenizer: PreTrainedTokenizerBase | None
    """A copy that pads on the side that the exported model expects; None for images."""
    pad: int | None

    def copy_image_settings(self, folder: Path) -> None:
        """Copy the settings of the image processor, if the backbone reads images."""
        for path in files_there(source_of(self.backbone.name), self.backbone.revision, (FILE,)).values():
            if self.backbone.anatomy.images:
                shutil.copyfile(path, folder / FILE)

    def check_tokenizer(self, folder: Path) -> None:
        """Raise `ExportError` if the tokenizer in a folder would tokenise texts differently from the task's."""
        if self.tokenizer is None:
            return
        found = AutoTokenizer.from_pretrained(folder)
        if _rules(found) != _rules(self.tokenizer) or found.padding_side != self.tokenizer.padding_side:
            raise ExportError(
                f"task {self.plan.name!r}: for this model type transformers builds a {type(found).__name__} from the "
                f"tokenizer's files, not the {type(self.tokenizer).__name__} that the task was learned with: texts "
                "would be tokenised differently. Nothing was written. Use Run.predict, or format 'peft', which does "
                "not include a tokenizer."
            )


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
    if held.backbone.remote_code:
        raise InputError(
            f"task {task!r}: backbone {held.backbone.name!r} needs Python code that comes with it, so an export would not "
            "load on its own. Only backbones whose classes are part of transformers can be exported: use Run.predict."
        )
    if held.backbone.quantize is not None:
        raise InputError(
            f"task {task!r}: backbone {held.backbone.name!r} is quantised ({held.backbone.quantize}). A merged export "
            "would round the bank's changes to quantised values, and an adapter on a different backbone would predict "
            "differently, so no export could be compared with the certificate. Use Run.predict, or continual-petl "
            "serve."
        )
    tokenizer = None
    if models.tokenizer is not None:
        tokenizer = copy.deepcopy(models.tokenizer)
        # A generated text starts where its source ends; all other tasks are padded on the right.
        tokenizer.padding_side = "left" if held.plan.kind == "causal-lm" else "right"
        tokenizer.model_max_length = held.max_length
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(models.pad_token_id)
    backbone = models.backbone("fp32")
    # A backbone in another precision may be on another device.
    bank = held.bank if backbone is held.backbone else copy.deepcopy(held.bank).to(backbone.model.device)
    return Subject(
        plan=held.plan,
        bank=bank,
        backbone=backbone,
        probe=certified_probe(models.store, task)[0],
        tokenizer=tokenizer,
        pad=None if tokenizer is None else models.pad_token_id,
    )


def _rules(tokenizer: Any) -> Any:
    """Return a tokenizer's rules, without truncation and padding, which only reflect its last call."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in rules.items() if key not in {"truncation", "padding"}}

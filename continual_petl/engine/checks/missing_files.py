"""Report missing files or a missing backbone without loading a model, unless loading it could reveal further mistakes.

All mistakes are reported together, and some only show up once the model is loaded: a bank larger than a layer, a kind that
the model cannot learn. Loading takes seconds, which is too long for a message about a missing file. So nothing is loaded if
config.json already shows that the model can learn the tasks; when in doubt, the model is loaded. If there is no backbone
with the given name, there is nothing to load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from continual_petl.backbones import families as families  # registers the anatomies
from continual_petl.backbones.anatomy import Anatomy, find_anatomy
from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.backbones.files import CONFIG, source_of
from continual_petl.engine.checks.mistakes import is_missing, named_mistakes
from continual_petl.engine.checks.problems import key_of
from continual_petl.errors import InputError
from continual_petl.kind import kind_of
from continual_petl.streams.protocols.rules import evaluated_by_label
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

_FFN_WIDTHS = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim")
_NARROWER = ("num_key_value_heads", "head_dim", "d_kv", "embedding_size")
"""Keys of config.json that can make a projection narrower than the hidden size."""
_KINDS = ("classification", "regression", "multilabel", "token-classification")
"""Kinds that every text model can learn."""


def refuse_missing_files(spec: StreamSpec, new: Sequence[TaskSpec]) -> None:
    """If any task's files are missing, report all problems with a stream's data and backbone without loading the model.

    Args:
        spec: the stream.
        new: its tasks that have not been learned yet.

    Raises:
        InputError: with all problems; their keys start at the top of the stream.
    """
    if any(is_missing(spec.resolved_data(task)) for task in new) and _model_agrees(spec, new):
        named_mistakes(spec, [(key_of(spec, task), task) for task in new]).raise_all()


def refuse_missing_backbone(spec: StreamSpec, new: Sequence[TaskSpec], learned_on: str | None = None) -> None:
    """If the backbone does not exist, report all problems with a stream's data and backbone; see `refuse_missing_files`.

    Args:
        spec: the stream.
        new: its tasks that have not been learned yet.
        learned_on: the name of the run's backbone; None before its first task.
    """
    if evaluated_by_label(spec.protocol):
        return  # labels must be compared across tasks, which only `preflight` does
    try:
        check_available(spec.backbone.name, spec.backbone.revision)
    except MissingBackboneError as error:
        missing = error if learned_on in (None, spec.backbone.name) else error.in_run(learned_on)
        named_mistakes(spec, [(key_of(spec, task), task) for task in new], missing=missing).raise_all()


def _model_agrees(spec: StreamSpec, tasks: Sequence[TaskSpec]) -> bool:
    """Return whether config.json alone shows that the model can learn the tasks and that their banks fit."""
    asked = spec.backbone
    if asked.max_length is not None or asked.remote_code:
        return False
    try:
        config = json.loads(Path(os.path.expanduser(source_of(asked.name)), CONFIG).read_bytes())
        anatomy, width = find_anatomy(config["model_type"]), _width(config)
        return not anatomy.images and all(_fits(spec, task, anatomy, width) for task in tasks)
    except (InputError, OSError, ValueError, LookupError, TypeError):
        return False


def _width(config: Mapping[str, Any]) -> int:
    """Return the width of the narrowest projection; 0 if config.json does not give it."""
    hidden: int = config[find_anatomy(config["model_type"]).hidden_size_key]
    found = [hidden, *(config[key] for key in _FFN_WIDTHS if key in config)]
    return 0 if len(found) == 1 or any(key in config for key in _NARROWER) else min(found)


def _fits(spec: StreamSpec, task: TaskSpec, anatomy: Anatomy, width: int) -> bool:
    bank, pooling = spec.resolved_bank(task), spec.resolved_pooling(task)
    usual = (
        task.kind in _KINDS
        and (pooling in (None, "mean") or not kind_of(task).pools)
        and spec.merged_training(task).prefix_cache != "on"
        and (bank.layers, bank.scope, bank.start_from, bank.fuse) == ("all", "task", None, ())
        and (bank.modifications or bank.layernorms == "frozen")
    )
    return usual and all(
        each.config.fits_by_size
        and not (each.normalised_input and any(stack.norm_first for stack in anatomy.stacks))
        and (each.bottleneck or 0) <= width
        for each in bank.modifications
    )

"""What a task was learned with, for the page and `show`: all settings that are not the default, read from the schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from continual_petl.banks.config.presets import in_words
from continual_petl.banks.config.spec import Modification, default_of
from continual_petl.errors import counted
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.history import History
from continual_petl.streams.schema.training_spec import ResolvedTraining

MAX_VALUES = 20
"""Maximum number of entries of a mapping or list that are written out."""
_ALWAYS = ("epochs", "batch_size", "learning_rate")
"""Training settings that are shown even if they have their default value."""
_IN_THE_NAME = ("form", "modifies", "bottleneck")
"""Fields of a modification that its name and size show."""
_BANK_ROWS = ("modifications", "start_from", "fuse")
"""Fields of a bank that have rows of their own."""


def changed(spec: BaseModel, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a specification that do not have their default value.

    Args:
        spec: a specification.
        without: names of fields to leave out.
    """
    fields = type(spec).model_fields
    form = spec.form if isinstance(spec, Modification) else None
    return {
        name: getattr(spec, name)
        for name, field in fields.items()
        if name not in without
        and getattr(spec, name)
        != (field.get_default(call_default_factory=True) if form is None else default_of(name, form))
    }


def flat(tree: Mapping[str, Any], between: str, before: str = "") -> dict[str, Any]:
    """Return nested settings on one level.

    Example:
        >>> flat({"seed": 1, "rows": {"test": 8}}, "/")
        {'seed': 1, 'rows/test': 8}
    """
    levels = [
        flat(value, between, f"{before}{key}{between}") if isinstance(value, Mapping) else {f"{before}{key}": value}
        for key, value in tree.items()
    ]
    return {name: value for level in levels for name, value in level.items()}


def named(key: str) -> str:
    """Return the name of a setting, from its key."""
    return key.replace("_", " ")


def value_in_words(value: Any) -> str:
    """Format the value of a setting.

    Example:
        >>> value_in_words({"yes": 2.0, "no": 0.5}), value_in_words((0.9, 0.999)), value_in_words(True), value_in_words(None)
        ('yes 2, no 0.5', '0.9, 0.999', 'on', 'none')
    """
    if value is None or isinstance(value, bool):
        return "none" if value is None else "on" if value else "off"
    if isinstance(value, BaseModel):
        value = {named(name): setting for name, setting in changed(value).items()}
    if isinstance(value, Mapping):
        value = [f"{key} {value_in_words(element)}" for key, element in value.items()]
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > MAX_VALUES else ""
        return (", ".join(map(value_in_words, value[:MAX_VALUES])) or "none") + more
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def epochs_in_words(training: ResolvedTraining, history: History | None) -> str:
    """Describe the epochs that were run, those that were planned, and the epoch whose bank was kept."""
    scores = () if history is None else history.curve.scores
    by_steps = training.max_steps is not None
    planned = f"until step {training.max_steps:,}" if by_steps else counted(training.epochs or 0, "epoch")
    if not scores or history is None:
        return planned
    run, step = scores[-1].epoch, scores[-1].step
    early = step < (training.max_steps or 0) or run < (training.epochs or 0)
    if by_steps:
        words = f"{counted(run, 'epoch')}, {f'until step {step:,} of {training.max_steps:,}' if early else planned}"
    else:
        words = f"{run:,} of {planned}" if run != training.epochs else planned
    if early and training.patience is not None:
        words += f" (no better score in {counted(training.patience, 'validation')})"
    kept = next((point.epoch for point in scores if point.step == history.kept), None)
    return words if kept in (None, run) else f"{words}; the bank of epoch {kept:,} was kept"


def training_in_words(training: ResolvedTraining) -> str:
    """Describe how a bank is trained: learning rate, epochs and batch size, and all settings that are not the defaults."""
    epochs = "" if training.epochs is None else f"{counted(training.epochs, 'epoch')}, "
    first = f"learning rate {training.learning_rate:g}, {epochs}batch size {training.batch_size:,}"
    others = (f"{named(name)} {value_in_words(value)}" for name, value in changed(training, _ALWAYS).items())
    return ", ".join([first, *others])


def settings_in_words(certificate: Certificate, history: History | None) -> dict[str, str]:
    """Return the settings of a task by name: the most important ones, and all that do not have their default value.

    Args:
        certificate: the task's certificate.
        history: the task's history; None if it is missing or damaged.
    """
    training, bank = certificate.training, certificate.bank
    lines = {"bank": in_words(bank), **_modifications(certificate)}
    lines |= {named(name): value_in_words(value) for name, value in changed(bank, _BANK_ROWS).items()}
    lines["started from"] = certificate.started_from
    if certificate.reads:
        lines["reads"] = f"the banks of {', '.join(repr(parent.task) for parent in certificate.reads)}"
    if not certificate.is_imported:
        lines |= {} if certificate.origin is None else {"trained by": certificate.origin.in_words}
        lines["learning rate"] = f"{training.learning_rate:g}"
        lines["epochs"] = epochs_in_words(training, history)
        lines["batch size"] = f"{training.batch_size:,}"
        lines |= {named(name): value_in_words(value) for name, value in changed(training, _ALWAYS).items()}
    lines["precision"] = certificate.environment.precision
    if certificate.max_length:
        lines["tokens per row"] = f"at most {certificate.max_length:,}"
    if certificate.max_target_length:
        lines["tokens per target"] = f"at most {certificate.max_target_length:,}"
    lines["pooling"] = certificate.pooling
    if certificate.targets is not None:
        mean, deviation = certificate.targets.mean, certificate.targets.deviation
        lines["targets"] = f"standardised: mean {mean:.15g}, standard deviation {deviation:.6g}"
    if certificate.decision is not None:
        lines |= certificate.decision.in_words(certificate.labels or ())
    if certificate.tags is not None:
        lines["tags"] = certificate.tags.in_words
    if certificate.normalise is not None:
        lines["scores of options"] = f"divided by the number of {certificate.normalise}"
    elif certificate.generation is not None:
        own = {named(name): value for name, value in changed(certificate.generation, ["max_new_tokens"]).items()}
        lines["generation"] = value_in_words({"max new tokens": certificate.generation.max_new_tokens, **own})
    if certificate.chat is not None:
        lines["chat"] = f"loss on {certificate.chat.loss_on}, template {certificate.chat.digest[:16]}"
        lines |= {} if certificate.chat.system is None else {"system prompt": certificate.chat.system}
    return lines | {"seed of the task": str(certificate.seed), "backbone (digest)": certificate.backbone[:16]}


def _modifications(certificate: Certificate) -> dict[str, str]:
    """Return the options of each modification that are not the defaults of its form."""
    by_modification: dict[str, list[str]] = {}
    for modification in certificate.bank.modifications:
        options = [
            f"{named(name)} {value_in_words(value)}" for name, value in changed(modification, _IN_THE_NAME).items()
        ]
        if options:
            by_modification.setdefault(f"{modification.form} on {modification.modifies}", []).append(", ".join(options))
    return {name: "; ".join(texts) for name, texts in by_modification.items()}

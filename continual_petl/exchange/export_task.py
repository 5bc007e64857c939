"""Exports one task of a run: the files appear in the target folder only after they are read back and compared with the bank.

Nothing is written to the run folder. Model and files are in float32, whatever precision the task was learned in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from continual_petl.errors import InputError, StoreError, did_you_mean
from continual_petl.exchange.formats import FORMATS, Format
from continual_petl.store.files.atomic import new_folder
from continual_petl.store.store import Store

# A request is checked without torch, which takes seconds to import.
if TYPE_CHECKING:
    from continual_petl.store.model_cache import ModelCache


def export_task(models: ModelCache, task: str, format: str, folder: str | Path) -> Path:
    """Export a learned task.

    Args:
        models: the run's backbone and banks.
        task: a learned task.
        format: ``merged``, a `transformers` checkpoint; ``peft``, a `peft` adapter; ``adapters``, an
            adapter of `adapters`.
        folder: where the files go; must not exist, nor be inside the run folder.

    Returns:
        The folder.

    Raises:
        InputError: if the folder cannot be used, or the format cannot express the bank or its head.
        ExportError: if the files do not compute what the bank computes, within 1e-5 of its outputs in float32.
        StoreError: if the bank is not the certified one, or the files cannot be written.

    Source:
        The formats of transformers 5.23, peft 0.21 and adapters 1.3.
    """
    target, chosen = check_request(models.store, format, folder), cast(Format, format)
    from safetensors import SafetensorError

    from continual_petl.exchange.adapterhub.adapter import write_adapters
    from continual_petl.exchange.expressible import check_format
    from continual_petl.exchange.merged import write_checkpoint
    from continual_petl.exchange.peft.adapter import write_peft
    from continual_petl.exchange.subject import find_subject

    subject = find_subject(models, task)
    check_format(subject, chosen)
    with new_folder(target) as beside:
        try:
            {"peft": write_peft, "adapters": write_adapters}.get(chosen, write_checkpoint)(subject, beside)
        except SafetensorError as error:  # what the compiled code raises if the disk is full
            raise StoreError(f"{target}: could not be written: {error}. Nothing was written.") from error
    return target


def check_request(store: Store, format: str, folder: str | Path) -> Path:
    """Return the folder of an export, absolute.

    Raises:
        InputError: if there is no such format, or the folder exists or is inside the run folder.
    """
    target = Path(folder).absolute()
    if format not in FORMATS:
        allowed = FORMATS
        raise InputError(
            f"format: got {format!r}{did_you_mean(format, allowed)}; allowed: {', '.join(map(repr, allowed))}"
        )
    if target.exists():
        raise InputError(
            f"folder: {target} already exists, and an export never overwrites anything: give a new folder."
        )
    if target.resolve().is_relative_to(store.folder.resolve()):
        raise InputError(
            f"folder: {target} is inside the run folder {store.folder}, which holds only what was learned: give a folder "
            "somewhere else."
        )
    return target

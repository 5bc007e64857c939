"""Reads an adapter of another library: finds out which one wrote it, checks its base model, and translates it into a bank."""

from __future__ import annotations

import os
from pathlib import Path

from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import CONFIG, AdapterFiles, read_config
from continual_petl.exchange.adapterhub.adapter import read_hub_files, translate_hub
from continual_petl.exchange.imported import Imported
from continual_petl.exchange.model_card import base_model
from continual_petl.exchange.peft.adapter import read_peft_files, translate_peft


def read_adapter(folder: str | Path) -> AdapterFiles:
    """Read the folder of an adapter of `peft` or `adapters`.

    Raises:
        InputError: if a file is missing, too large, damaged, or could execute code when it is read.
    """
    path = Path(folder) / CONFIG
    of_hub = path.is_file() and read_config(path).keys() >= _HUB_KEYS
    return read_hub_files(folder) if of_hub else read_peft_files(folder)


_HUB_KEYS = {"model_type", "config"}
"""Keys that the configuration of an adapter of `adapters` has, and that of one of `peft` does not."""


def translate(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate an adapter into a bank; see `translate_peft` and `translate_hub`."""
    read = translate_hub if files.config.keys() >= _HUB_KEYS else translate_peft
    imported = read(files, backbone, kind=kind, pooling=pooling)
    imported.draft.check(backbone)
    return imported


def check_base(named: str | None, revision: str | None, backbone: Backbone, asked: str | None) -> None:
    """Check the base model of an adapter.

    Args:
        named: the base model in the adapter's configuration; None if it names none, and there is nothing to compare.
        revision: the revision of the base model in the configuration.
        backbone: the run's backbone.
        asked: the name in the configuration, if the user states that it is another name for the run's backbone.

    Raises:
        InputError: if the base model is not the run's backbone.
    """
    own = base_model(backbone.name) or backbone.name
    if asked is not None and asked != named:
        raise InputError(f"base: got {asked!r}, but the adapter's base model is {named!r}: give this name, or none.")
    if named is not None and asked is None and not _same(named, own):
        raise InputError(
            f"folder: the adapter belongs to base model {named[:200]!r}, but the run's backbone is {own!r}. If both are the "
            f"same model under two names, say so with --base {named[:200]}; otherwise import it into a run on its base model."
        )
    if asked is None and None not in (revision, backbone.revision) and revision != backbone.revision:
        raise InputError(
            f"folder: the adapter belongs to revision {revision!r} of {named!r}, but the run's backbone is revision "
            f"{backbone.revision!r}. If their weights are the same, say so with --base {named}."
        )


def _same(one: str, other: str) -> bool:
    return one == other or (
        os.path.isdir(one) and os.path.isdir(other) and os.path.realpath(one) == os.path.realpath(other)
    )

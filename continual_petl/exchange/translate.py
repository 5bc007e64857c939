"""Detects which library wrote an adapter, and translates it into a bank."""

from __future__ import annotations

from pathlib import Path

from continual_petl.backbones.backbone import Backbone
from continual_petl.exchange.adapter_files import CONFIG, AdapterFiles, read_config
from continual_petl.exchange.adapterhub.read_adapter import translate_hub
from continual_petl.exchange.adapterhub.read_folder import read_hub_files
from continual_petl.exchange.imported import Imported
from continual_petl.exchange.peft.read_adapter import translate_peft
from continual_petl.exchange.peft.read_folder import read_peft_files


def read_adapter(folder: str | Path) -> AdapterFiles:
    """Read the folder of an adapter of `peft` or `adapters`.

    Raises:
        InputError: if a file is missing, too large, damaged, or could execute code when it is read.
    """
    path = Path(folder) / CONFIG
    of_hub = path.is_file() and {"model_type", "config"} <= read_config(path).keys()
    return read_hub_files(folder) if of_hub else read_peft_files(folder)


def translate(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate an adapter into a bank; see `translate_peft` and `translate_hub`."""
    of_hub = {"model_type", "config"} <= files.config.keys()
    imported = (translate_hub if of_hub else translate_peft)(files, backbone, kind=kind, pooling=pooling)
    imported.draft.check(backbone)
    return imported

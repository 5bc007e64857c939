"""Reads the folder of an adapter of `peft`."""

from __future__ import annotations

from pathlib import Path

from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import (
    CONFIG,
    HEAD,
    AdapterFiles,
    digests_of,
    read_config,
    read_metadata,
    read_safetensors,
)

TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"


def read_peft_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of a `peft` adapter.

    Raises:
        InputError: if a file is missing, too large, damaged, or could execute code when it is read.
    """
    root = Path(folder)
    config, tensors = root / CONFIG, root / TENSORS
    if not config.is_file():
        raise InputError(
            f"folder: {root} has no {CONFIG}, so it is not a peft adapter. Give the folder that save_pretrained wrote."
        )
    if not tensors.is_file():
        instead = (
            f" It has {PICKLE}, which can execute code when it is read: if you trust it, load it with peft and save "
            "it again (save_pretrained writes safetensors)."
        )
        raise InputError(
            f"folder: {root} has no {TENSORS}.{instead if (root / PICKLE).exists() else ' It is incomplete.'}"
        )
    digests = digests_of(path for path in (config, tensors, root / HEAD) if path.is_file())
    head = read_safetensors(root / HEAD, digests[HEAD]) if HEAD in digests else {}
    return AdapterFiles(
        folder=root,
        config=read_config(config),
        tensors=read_safetensors(tensors, digests[TENSORS]),
        head=head,
        notes=read_metadata(root / HEAD if head else tensors),
        digests=digests,
    )

"""``backbone.json``: the one backbone that all banks of a run answer on, pinned by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import StoreError
from continual_petl.store.atomic import write_json

_KEYS = {"name", "revision", "digest", "family", "num_parameters"}


def pin_backbone(path: Path, backbone: Backbone) -> None:
    """Write the pin if there is none yet, else compare.

    Raises:
        StoreError: if the run has another backbone already.
    """
    pinned = read_pin(path)
    if pinned is None:
        facts = {
            "name": backbone.name,
            "revision": backbone.revision,
            "digest": backbone.digest,
            "family": backbone.anatomy.family,
            "num_parameters": backbone.num_parameters,
        }
        write_json(path, facts)
    elif pinned["digest"] != backbone.digest:
        raise StoreError(
            f"{path}: this run was learned on backbone {pinned['name']!r} with digest {str(pinned['digest'])[:12]}; "
            f"{backbone.name!r} has {backbone.digest[:12]}. Its banks would answer differently on it: give the backbone "
            "of the run, or another --run-dir."
        )


def read_pin(path: Path) -> dict[str, Any] | None:
    """Return the pin, or None before the first run.

    Raises:
        StoreError: if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        pin = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read as JSON ({error}); the file is damaged") from error
    missing = _KEYS - (pin.keys() if isinstance(pin, dict) else set())
    if missing:
        raise StoreError(f"{path}: {', '.join(sorted(missing))} missing; the file is damaged or was edited")
    return dict(pin)

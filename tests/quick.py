"""Slow set-up that no test depends on is done once, or not at all.

Nothing here changes what a function returns or which errors it raises. Processes that tests start, rather than fork, do
without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import types
from typing import Any

_FILE_OF_A_RUN = 2**16
"""Characters; longer texts are tests of bounds, each read once."""


def make_quick() -> None:
    """Change this process, before it runs tests."""
    # Every Trainer reads the metadata of every installed package, which stay the same while tests run.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    import torch

    # A seed for a device that is not here is kept for later, with the stack it came from: three deep stacks for each.
    devices: list[Any] = [torch.cuda, torch.xpu, torch.mtia]
    for device in devices:
        if not device.is_available():
            device.manual_seed_all = int
    # No test can cut the power, which is all that waiting for the disk is good for; a wrong descriptor is still an error.
    os.fsync = os.fstat  # type: ignore[assignment]
    # Every Run reads the stream file of its folder, which holds all rows in these tests.
    yaml_file: Any = importlib.import_module("continual_petl.streams.stream_file.yaml_file")
    yaml_file.parse = _remembering(yaml_file.parse)
    # Every run writes it, and many tests learn the same stream.
    dump: Any = importlib.import_module("continual_petl.streams.stream_file.dump")
    dump.yaml = types.SimpleNamespace(dump=_writing_once(dump.yaml.dump))


def _remembering(parse: Any) -> Any:
    """Return a ``parse`` that reads a text once, and gives each caller a copy to write in."""
    known = functools.lru_cache(maxsize=200)(parse)

    @functools.wraps(parse)
    def copied(text: str) -> Any:
        if len(text) > _FILE_OF_A_RUN:
            return parse(text)
        parsed = known(text)
        return type(parsed)(_copy(parsed.tree), dict(parsed.lines), list(parsed.problems))

    return copied


def _writing_once(dump: Any) -> Any:
    """Return a ``dump`` that writes equal trees once; what they hold is plain, so that they are equal if they look alike."""
    known: dict[str, str] = {}

    @functools.wraps(dump)
    def written(tree: Any, **how: Any) -> Any:
        looks = repr((tree, how))
        if len(looks) > _FILE_OF_A_RUN:
            return dump(tree, **how)
        if looks not in known:
            if len(known) == 200:
                known.clear()
            known[looks] = dump(tree, **how)
        return known[looks]

    return written


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree

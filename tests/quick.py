"""Patches that skip slow set-up, or do it only once, where no test depends on it.

The patches change neither what a function returns nor which errors it raises. They also apply to forked processes, but not
to new interpreters that tests start.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.metadata
import os
import sys
import types
from pathlib import Path
from typing import Any

_FILE_OF_A_RUN = 2**16
"""Longer texts are not cached: only tests of limits use them, and each is read once."""


def make_quick() -> None:
    """Patch slow functions in this process before it runs tests."""
    # Every Trainer reads the metadata of all installed packages, which does not change while tests run.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    # A conftest.py of a folder that is named on the command line may have imported Lightning before.
    if registry := sys.modules.get("lightning.fabric.utilities.registry"):
        registry.entry_points = importlib.metadata.entry_points  # type: ignore[attr-defined]
    import torch

    # If a device is missing, every call stores the seed for later, together with the call stack.
    devices: list[Any] = [torch.cuda, torch.xpu, torch.mtia]
    for device in devices:
        if not device.is_available():
            device.manual_seed_all = int
    # Flushing to disk only protects against power failures, which no test simulates; fstat fails for the same descriptors.
    os.fsync = os.fstat  # type: ignore[assignment]
    # Every Run parses the stream file of its folder, which contains all rows in these tests.
    yaml_file: Any = importlib.import_module("continual_petl.streams.stream_file.yaml_file")
    yaml_file.parse = _remembering(yaml_file.parse)
    # Every run writes its stream file, and many tests learn the same stream.
    dump: Any = importlib.import_module("continual_petl.streams.stream_file.dump")
    dump.yaml = types.SimpleNamespace(dump=_writing_once(dump.yaml.dump))
    # Every run loads its backbone, mostly the same tiny ones.
    weights: Any = importlib.import_module("continual_petl.backbones.weights")
    weights._load = _loading_once(weights._load)


def _remembering(parse: Any) -> Any:
    """Wrap ``parse`` so that it parses each text only once and returns a copy that the caller may modify."""
    known = functools.lru_cache(maxsize=200)(parse)

    @functools.wraps(parse)
    def copied(text: str) -> Any:
        if len(text) > _FILE_OF_A_RUN:
            return parse(text)
        parsed = known(text)
        return type(parsed)(_copy(parsed.tree), dict(parsed.lines), list(parsed.problems))

    return copied


def _writing_once(dump: Any) -> Any:
    """Wrap ``dump`` so that it serialises equal trees only once; they hold plain values, so equal reprs mean equal trees."""
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


def _loading_once(load: Any) -> Any:
    """Wrap ``load`` so that it loads a folder again only if its files have changed, and otherwise returns a copy."""
    from transformers import PreTrainedModel

    known: dict[Any, Any] = {}

    @functools.wraps(load)
    def copied(kind: Any, source: str, **how: Any) -> Any:
        folder = Path(source)
        if not folder.is_dir() or how["trust_remote_code"] or "quantization_config" in how:
            return load(kind, source, **how)
        files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
        of_both = [getattr(each.from_pretrained, "__func__", each.from_pretrained) for each in (kind, PreTrainedModel)]
        key = kind, *of_both, source, *sorted(how.items()), *files  # tests patch these methods
        if key not in known:
            if len(known) == 20:
                known.clear()
            known[key] = load(kind, source, **how)
        model, missing, mismatched = known[key]
        return copy.deepcopy(model), set(missing), list(mismatched)

    return copied


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree

"""Import torch, transformers and Lightning without collecting garbage meanwhile.

These imports create about a million objects, nearly all of which last as long as the process. Python's garbage collector
would go through them again and again while they are imported, and once more when the process ends: together, that takes a
third of the time of a short command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HEAVY = ("torch", "transformers.modeling_utils", "lightning")
_is_own = False
"""Whether this process runs nothing but this package: a command, or a worker process of a run."""


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Collect no garbage until the block has imported what it needs; in an own process, never look through it later.

    In a process of somebody else, only the first half is done: what this process has created itself must remain collectable.
    """
    missing = [name for name in _HEAVY if name not in sys.modules]
    if not missing or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if _is_own and any(name in sys.modules for name in missing):
            gc.freeze()
        gc.enable()


def own_process() -> None:
    """Note that this process runs nothing but this package."""
    global _is_own
    _is_own = True


def pause_collection() -> None:
    """Collect no garbage until `resume_collection`, in a worker process, which imports what its first call refers to."""
    own_process()
    gc.disable()


def resume_collection() -> None:
    """Collect garbage again, but never look through what has been imported so far."""
    gc.freeze()
    gc.enable()

"""Import torch, transformers and Lightning without collecting garbage meanwhile.

These imports create about a million objects, nearly all of which exist until the process ends. Python's garbage collector
would traverse them many times during the imports, and once more at the end: together, a third of the time of a short command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HEAVY = ("torch", "transformers.modeling_utils", "lightning")
_is_own = False
"""Whether this process only runs this package: as a command, or as a worker of a run."""


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause garbage collection while the block imports; in a process of this package, exempt what was imported from it.

    In any other process, nothing is exempted, because objects of the user's program must remain collectable.
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
    """Record that this process only runs this package."""
    global _is_own
    _is_own = True


def pause_collection() -> None:
    """Pause garbage collection in a worker process until `resume_collection`: its first call imports what it refers to."""
    own_process()
    gc.disable()


def resume_collection() -> None:
    """Resume garbage collection, but exempt everything that has been imported so far."""
    gc.freeze()
    gc.enable()

"""A Ray cluster of two workers, for tests that need one."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

# `make` installs Ray with the tools of developers, so CI runs these.
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'continual-petl[ray]'"
)
UNTIDY = ("ignore::FutureWarning:ray", "ignore::ResourceWarning")
"""Warnings that are Ray's own."""


@contextmanager
def two_workers() -> Iterator[Any]:
    """Start a cluster and yield the module `ray`."""
    ray = importlib.import_module("ray")
    handler = signal.getsignal(signal.SIGTERM)  # Ray's own, which exits, must not stay for the tests after this one
    with pytest.MonkeyPatch.context() as patch:
        # Ray's workers have a lower priority than everything else, including other tests.
        patch.setenv("RAY_worker_niceness", "0")
        for left in (2, 1, 0):
            try:
                ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, object_store_memory=100 << 20)
                break
            except Exception:
                # Ray gives its own processes 30 seconds to start, whatever else the machine does.
                ray.shutdown()
                if not left:
                    raise
            finally:
                signal.signal(signal.SIGTERM, handler)
        yield ray
        ray.shutdown()

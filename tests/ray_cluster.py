"""A Ray cluster of two workers, for tests that need one."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

# `make` installs Ray with the development tools, so CI runs these tests.
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'continual-petl[ray]'"
)
UNTIDY = ("ignore::FutureWarning:ray", "ignore::ResourceWarning")
"""Filters for warnings that Ray itself causes."""


@contextmanager
def two_workers() -> Iterator[Any]:
    """Start a cluster and yield the `ray` module."""
    ray = importlib.import_module("ray")
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it with a handler that exits
    with pytest.MonkeyPatch.context() as patch:
        # By default, Ray's workers have a lower priority than all other processes, including other tests.
        patch.setenv("RAY_worker_niceness", "0")
        for left in (2, 1, 0):
            try:
                ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, object_store_memory=100 << 20)
                break
            except Exception:
                # Ray gives its processes only 30 seconds to start, which is too short on a busy machine.
                ray.shutdown()
                if not left:
                    raise
            finally:
                signal.signal(signal.SIGTERM, handler)
        yield ray
        ray.shutdown()

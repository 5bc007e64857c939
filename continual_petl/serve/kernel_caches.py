"""Limits of the caches for compiled kernels, which grow with the number of different requests."""

from __future__ import annotations

import os

_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Numbers of kernels that oneDNN keeps, and that torch keeps in each thread; 1,024 each by default."""
_KERNELS = 128


def bound_kernel_caches() -> None:
    """Let oneDNN and torch keep fewer compiled kernels, unless the user has configured it; called before torch is imported.

    For bf16 on a CPU, a kernel is compiled for every shape, and takes about 300 kB in each of the two caches. Requests of all
    sizes have thousands of shapes, so the caches would fill, with few hits. A pass through a backbone needs about 20.
    """
    for name in _CACHES:
        os.environ.setdefault(name, str(_KERNELS))

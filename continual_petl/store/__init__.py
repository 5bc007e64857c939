"""The store: learned banks on disk, with their certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.store.certificate.finding import Finding as Finding
    from continual_petl.store.certificate.finding import TaskCheck as TaskCheck
    from continual_petl.store.certificate.manifest import Manifest as Manifest
    from continual_petl.store.store import Store as Store

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Finding": "continual_petl.store.certificate.finding",
        "Manifest": "continual_petl.store.certificate.manifest",
        "Store": "continual_petl.store.store",
        "TaskCheck": "continual_petl.store.certificate.finding",
    },
)

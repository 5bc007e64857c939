"""Serves a run over HTTP: rows of all tasks share batches, and new tasks are picked up. Needs the extra ``serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.serve.app import make_app as make_app
    from continual_petl.serve.client import Client as Client
    from continual_petl.serve.client import EndpointError as EndpointError
    from continual_petl.serve.settings import ServeSettings as ServeSettings

__getattr__, __dir__, __all__ = lazy_names(__name__)

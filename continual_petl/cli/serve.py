"""``continual-petl serve``: a run as an HTTP endpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl._process import heavy_imports
from continual_petl.cli._console import out
from continual_petl.errors import InputError
from continual_petl.store.open_run import open_store


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    open_store(arguments.run)  # before anything heavy is imported
    try:
        import fastapi_offline  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"serve: {error.name} is not installed; install the extra: pip install 'continual-petl[serve]'"
        ) from error
    from continual_petl.serve.kernel_caches import bound_kernel_caches
    from continual_petl.serve.settings import ServeSettings

    settings = ServeSettings(
        host=arguments.host,
        port=arguments.port,
        allowed_hosts=tuple(arguments.allowed_host),
        token_file=None if arguments.token_file is None else Path(arguments.token_file),
        window_ms=arguments.window_ms,
        batch_rows=arguments.batch_rows,
        max_rows=arguments.max_rows,
        max_characters=arguments.max_characters,
        max_body_bytes=arguments.max_body_bytes,
        max_waiting=arguments.max_waiting,
        timeout_s=arguments.timeout,
        client_s=arguments.client_timeout,
        resident_bytes=arguments.resident_bytes,
        unknown=arguments.unknown,
        log_texts=arguments.log_texts,
        remote_code=arguments.remote_code,
        engine=arguments.engine,
        replicas=arguments.replicas,
    )
    bound_kernel_caches()
    with heavy_imports():
        from continual_petl.serve.server import serve  # imports torch

    def ready(address: str) -> None:
        out().print(
            f"serving {arguments.run} at {address} (open it in a browser to try it; Ctrl-C stops it)", markup=False
        )

    serve(arguments.run, settings, ready=ready)
    return 0

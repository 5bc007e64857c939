"""Serve predictions over HTTP; rows of all tasks share batches.

Needs the extra: pip install 'continual-petl[serve]'. Rows of different requests and tasks share batches. Tasks
that other processes learn, replace or forget are picked up within seconds, without a restart. Each bank is verified before
its first prediction. The log, on standard error, has one JSON object per line, without texts unless --log-texts is given.

  POST /v1/predict   {"inputs": ["a text", ...], "task": "trec" | ["trec", null, ...] | null, "reject": 0.05 | "never"}
                     returns {"predictions": [...]}, with the records of predict --json; null: the run finds the task
                     with "stream": true, for one row of a task that generates text: its pieces, as server-sent events
  GET  /v1/tasks, /v1/tasks/TASK, /health/live, /health/ready, /metrics (Prometheus), /docs (OpenAPI), / (a page to try it)

Errors are {"error": {"code": ..., "message": ..., "row": ...}}: 400 not JSON (or a Host header that is not allowed: see
--allowed-host), 401 no token, 404 unknown task, 405 wrong method (see Allow), 408 body too slow, 409 a row that its own
task cannot predict, 410 forgotten task, 413 too large, 415 not declared as JSON, 422 not a request that /openapi.json
describes, 429 too many rows waiting (see Retry-After), 503 not ready, 504 timed out.
Ctrl-C and SIGTERM stop the endpoint once every accepted request is answered; a client that is still sending its request
has until 5 s after --timeout to finish.

examples:
  continual-petl serve runs/mine
  continual-petl serve runs/mine --port 9000 --token-file token.txt
  continual-petl serve runs/mine --host 0.0.0.0 --allowed-host models.example.org --token-file token.txt
  curl -s localhost:8000/v1/predict -H 'content-type: application/json' -d '{"inputs": ["Shares fell on Monday"]}'
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from continual_petl.cli.shared_options import add_reject, add_remote_code, add_run
from continual_petl.errors import InputError

PLACE = 220
_OPTIONS = {"timeout_s": "timeout", "client_s": "client-timeout", "allowed_hosts": "allowed-host"}
"""Options that have other names than the settings."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    text = "address to listen on (default: 127.0.0.1, which only this machine can reach)"
    command.add_argument("--host", default="127.0.0.1", help=text)
    command.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: 8000)")
    text = (
        "a name that requests may use in their Host header; may be repeated (localhost is allowed on a loopback --host)"
    )
    command.add_argument("--allowed-host", dest="allowed_hosts", metavar="NAME", action="append", default=[], help=text)
    text = "file with the token that requests need (Authorization: Bearer TOKEN)"
    command.add_argument("--token-file", metavar="FILE", type=Path, help=text)
    text = "how long the first row of a batch waits for others, in milliseconds (default: 5)"
    command.add_argument("--window-ms", metavar="MS", type=float, default=5.0, help=text)
    text = "maximum number of rows per batch (default: 64)"
    command.add_argument("--batch-rows", metavar="N", type=int, default=64, help=text)
    text = "maximum number of rows per request (default: 512)"
    command.add_argument("--max-rows", metavar="N", type=int, default=512, help=text)
    text = "maximum number of characters per row (default: 20000)"
    command.add_argument("--max-characters", metavar="N", type=int, default=20_000, help=text)
    text = "maximum size of a request in bytes (default: 8 MiB)"
    command.add_argument("--max-body-bytes", metavar="N", type=int, default=8 * 2**20, help=text)
    text = "maximum number of rows that wait; more are refused with status 429 (default: 2048)"
    command.add_argument("--max-waiting", metavar="N", type=int, default=2048, help=text)
    text = "seconds after which a request fails with status 504 (default: 30)"
    command.add_argument("--timeout", dest="timeout_s", metavar="S", type=float, default=30.0, help=text)
    text = "seconds that a client may take to send a request's head, to send its body, or to read the response (default: 30)"
    command.add_argument("--client-timeout", dest="client_s", metavar="S", type=float, default=30.0, help=text)
    text = "memory limit for all banks together, in bytes; further banks are read when needed (default: 1 GiB)"
    command.add_argument("--resident-bytes", metavar="N", type=int, help=text)
    add_reject(command, "the limit that its task stored; requests may give another one")
    command.add_argument("--log-texts", action="store_true", help="write texts and predictions to the log too")
    text = "where predictions are computed: in this process (default), or in replicas on Ray Serve"
    command.add_argument("--engine", choices=("local", "ray"), default="local", help=text)
    command.add_argument("--replicas", metavar="N", type=int, default=1, help="number of replicas (--engine ray)")
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl._process import heavy_imports
    from continual_petl.cli._console import say
    from continual_petl.store.open_run import open_store

    open_store(arguments.run)  # before anything heavy is imported
    try:
        import fastapi_offline  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"serve: {error.name} is not installed; install the extra: pip install 'continual-petl[serve]'"
        ) from error
    from continual_petl.serve.settings import ServeSettings, bound_kernel_caches

    # The options are named like the settings; some settings have no option.
    given = {key: value for key, value in vars(arguments).items() if key in ServeSettings.model_fields}
    try:
        settings = ServeSettings(**given | {"allowed_hosts": tuple(arguments.allowed_hosts)})
    except InputError as error:  # on the command line, there are options instead of keys
        raise InputError(re.sub(r"ServeSettings: (?:key )?(\w+)", _option, str(error))) from error
    bound_kernel_caches()
    with heavy_imports():
        from continual_petl.serve.server import serve  # imports torch

    def ready(address: str) -> None:
        say(f"serving {arguments.run} at {address} (open it in a browser to try it; Ctrl-C stops it)")

    serve(arguments.run, settings, ready=ready)
    return 0


def _option(found: re.Match[str]) -> str:
    return f"--{_OPTIONS.get(found[1], found[1].replace('_', '-'))}"

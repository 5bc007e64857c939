"""Commands in separate processes, which report what they imported.

Each is forked from a process that has already imported the light parts: the schema, the store and the output. If these
imported a heavy library, it would count as imported by every command, so nothing is missed. This module imports only the
standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str
    modules: set[str]
    """All modules that the process had imported when it ended."""


class LightProcesses:
    """Runs commands, one at a time."""

    def __init__(self) -> None:
        code = "from tests.cli.light import serve; serve()"
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process from which commands are forked."""
        self._server.communicate(timeout=60)

    def run(self, words: Sequence[str], folder: Path) -> Done:
        """Run ``continual-petl WORDS`` in a folder."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps([*words, str(folder), place]), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            out, err, modules = (Path(place, name).read_text("utf-8") for name in ("out", "err", "modules"))
        return Done(code, out, err, set(modules.split()))


def serve() -> None:
    """Fork a process for every line of standard input, and print its exit code."""
    import rich.table  # noqa: F401

    import continual_petl.__main__
    import continual_petl.report.console
    import continual_petl.store.store
    import continual_petl.streams.stream_file.yaml_file  # noqa: F401

    for line in sys.stdin:
        *words, folder, place = json.loads(line)
        child = os.fork()
        if child == 0:
            _command(words, folder, Path(place))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _command(words: list[str], folder: str, place: Path) -> None:
    code: int | str | None = 70
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        from continual_petl.__main__ import main

        sys.argv = ["continual-petl", *words]
        code = main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        (place / "modules").write_text("\n".join(sorted(sys.modules)), "utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)

"""A closed pipe, as in ``| head``, only changes the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from continual_petl.report.console import SafeConsole


@pytest.mark.parametrize("stream", ["rich", "print"])
def test_closed_output_pipe_ends_the_command(stream: str) -> None:
    script = (
        "import sys\n"
        "from continual_petl.cli import main as cli\n"
        "from continual_petl.report.console import SafeConsole\n"
        "def execute(arguments, overrides):\n"
        f"    (SafeConsole().print if {stream == 'rich'} else print)('x')\n"
        "    return 0\n"
        "from continual_petl.cli.commands import schema\n"
        "schema.execute = execute\n"
        "sys.exit(cli.main(['schema']))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_console_pipe_does_not_end_the_program() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), open(writer, "w", closefd=True, buffering=1) as file:
        SafeConsole(file=file).print("x")

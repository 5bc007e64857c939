"""Check this machine; paste the output into a bug report.

Exit code 1 if a problem is found. No key, user name or host name is printed, and no folder except the one you
give.

examples:
  continual-petl doctor
  continual-petl doctor --run-dir /data/runs --json
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from continual_petl._version import VERSION
from continual_petl.cli.shared_options import add_json

PLACE = 360
_MIN_NAME_LENGTH = 3


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    text = "where runs would be written (default: runs)"
    command.add_argument("--run-dir", metavar="DIR", default="runs", help=text)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code: 1 if a problem was found that could make a run fail."""
    from continual_petl.cli import doctor_checks
    from continual_petl.cli._console import print_json, say

    asked: dict[str, Callable[[], dict[str, Any]]] = {
        **doctor_checks.CHECKS,
        "disk": lambda: doctor_checks.disk(Path(arguments.run_dir)),
    }
    sections = {title: _redacted(_tried(collect)) for title, collect in asked.items()}
    if arguments.json:
        print_json(sections)
    else:
        say(*_lines(sections))
    return 1 if any("problem" in facts for facts in sections.values()) else 0


def _lines(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"continual-petl {VERSION}"]
    for title, facts in found.items():
        lines.append(title)
        for name, value in facts.items():
            lines.append(f"  {name:<24} {value}")
    return lines


def _tried(collect: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return collect()
    except (Exception, SystemExit) as error:  # report failures instead of failing
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}


def _redacted(facts: dict[str, Any]) -> dict[str, Any]:
    """Remove the names of the user and the host, which error messages and settings may contain."""
    import getpass
    import socket

    hidden = {}
    for name, word in ((_name(getpass.getuser), "USER"), (_name(socket.gethostname), "HOST")):
        if len(name) >= _MIN_NAME_LENGTH:
            hidden[name] = word
    try:
        home = str(Path.home())
    except RuntimeError:  # there is no home folder
        home = ""

    def without(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if len(home) > 1:
            value = value.replace(home, "~")
        for name, word in hidden.items():
            value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, value)
        return value

    return {name: without(value) for name, value in facts.items()}


def _name(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return ""

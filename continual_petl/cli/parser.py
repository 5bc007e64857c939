"""The parser of all commands. Each command has two files named after it: one here, and one with its options in `options`.

Nothing heavy is imported, so that --help is fast.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from continual_petl._version import VERSION

COMMANDS = (
    *("init", "run", "learn", "sweep", "forget", "verify", "sign", "reevaluate"),
    *("predict", "serve", "ablate", "export", "import", "push"),
    *("report", "list", "show", "similar", "diff", "doctor", "streams", "schema"),
)
"""In the order of ``--help``."""

TASK_BY_PLACE = ("forget", "verify", "ablate", "export", "import", "push", "show", "similar")
"""Commands that take TASK by its place, and as --task."""
_EXAMPLES = """examples:
  continual-petl run quickstart
  continual-petl run stream.yaml --run-dir runs/mine --training.learning_rate 3e-4
  continual-petl verify runs/mine

TASK can be given by its place or, anywhere, as --task TASK. After predict RUN come texts, so predict takes only --task.

exit codes: 0 all is well; 1 a check failed or a problem was found (something was forgotten or is damaged, two runs differ,
rows need to be corrected); 2 the input cannot be used; 3 an internal error of continual-petl; 4 another
process is writing to the run; 128 + n ended by signal n.
"""


def take_task(arguments: argparse.Namespace, rest: list[str]) -> list[str]:
    """Take a task, or several, from the words that argparse left over; return the others."""
    words = [word for word in rest if not word.startswith("-")]
    several = arguments.command == "ablate"
    if words and (several or arguments.task is None) and len(words) == len(rest):
        taken = words if several else words[:1]
        arguments.task = [*(arguments.task or ()), *taken] if several else taken[0]
        return words[len(taken) :]
    return rest


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="continual-petl",
        description="Continual learning that provably forgets nothing: a parameter-efficient bank per task.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"continual-petl {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        options = import_module(f"continual_petl.cli.options.{name}")
        command = commands.add_parser(
            name,
            help=options.HELP,
            description=options.HELP[0].upper() + options.HELP[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=options.EPILOG,
        )
        options.add_arguments(command)
    return parser

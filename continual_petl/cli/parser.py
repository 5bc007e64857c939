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

_EXAMPLES = """examples:
  continual-petl run quickstart
  continual-petl run stream.yaml --run-dir runs/mine --training.learning_rate 3e-4
  continual-petl verify runs/mine

exit codes: 0 all is well; 1 a check failed or a problem was found (something was forgotten or is damaged, two runs differ,
rows need to be corrected); 2 the input cannot be used; 3 an internal error of continual-petl; 4 another
process is writing to the run; 128 + n ended by signal n.
"""


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

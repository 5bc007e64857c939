"""The commands, found by their names in `commands`, and the parser of all of them. An unknown command or option is refused
with the most similar known one.

Nothing heavy is imported, so that --help is fast.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Protocol

from continual_petl._version import VERSION
from continual_petl.added import added, files_of, load_added
from continual_petl.errors import InputError, did_you_mean

_EXAMPLES = """examples:
  continual-petl run quickstart
  continual-petl run stream.yaml --run-dir runs/mine --training.learning_rate 3e-4
  continual-petl verify runs/mine

TASK can be given by its place or, anywhere, as --task TASK. After predict RUN come texts, so predict takes only --task.

exit codes: 0 all is well; 1 a check failed or a problem was found (something was forgotten or is damaged, two runs differ,
rows need to be corrected); 2 the input cannot be used; 3 an internal error of continual-petl; 4 another
process is writing to the run; 128 + n ended by signal n.
"""


class Command(Protocol):
    """A file of `commands`. Its docstring is its help: the first line is in the list of commands too, and the rest, with
    examples, follows the options.
    """

    PLACE: int
    """Where it stands in ``--help``; hundreds are groups."""

    def add_arguments(self, command: argparse.ArgumentParser, /) -> None:
        """Add the arguments and options."""

    def execute(self, arguments: argparse.Namespace, overrides: list[tuple[str, str]], /) -> int:
        """Run the command; return the exit code."""


def commands(asked: str | None = None) -> dict[str, Command]:
    """Return the commands by name, in the order of ``--help``.

    Of the commands of installed packages, only the one that is asked for is among them: looking for them takes longer than
    ``--help``.

    Raises:
        InputError: if the command that is asked for cannot be loaded.
    """
    own: dict[str, Command] = dict(files_of("continual_petl.cli.commands"))
    found = dict(sorted(own.items(), key=lambda item: item[1].PLACE))
    if asked is not None and asked not in found and not asked.startswith("-") and asked in added("commands"):
        found[asked] = load_added("commands", asked)
    return found


def take_task(arguments: argparse.Namespace, rest: list[str]) -> list[str]:
    """Take a task, or several, from the words that argparse left over; return the others."""
    words = [word for word in rest if not word.startswith("-")]
    several = arguments.takes_task == "several"
    if words and (several or arguments.task is None) and len(words) == len(rest):
        taken = words if several else words[:1]
        arguments.task = [*(arguments.task or ()), *taken] if several else taken[0]
        return words[len(taken) :]
    return rest


def build_parser(asked: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands; see `commands`."""
    parser = argparse.ArgumentParser(
        prog="continual-petl",
        description="Continual learning that provably forgets nothing: a parameter-efficient bank per task.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"continual-petl {VERSION}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in commands(asked).items():
        summary, _, more = (command.__doc__ or "").strip().partition("\n\n")  # python -OO has no docstrings
        subparser = parsers.add_parser(
            name,
            help=summary[:1].lower() + summary[1:].removesuffix("."),
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=more,
        )
        subparser.set_defaults(takes_task=None, takes_overrides=False)
        command.add_arguments(subparser)
    return parser


def check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exit with a usage error if the first word is not a command; argparse's own message lists them without a hint."""
    if words and not words[0].startswith("-") and words[0] not in commands(words[0]):
        known = [*commands(), *added("commands")]
        hint = did_you_mean(words[0], known)
        parser.error(f"there is no command {words[0]!r}{hint}; the commands are {', '.join(known)}")


def unrecognised(command: str, words: Sequence[str]) -> str:
    """Return a message about words that a command does not take."""
    hint = did_you_mean(words[0].partition("=")[0], options_of(command))
    return f"unrecognized arguments: {' '.join(words)}{hint}"


def check_option(command: str, key: str, *, has_value: bool) -> None:
    """Refuse ``--key`` if it is a misspelt option of the command rather than an override.

    Args:
        command: a command with overrides.
        key: without its dashes.
        has_value: whether a value follows; without one, it can only be an option.

    Raises:
        InputError: suggesting the most similar option or key.
    """
    if "." in key or key in (keys := _keys(command)):
        return
    options = [option.removeprefix("--") for option in options_of(command)]
    hint = did_you_mean(key, [*options, *keys])
    if not has_value or any(f"{name!r}" in hint for name in options):
        hint = hint.replace("mean '", "mean '--")
        raise InputError(f"--{key}: there is no such option{hint}; continual-petl {command} --help lists them")


def options_of(command: str) -> list[str]:
    """Return the options of a command, such as ``--json``."""
    parser = argparse.ArgumentParser()
    commands(command)[command].add_arguments(parser)
    return [*dict.fromkeys(re.findall(r"--[a-z][a-z_.-]*", parser.format_usage())), "--help"]


def _keys(command: str) -> list[str]:
    from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

    return [*(TaskSpec if command == "learn" else StreamSpec).model_fields]

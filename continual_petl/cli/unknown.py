"""Refuses unknown commands and options, and suggests the most similar known one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from continual_petl.added import added
from continual_petl.cli.parser import commands
from continual_petl.errors import InputError, did_you_mean


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

"""Run the commands of a bash block like a shell, as far as the pages need it; ``continual-petl`` runs in this process.

Supported are ``continual-petl`` (also with ``> FILE``, or with input piped from ``echo`` or ``cat``), ``python FILE`` with a
file of the page, and ``rm`` inside the page's folder. `tests.docs.not_run` lists commands that are only parsed. Anything else
is an error.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from continual_petl.cli.main import main, parse_overrides
from continual_petl.cli.parser import build_parser
from tests.docs.blocks import ROOT, Block
from tests.docs.not_run import COMMANDS, PROGRAMS

EXIT_CODE = re.compile(r"#.*\bexit code (\d+)\s*$")
"""The comment after a command that is meant to fail."""


def lines_of(text: str) -> Iterator[str]:
    """Yield the commands of a block, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.strip().startswith("#"):
            yield line.strip()


def words_of(line: str) -> list[str]:
    """Split a line as a shell does; operators become separate words, and comments are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def run_block(block: Block, folder: Path, used: set[str]) -> None:
    """Run every command of a bash block in the page's folder, which is the working directory.

    Args:
        block: a bash block.
        folder: the page's folder.
        used: a set to which the needed entries of `tests.docs.not_run` are added.
    """
    for line in lines_of(block.text):
        expected = EXIT_CODE.search(line)
        words: list[str] = []
        for word in [*words_of(line), ";"]:
            if word in (";", "&&"):
                _run(block, words, int(expected.group(1)) if expected else 0, folder, used)
                words = []
            else:
                words.append(word)


def _run(block: Block, words: list[str], expected: int, folder: Path, used: set[str]) -> None:
    stdin, words, output = _redirected(block, words, folder)
    program, shown = words[0], " ".join(words)
    if program == "continual-petl":
        if shown in COMMANDS:
            used.add(shown)
            parse(block, words[1:])
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(stdin)))
            if output is not None:
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(output.open("w", encoding="utf-8"))))
            try:
                code = main(words[1:])
            except SystemExit as error:  # raised by argparse
                code = int(error.code or 0)
        if code != expected:
            raise block.broken(f"{shown!r} ends with exit code {code}, not {expected}")
    elif program == "python" and len(words) == 2 and (folder / words[1]).is_file():
        runpy.run_path(words[1], run_name="__main__")
    elif program == "rm":
        for name in (word for word in words[1:] if not word.startswith("-")):
            path = (folder / name).resolve()
            if folder.resolve() not in path.parents or not path.exists():
                raise block.broken(f"{shown!r}: no such file in the page's folder")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif program in PROGRAMS:
        used.add(program)
        _check_program(block, words, folder)
    else:
        raise block.broken(f"{shown!r} cannot be run: see tests/docs/shell.py and tests/docs/not_run.py")


def _redirected(block: Block, words: list[str], folder: Path) -> tuple[str, list[str], Path | None]:
    """Split off a command's input and output redirections."""
    stdin, output = "", None
    if "|" in words:
        feeder, words = words[: words.index("|")], words[words.index("|") + 1 :]
        if len(feeder) != 2 or feeder[0] not in ("echo", "cat"):
            raise block.broken(f"{shlex.join(feeder)!r}: only `echo TEXT` and `cat FILE` are supported before a pipe")
        stdin = feeder[1] + "\n" if feeder[0] == "echo" else (folder / feeder[1]).read_text(encoding="utf-8")
    if ">" in words:
        output, words = folder / words[words.index(">") + 1], words[: words.index(">")]
    if not words or set(words) & {"|", ">", "<", "&", ">>"}:
        raise block.broken(f"{shlex.join(words)!r} uses shell syntax that tests/docs/shell.py does not support")
    return stdin, words, output


def parse(block: Block, words: list[str]) -> None:
    """Check that the parser of the command line accepts a command."""
    try:
        arguments, rest = build_parser().parse_known_args(words)
    except SystemExit:
        raise block.broken(f"{shlex.join(words)!r} is refused by the parser") from None
    if rest and arguments.command not in {"run", "learn", "sweep"}:
        raise block.broken(f"{shlex.join(words)!r}: the parser does not know {shlex.join(rest)!r}")
    parse_overrides(rest)


def _check_program(block: Block, words: list[str], folder: Path) -> None:
    """Check the arguments of a program that is not run: the targets, extras and files that they name must exist."""
    missing: set[str] = set()
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = {word for word in words[1:] if "=" not in word}
        missing = targets - set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    elif words[0] == "pip":
        with open(ROOT / "pyproject.toml", "rb") as handle:
            extras = tomllib.load(handle)["project"]["optional-dependencies"]
        missing = set(re.findall(r"(?:continual-petl|\.)\[(\w+)\]", shlex.join(words))) - set(extras)
    elif words[0] == "torchrun":
        missing = {word for word in words if word.endswith(".py")} - {path.name for path in folder.iterdir()}
    if missing:
        raise block.broken(f"{shlex.join(words)!r} names something that does not exist: {', '.join(sorted(missing))}")

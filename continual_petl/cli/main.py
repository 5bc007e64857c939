"""The command line: run a command, and turn its errors into messages and exit codes.

Nothing heavy is imported here; each command imports what it needs when it runs, so that --help is fast.

Exit codes: 0 all is well; 1 a check failed (something was forgotten, a store is damaged); 2 the input cannot
be used; 3 an internal error; 4 another process is writing to the run; 128 + n ended by signal n (130 for Ctrl-C), after
which the same command resumes.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from continual_petl.cli.parser import build_parser, check_command, check_option, commands, take_task, unrecognised
from continual_petl.errors import (
    ExportError,
    ForgettingError,
    InputError,
    Interrupted,
    IsolationError,
    RunInUseError,
    StoreError,
    StreamFileError,
    printable,
)

_OF_THE_DISK = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EXDEV, errno.EMFILE, errno.ENFILE
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        parser = build_parser(words[0] if words else None)
    except InputError as error:  # of a command that an installed package adds
        return _fail(str(error), 2)
    check_command(parser, words)
    arguments, rest = parser.parse_known_args(words)
    # argparse reads TASK and TEXT ... only once, so those that follow an option are left over.
    if arguments.takes_task:
        rest = take_task(arguments, rest)
    if arguments.command == "predict":
        end = rest.index("--") if "--" in rest else len(rest)  # everything after it is a text
        arguments.texts += [word for word in rest[:end] if not word.startswith("--")] + rest[end + 1 :]
        rest = [word for word in rest[:end] if word.startswith("--")]
    try:
        overrides = (
            parse_overrides(rest, arguments.command)
            if arguments.takes_overrides
            else _none_left(parser, rest, arguments.command)
        )
        with _ending_at_signals():
            if getattr(arguments, "remote_code", False):
                runs = getattr(arguments, "runs", None) or [arguments.run, getattr(arguments, "other", arguments.run)]
                for run in dict.fromkeys(runs):
                    importlib.import_module("continual_petl.hub.open_anywhere").allow_kinds_anywhere(run)
            code = commands(arguments.command)[arguments.command].execute(arguments, overrides)
        sys.stdout.flush()
        return code
    except StreamFileError as error:
        subject = {"learn": "task", "sweep": "sweep"}.get(arguments.command, "stream")
        return _fail("\n".join([f"the {subject} cannot be used:", *error.problems]), 2)
    except (InputError, RunInUseError, ExportError, ForgettingError, IsolationError, StoreError) as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 4 if isinstance(error, RunInUseError) else 1)
    except Interrupted as error:
        return _fail(str(error), 128 + error.signal_number)
    except KeyboardInterrupt:
        return _fail(when_stopped("stopped", arguments), 130)
    except _Ended:
        return _fail(when_stopped("ended by SIGTERM", arguments), 143)
    except BrokenPipeError:
        return _unread()
    except Exception as error:  # the disk, or a bug, which is shown with its traceback
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _fail(f"{error.filename}: this name is longer than the system allows; give a shorter path", 2)
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            file = "a file" if error.filename is None else os.fsdecode(error.filename)
            return _fail(f"{file}: {error.strerror}; free up space on that disk, or repair the permissions", 1)
        print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr, end="")
        return _fail("this is a bug in continual-petl, not in your input; please report it with the lines above", 3)


def parse_overrides(rest: Sequence[str], command: str = "run") -> list[tuple[str, str]]:
    """Turn ``--key value`` and ``--key=value`` into pairs; the stream's schema decides which keys are valid.

    Raises:
        InputError: if a word is not an option, a value is missing, or an option of the command is misspelt.
    """
    overrides: list[tuple[str, str]] = []
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise InputError(f"{word!r} is not understood here; options are written --key VALUE, see --help")
        key, equals, value = word[2:].partition("=")
        check_option(command, key, has_value=bool(equals) or (bool(words) and not words[0].startswith("--")))
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"--{key}: a value is missing; write --{key} VALUE")
            value = words.pop(0)
        overrides.append((key, value))
    return overrides


class _Ended(BaseException):
    """Raised on SIGTERM, like KeyboardInterrupt on SIGINT: `except Exception` does not catch it."""


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """Exit a command cleanly on SIGTERM and Ctrl-C; while a run is learning, its own handlers take precedence."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        raise _stop(number)

    handled = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as under nohup
        handled.append(signal.SIGINT)
    before = {number: signal.getsignal(number) for number in handled}
    try:
        for number in handled:
            signal.signal(number, end)
        yield
    except BaseException:
        if received:  # compiled code, such as pydantic's, can replace the handler's exception with its own
            raise _stop(received[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else _Ended()


def _none_left(parser: argparse.ArgumentParser, rest: Sequence[str], command: str) -> list[tuple[str, str]]:
    if rest:
        parser.error(unrecognised(command, rest))
    return []


def _unread() -> int:
    """Return the exit code for a closed output pipe, as with ``| head``."""
    # Python would flush the buffer at exit and fail again.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _fail(message: str, code: int) -> int:
    print("continual-petl: " + printable(message, keep="\n"), file=sys.stderr)
    return code


def when_stopped(how: str, arguments: argparse.Namespace) -> str:
    """Return the message after Ctrl-C or SIGTERM outside of training: what is saved, and what the same command does next.

    Args:
        how: the first words of the message, such as ``stopped``.
        arguments: the arguments of the command; `learn_and_show` adds ``all_learned``.
    """
    if getattr(arguments, "all_learned", False):
        return f"{how} after all tasks were learned and saved; the same command shows the result"
    if arguments.command not in ("run", "learn", "sweep"):
        return f"{how}; the same command starts again from the beginning"
    return f"{how}; everything saved so far is kept: run the same command again to continue"

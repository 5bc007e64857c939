"""The exceptions of this package, and helpers for the texts of their messages.

Every message is one paragraph that says where the problem is, which value was given, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, characters that change the text direction, and lone surrogates."""
LONGEST_TYPO = 100
"""Names longer than this many characters are not checked for typos."""


Key = tuple[str | int, ...]
"""Path to a key of a stream file: key names and list indices, outermost first."""


def _rebuilt(kind: type[Exception], arguments: tuple[object, ...], attributes: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


class _Sendable(Exception):
    """Errors that reach another process with all their attributes: Python would call them with their message alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class InputError(_Sendable, ValueError):
    """Invalid input: a stream file, an argument, data, a backbone. Exit code 2.

    Args:
        message: one paragraph.
        key: the stream file's key that the error is about, as far as the raising code knows it: for example, the key of a
            column without the key of its task, which `continual_petl.engine.checks.mistakes` prepends.
    """

    from_top = False
    """Whether ``key`` starts at the top level of the stream."""

    def __init__(self, *message: object, key: Key = ()) -> None:
        self.key = key
        super().__init__(*message)


class MissingDataError(InputError):
    """A data file or folder does not exist.

    Args:
        message: one paragraph.
        path: the missing file or folder.
    """

    def __init__(self, message: str, path: str) -> None:
        self.path = path
        super().__init__(message)


class UnusableRowError(InputError):
    """A row to predict cannot be used by its task, as the tokenizer or the backbone shows. Exit code 2.

    Args:
        message: one paragraph; numbers the row among all that were given.
        reason: the same for a caller that gave a single row, and names it in another way.
    """

    def __init__(self, message: str, reason: str) -> None:
        self.reason = reason
        super().__init__(message)


class DivergedError(InputError):
    """A loss or bank is no longer finite; use another learning rate. Exit code 2."""


class MemoryRanOutError(InputError):
    """Memory ran out while a batch was computed; use smaller batches or shorter rows. Exit code 2."""


PATHS_COUNT = (
    " Relative paths are relative to data_dir, or else to the stream file's folder; for a data set on the Hub, write data: "
    "{path: NAME}."
)
"""Ends every message about missing data."""


class StreamFileError(InputError):
    """A stream or stream file has mistakes; all of them are in ``problems``, one paragraph each.

    The note on relative paths is given once, after the last missing path.

    Args:
        problems: the paragraphs.
        keys: the key that each paragraph is about, as in `InputError`.
    """

    def __init__(self, problems: Sequence[str], keys: Sequence[Key] | None = None) -> None:
        last = {number for number, problem in enumerate(problems) if problem.endswith(PATHS_COUNT)}
        kept = max(last, default=0)
        self.problems = tuple(
            problem.removesuffix(PATHS_COUNT) if number in last and number != kept else problem
            for number, problem in enumerate(problems)
        )
        self.keys: tuple[Key, ...] = ((),) * len(self.problems) if keys is None else tuple(keys)
        super().__init__("\n".join(self.problems))


def why_unavailable(error: InputError) -> str:
    """Return why data cannot be read; if it is missing, name only its path, since it may have been removed on purpose."""
    return f"there is no {error.path}" if isinstance(error, MissingDataError) else str(error)


def raise_problems(problems: Sequence[str], keys: Sequence[Key] | None = None) -> None:
    """Raise the distinct problems: one as `InputError`, several as `StreamFileError`; do nothing if there are none.

    Args:
        problems: the paragraphs.
        keys: the key that each paragraph is about, as in `InputError`.
    """
    distinct: dict[str, Key] = {}
    for problem, key in zip(problems, keys or [()] * len(problems), strict=True):
        distinct.setdefault(problem, key)
    if len(distinct) == 1:
        ((problem, key),) = distinct.items()
        raise InputError(problem, key=key)
    if distinct:
        raise StreamFileError(list(distinct), list(distinct.values()))


@contextmanager
def about(*key: str | int) -> Iterator[None]:
    """Set the key of an `InputError` raised inside the block, unless it already has one."""
    try:
        yield
    except StreamFileError as error:
        error.keys = tuple(each or key for each in error.keys)
        raise
    except InputError as error:
        error.key = error.key or key
        raise


class StoreError(RuntimeError):
    """A folder is a damaged run or no run at all (exit code 1), or another process writes to it (`RunInUseError`)."""


class RunInUseError(StoreError):
    """Another process writes to the run folder; the same command works once it has ended. Exit code 4."""


class IsolationError(RuntimeError):
    """Something outside the active bank was, or could have been, trained. Exit code 1."""


class ForgettingError(RuntimeError):
    """A backbone, an earlier bank or an earlier prediction has changed. Exit code 1."""


class ExportError(RuntimeError):
    """Exported files do not compute what the bank computes; nothing was written. Exit code 1."""


class Interrupted(_Sendable, RuntimeError):
    """Learning was stopped from outside (Ctrl-C, SIGTERM); the run folder can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(message)


def printable(text: str, *, keep: str = "") -> str:
    r"""Return ``text`` with terminal control characters escaped, for display; files and JSON keep the original.

    Args:
        text: may contain untrusted label names and texts.
        keep: control characters to keep, such as a line feed.

    Example:
        >>> print(printable("\x1b[2Jgood\r"))
        \x1b[2Jgood\r
    """
    return _COMMANDS.sub(lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode("ascii"), text)


def check_choice(argument: str, given: object, allowed: Iterable[str]) -> None:
    """Raise `InputError` unless an argument is one of the allowed values; the message names the most similar one."""
    known = list(allowed)
    if given not in known:
        guess = did_you_mean(given, known) if isinstance(given, str) else ""
        raise InputError(f"{argument}: got {given!r:.80}{guess}; allowed: {', '.join(known)}")


def check_names(argument: str, given: object) -> None:
    """Raise `InputError` if a single name was given where several are expected: its letters would be read as names."""
    if isinstance(given, str):
        raise InputError(f"{argument}: got the text {given!r}; give a list of names: [{given!r}]")


def quoted(path: object) -> str:
    """Return a path as one word of a command line, for commands in messages.

    Example:
        >>> print(quoted("runs/mine"), quoted("my runs/a"))
        runs/mine 'my runs/a'
    """
    return shlex.quote(str(path))


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """Return a hint for a message about an unknown name: the most similar known name, or an empty string.

    Args:
        wanted: the unknown name.
        known: the known names.

    Example:
        >>> did_you_mean("streem.yaml", ["stream.yaml", "other.yaml"])
        " (did you mean 'stream.yaml'?)"
    """
    guess = difflib.get_close_matches(wanted[:LONGEST_TYPO], list(known), n=1)
    return f" (did you mean {guess[0]!r}?)" if guess else ""


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun; ``many`` is needed only for irregular plurals.

    Example:
        >>> counted(1, "row"), counted(1_234, "row")
        ('1 row', '1,234 rows')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def named_tasks(tasks: Sequence[str]) -> str:
    """Return text that names the given tasks, such as "task 'a'" or "tasks 'a', 'b'".

    Example:
        >>> named_tasks(["a"]), named_tasks(["a", "b"])
        ("task 'a'", "tasks 'a', 'b'")
    """
    return ("task " if len(tasks) == 1 else "tasks ") + known_names([*map(repr, tasks)])


MAX_NAMES = 20
"""Maximum number of names that a message lists."""


def known_names(known: Sequence[str], wanted: object = "", *, limit: int = MAX_NAMES) -> str:
    """Return the known names as text, for a message about an unknown one.

    Args:
        known: the known names; their order is kept if none is similar.
        wanted: the unknown name; similar names come first.
        limit: maximum number of names listed.

    Example:
        >>> known_names(["sst2", "agnews", "trec"], "ag_news")
        'agnews, sst2, trec'
    """
    alike = difflib.get_close_matches(wanted, known, n=5) if isinstance(wanted, str) else []
    names = [*alike, *(name for name in known if name not in set(alike))]
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "none") + more


def show(value: object, width: int = 60) -> str:
    """Return ``value`` as a short ``repr``."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= width else f"{text[: width - 3]}..."

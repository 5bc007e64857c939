"""The definition of a fuzz target, and a function that tries one input on it within limits on time and memory."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from types import FrameType

MAX_SECONDS = 30.0
"""CPU time that one input may take: far more than any reader needs on a slow machine, so only unbounded work exceeds it. It
is not wall-clock time, since other processes must not cause findings."""
MAX_BYTES = 500 * 2**20
"""Memory by which one input may raise the peak use of the process."""
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Args:
        name: the name of the target, and of its folder in the corpus.
        check: reads its argument; if it refuses an input, it may raise only ``allowed`` errors.
        allowed: the errors with which an input may be refused.
        make_seeds: returns valid inputs to start from.
        make_tokens: returns fragments of the input language, which mutations insert.
        generate: returns an input generated from a grammar, if there is one for this target.
    """

    name: str
    check: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]
    make_seeds: Callable[[], list[bytes]]
    make_tokens: Callable[[], list[bytes]]
    generate: Callable[[Random], bytes] | None = None

    @cached_property
    def seeds(self) -> list[bytes]:
        """Valid inputs, and past findings."""
        return [*self.make_seeds(), *(path.read_bytes() for path in corpus(self.name))]

    @cached_property
    def tokens(self) -> list[bytes]:
        """Fragments of the input language."""
        return self.make_tokens()


@dataclass(frozen=True)
class Finding:
    """An input that was neither accepted nor properly refused."""

    data: bytes
    what: str
    """The error and where it was raised, or the limit that was exceeded; the same error is reported only once."""


def corpus(name: str) -> list[Path]:
    """Return the files with past findings of a target."""
    folder = CORPUS / name
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def attempt(
    target: Target, data: bytes, *, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES
) -> Finding | None:
    """Try one input; return a finding if it is neither accepted nor properly refused."""
    before, begin = _peak(), time.process_time()
    try:
        with _alarm(3 * max_seconds):
            target.check(data)
    except target.allowed:
        pass
    except _TooSlow:
        return Finding(data, f"still going on after {3 * max_seconds:g} s")
    except Exception as error:
        return Finding(data, f"{type(error).__name__}: {_place(error)}")
    if (seconds := time.process_time() - begin) > max_seconds:
        return Finding(data, f"took {seconds:.1f} s")
    if (grown := _peak() - before) > max_bytes:
        return Finding(data, f"took {grown / 2**20:.0f} MiB")
    return None


class _TooSlow(BaseException):
    """Not an `Exception`, so that no reader catches it."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "continual_petl" in frame.filename or "streams" in frame.filename]
    last = frames[-1]
    nearest = ours[-1] if ours else last
    return f"{Path(nearest.filename).name}:{nearest.name} > {Path(last.filename).name}:{last.name}:{last.lineno}"

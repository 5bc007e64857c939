"""A fuzz target, and running one input on it within limits of time and memory."""

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
"""Processor time that one input may take: far more than any reader needs on a slow machine, so that what is found has no
bound at all. Not time on the clock: other processes must not make findings."""
MAX_BYTES = 500 * 2**20
"""Memory that one input may add to the highest use so far."""
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Args:
        name: also of its folder in the corpus.
        check: reads its argument; may raise only what is ``allowed``, for an input that is refused.
        allowed: the errors that are an answer.
        make_seeds: sound inputs to begin with.
        make_tokens: pieces of the language, put in by mutations.
        generate: an input by grammar, if the language has one here.
    """

    name: str
    check: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]
    make_seeds: Callable[[], list[bytes]]
    make_tokens: Callable[[], list[bytes]]
    generate: Callable[[Random], bytes] | None = None

    @cached_property
    def seeds(self) -> list[bytes]:
        """Sound inputs, and what was found before."""
        return [*self.make_seeds(), *(path.read_bytes() for path in corpus(self.name))]

    @cached_property
    def tokens(self) -> list[bytes]:
        """Pieces of the language."""
        return self.make_tokens()


@dataclass(frozen=True)
class Finding:
    """An input that got another answer than it may."""

    data: bytes
    what: str
    """The error and where it was raised, or the bound that was passed; two findings of one fault have the same."""


def corpus(name: str) -> list[Path]:
    """Return the files that were found once for a target."""
    folder = CORPUS / name
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def attempt(
    target: Target, data: bytes, *, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES
) -> Finding | None:
    """Try one input; return what is wrong with the answer, None if nothing is."""
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

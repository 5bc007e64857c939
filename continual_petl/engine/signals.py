"""Handle Ctrl-C and SIGTERM during a run: finish the step, save and end. A second signal ends the run at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from continual_petl.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


_AT_ONCE = "ended at once, after a second signal; saved progress is kept, and the same command resumes from there"


class StopRequest:
    """Records whether a stop was requested."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.at_once = False
        """Whether a second signal arrived."""
        self._listener: Callable[[int], None] | None = None
        self.handlers: dict[int, Callable[[int, FrameType | None], None]] = {}
        """The installed signal handlers, by signal number; empty outside the main thread."""

    def on_signal(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the number of the first signal, now if it has arrived already; replaces the old listener."""
        self._listener = listener
        if self.signal_number is not None:
            listener(self.signal_number)

    def receive(self, number: int) -> None:
        """Record a signal; the second one raises `KeyboardInterrupt` immediately.

        For SIGTERM, `listening` turns this exception into `Interrupted`, so that the exit code is correct.
        """
        if self.signal_number is not None:
            self.signal_number = number
            self.at_once = True
            raise KeyboardInterrupt
        self.signal_number = number
        if self._listener is not None:
            self._listener(number)

    def stop_here(self, where: str, again: str = "resumes from here") -> None:
        """Raise `Interrupted` if a stop was requested; called only where everything needed to resume is saved.

        Args:
            where: where the run stops.
            again: what running the same command again will do.
        """
        if self.signal_number is not None:
            raise Interrupted(f"stopped {where}; the same command {again}", self.signal_number)


@contextmanager
def fitting(request: StopRequest, what: str) -> Iterator[None]:
    """Translate the exceptions with which Lightning would end the process during a fit into this package's exceptions.

    Args:
        request: the run's stop request.
        what: what is being fitted, such as ``task 'reviews'``.

    Raises:
        KeyboardInterrupt: for a second signal.
        Interrupted: for a SIGTERM that arrived before `KeepSignals` was installed.
    """
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        request.stop_here(f"while {what} was being started; its saved progress is kept")
        raise


@contextmanager
def listening(*, first_of: Collection[int] | None = None) -> Iterator[StopRequest]:
    """Catch both signals inside the ``with`` block. Outside the main thread this does nothing.

    A signal that this process was started to ignore (by nohup, or because another process handles Ctrl-C) stays ignored.

    Args:
        first_of: in a worker, the signals that ask it to save and end; only the first one counts. A signal sent to a whole
            process group arrives there twice: from its sender and from the main process. To end a worker at once, send two
            signals to the main process.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if first_of is None or (number in first_of and request.signal_number is None):
            request.receive(number)

    handled = [number for number in SIGNALS if first_of is not None or signal.getsignal(number) is not signal.SIG_IGN]
    request.handlers = dict.fromkeys(handled, handle)
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield request
    except BaseException:
        if not request.at_once:
            raise
        # Compiled extensions, such as pydantic-core, may replace the handler's exception with one of their own.
        if request.signal_number == signal.SIGTERM:
            raise Interrupted(_AT_ONCE, signal.SIGTERM) from None
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

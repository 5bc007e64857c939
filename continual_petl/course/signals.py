"""Ctrl-C and SIGTERM while a course runs: finish the step, save, end. A second one ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import lightning as L
from typing_extensions import override

from continual_petl.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


_AT_ONCE = "ended at once, at a second signal; what was saved stands, and the same command resumes from there"


class StopRequest:
    """Whether someone asked the course to end."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._listener: Callable[[int], None] | None = None
        self.handlers: dict[int, Callable[[int, FrameType | None], None]] = {}
        """What catches the signals, by their number; empty outside the main thread."""

    def tell(self, listener: Callable[[int], None]) -> None:
        """Call ``listener``, and no earlier one, with the number of the signal when one comes, or now if one came already."""
        self._listener = listener
        if self.signal_number is not None:
            listener(self.signal_number)

    def receive(self, number: int) -> None:
        """Take note of a signal; the second one raises `KeyboardInterrupt` where it strikes.

        `listening` makes `Interrupted` of that if it was SIGTERM, so that the exit code says so.
        """
        if self.signal_number is not None:
            self.signal_number = number
            raise KeyboardInterrupt
        self.signal_number = number
        if self._listener is not None:
            self._listener(number)

    def stop_here(self, where: str) -> None:
        """Raise `Interrupted` if a stop was asked for; called wherever the next start finds what it needs."""
        if self.signal_number is not None:
            raise Interrupted(f"stopped {where}; the same command resumes from here", self.signal_number)


class KeepSignals(L.Callback):
    """Catch the signals also while Lightning's Trainer runs.

    The Trainer puts a handler of its own in front at the start of every fit; on SIGTERM it would end the process at the
    next batch, validation included, whether or not the progress is saved there.
    """

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number, handler in self._request.handlers.items():
            signal.signal(number, handler)


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Catch both signals inside the ``with`` block. Outside the main thread nothing can be caught, and nothing is.

    A signal that this process was started to ignore (by nohup, or because another process minds Ctrl-C for it) stays ignored.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        request.receive(number)

    minded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    request.handlers = dict.fromkeys(minded, handle)
    before = {number: signal.signal(number, handle) for number in minded}
    try:
        yield request
    except KeyboardInterrupt:
        if request.signal_number == signal.SIGTERM:
            raise Interrupted(_AT_ONCE, signal.SIGTERM) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

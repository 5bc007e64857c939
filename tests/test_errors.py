"""Errors with arguments of their own stay the same when they are sent to another process."""

from __future__ import annotations

import pickle
import signal

import pytest

from continual_petl.errors import InputError, Interrupted, MissingDataError, StreamFileError, UnusableRowError

ERRORS = [
    InputError("a message", key=("tasks", 0)),
    MissingDataError("a message", "rows.csv"),
    UnusableRowError("a message", "a reason"),
    StreamFileError(["one", "two"], [("name",), ("tasks", 1)]),
    Interrupted("a message", signal.SIGTERM),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_the_same_in_another_process(error: Exception) -> None:
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), vars(sent)) == (type(error), str(error), vars(error))

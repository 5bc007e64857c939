"""The loop of a worker: read requests as lines of JSON and write replies as lines of JSON, until the input ends.

A request is ``{"do": NAME, ...arguments}``, a reply ``{"answer": ...}`` or ``{"error": "...", "trace": "..."}``. Only the
standard library is used: this runs in environments where this project is not installed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Command = Callable[..., Any]


def serve(commands: Mapping[str, Command]) -> None:
    """Handle requests until standard input ends.

    Args:
        commands: the commands by name; each takes the request's other keys as arguments and returns a JSON value.
    """
    # Output that libraries print must not be mixed with the replies.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with answers:
        answer_all(sys.stdin, answers, commands)


def answer_all(requests: TextIO, answers: TextIO, commands: Mapping[str, Command]) -> None:
    """Write one line to ``answers`` for each line of ``requests``; errors are reported in the same way."""
    for line in requests:
        try:
            request = json.loads(line)
            name = request.pop("do")
            if name not in commands:
                raise ValueError(f"there is no command {name!r}; the commands are {', '.join(sorted(commands))}")
            answer = {"answer": commands[name](**request)}
        except Exception as error:  # any error is reported to the client, which decides what to do
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

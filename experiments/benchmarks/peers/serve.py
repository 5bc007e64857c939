"""The loop of a worker: requests come in as lines of JSON, answers go out as lines of JSON, until the input ends.

A request is ``{"do": NAME, ...arguments}``, an answer ``{"answer": ...}`` or ``{"error": "...", "trace": "..."}``. Only
the standard library is used: this runs in environments where nothing of this project is installed.
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
    """Answer requests until standard input ends.

    Args:
        commands: what can be asked for; each takes the request's other keys and returns something that JSON can hold.
    """
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with answers:
        answer_all(sys.stdin, answers, commands)


def answer_all(requests: TextIO, answers: TextIO, commands: Mapping[str, Command]) -> None:
    """Answer each line of ``requests`` by one line of ``answers``; an error is an answer, too."""
    for line in requests:
        try:
            request = json.loads(line)
            name = request.pop("do")
            if name not in commands:
                raise ValueError(f"there is no command {name!r}; there are {', '.join(sorted(commands))}")
            answer = {"answer": commands[name](**request)}
        except Exception as error:  # whatever a peer raises is reported to the other side, which decides
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

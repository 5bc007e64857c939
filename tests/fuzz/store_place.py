"""A small run whose files are overwritten repeatedly, and edits of JSON, for the fuzz targets of the store.

An edit is a line of JSON, ``[path, value]``: the entry at the path (keys and indices) is replaced by the value; if
there is a third element, the entry is removed.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from continual_petl import Run, learn
from continual_petl.engine.commands import forget
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from tests.fuzz.dictionary import ODD_TEXTS
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import make_model, make_tokenizer


class Place:
    """A run whose files are overwritten and restored repeatedly."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-store-"))
        backbone, run = self.folder / "bert", self.folder / "run"
        make_model("bert").save_pretrained(backbone)
        make_tokenizer("bert").save_pretrained(backbone)
        tasks = [task("one", num_rows=8), task_of_kind("token-classification", "two", num_rows=8)]
        learn(stream(backbone, [*tasks, task("gone", num_rows=8)], training={"epochs": 1}), run)
        self.session: Session = forget(run, "gone").session
        self.run = run
        self.files = {name: (run / name).read_bytes() for name in (*FILES.values(), BANK, PROBE)}
        # Verifying the whole run is slow, so it is done only once.
        assert all(check.ok for check in Run(run, session=self.session).verify())

    def put(self, name: str, content: bytes) -> Path:
        """Write a file of the run."""
        path = self.run / name
        path.write_bytes(content)
        return path

    def restore(self, *names: str) -> None:
        """Write the original content of files back."""
        for name in names:
            self.put(name, self.files[name])


FILES = {
    "certificate": "banks/one/bank.json",
    "ledger": "ledger.jsonl",
    "pin": "backbone.json",
}
BANK, PROBE = "banks/one/bank.safetensors", "banks/one/probe.safetensors"


@cache
def the_place() -> Place:
    """Return this process's run, which is learned on the first call."""
    return Place()


def edited_by(value: Any, data: bytes) -> Any:
    """Return a value after at most eight edits, converted to JSON and back."""
    for line in data.split(b"\n")[:8]:
        try:
            edit = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(edit, list) and len(edit) in (2, 3) and isinstance(edit[0], list):
            _apply(value, *edit[:2], gone=len(edit) == 3)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise InputError("no JSON") from error


def _apply(value: Any, path: list[Any], new: Any, *, gone: bool) -> None:
    try:
        for key in path[:-1]:
            value = value[key]
        if gone:
            del value[path[-1]]
        else:
            value[path[-1]] = new
    except (LookupError, TypeError):
        pass


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every path into a value."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, inner in below for deeper in paths_of(inner, (*path, key)))]


VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        -1,
        0.0,
        -0.0,
        1e308,
        5e-324,
        2**31,
        2**53,
        2**63,
        2**64,
        -(2**63),
        10**30,
        10**300,
    ),
    *(10**4299, [], {}, [[]], "", [0], ["a"], [1] * 300, "one", "two", "gone", "x" * 3000, {"a": 1}, [10**9, 10**9]),
    *(
        "bf16",
        "fp32",
        "float64",
        "int8",
        "complex64",
        "regression",
        "classification",
        "multilabel",
        "token-classification",
    ),
    *("seq2seq", "causal-lm", "image-classification", "mean", "first", "last", "pooler", "0" * 64, "f" * 64, "shared"),
    *ODD_TEXTS,
)

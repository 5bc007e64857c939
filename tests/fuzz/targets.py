"""Fuzz targets for files and options that users write, by name; those for run folders are in `tests.fuzz.store_targets`.

To fuzz another reader, write a function that takes bytes, and add it to `TARGETS`.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from continual_petl.cli.main import parse_overrides
from continual_petl.errors import InputError
from continual_petl.report.beside import read_trials
from continual_petl.streams.preparation.labels import read_label_names
from continual_petl.streams.schema.field_types import Name
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_stream, load_task
from tests.fuzz import seeds
from tests.fuzz.data_target import DATA_FILES
from tests.fuzz.dictionary import json_tokens, override_tokens, yaml_tokens
from tests.fuzz.grammar import document
from tests.fuzz.messages_target import MESSAGES
from tests.fuzz.saved_target import SAVED_FOLDERS
from tests.fuzz.target import Target

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
BASE = b"""\
name: base
backbone: minilm
bank: {preset: mam}
tasks:
  - {name: a, kind: classification, data: {train: [{text: x, label: y}]}}
  - {name: b, kind: regression, data: {path: json, data_files: {train: [a.jsonl]}}, bank: lora}
"""
"""The stream to which overrides are applied."""
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def _file(data: bytes, name: str = "input.yaml") -> Path:
    path = _FOLDER / name
    path.write_bytes(data)
    return path


def check_stream(data: bytes, overrides: Sequence[tuple[str, str]] = ()) -> None:
    """Read a stream file; check that its names are safe, and that it is the same after it is written and read again."""
    path = _file(data)
    spec = load_stream(path, overrides)
    safe_names(spec)
    try:
        again = load_stream(_file(dump_stream(spec).encode(), "again.yaml"))
    except InputError as error:
        raise AssertionError(f"what was read cannot be written and read again: {error}") from error
    # repr, because NaN is not equal to itself.
    assert again == spec or repr(again) == repr(spec), "a different stream was read back"
    StreamSpec.anchored(spec)
    for task in spec.tasks:
        spec.resolved_training(task)
        spec.resolved_bank(task)
        spec.resolved_data(task)
        spec.resolved_labels(task)
        spec.resolved_chat(task)
        spec.resolved_all_labels(task)


def safe_names(spec: StreamSpec) -> None:
    """Assert that every name that becomes a folder is a single short path component of plain characters."""
    for name in (spec.name, *(task.name for task in spec.tasks)):
        assert name.isascii()
        assert 0 < len(name) <= 64
        assert not set(name) & set("/\\:\0\n\r\x1b ")
        assert name.strip(".") == name.lstrip("."), name
        assert name != ".."


def check_task(data: bytes) -> None:
    """Read a file of one task."""
    task = load_task(_file(data, "task.yaml"))
    assert _NAME.validate_python(task.name) == task.name


def check_overrides(data: bytes) -> None:
    """Apply options to a stream: the first line is a key, the second its value, and so on."""
    words = data.decode("utf-8", "surrogateescape").split("\n")
    pairs = list(zip(words[::2], words[1::2], strict=False))
    check_stream(BASE, pairs)


def check_command_line(data: bytes) -> None:
    """Parse command-line words, one per line, and apply them to a stream."""
    check_stream(BASE, parse_overrides(data.decode("utf-8", "surrogateescape").split("\n")))


def check_labels(data: bytes) -> None:
    """Read a file of labels; check that the names are distinct and can be encoded as UTF-8."""
    names = read_label_names(_file(data, "labels.json"))
    assert len(names) == len(set(names)) >= 2
    "".join(names).encode()


def check_trials(data: bytes) -> None:
    """Read results of other packages; check that what is shown and printed of them can be shown and printed."""
    for trial in read_trials(_file(data, "others.jsonl"), seeds.TRIAL_TASKS):
        assert 0 <= trial.metrics["ACC"] <= 1 or math.isnan(trial.metrics["ACC"])
        json.dumps(trial.to_json(), ensure_ascii=False, allow_nan=False).encode()


def _task_document(draw: Random) -> bytes:
    return document(draw, "TaskSpec")


TARGETS = {
    target.name: target
    for target in (
        Target("stream", check_stream, (InputError,), seeds.streams, yaml_tokens, document),
        Target("task", check_task, (InputError,), seeds.tasks, yaml_tokens, _task_document),
        Target("overrides", check_overrides, (InputError,), seeds.overrides, override_tokens),
        Target("cli-overrides", check_command_line, (InputError,), seeds.overrides, override_tokens),
        Target("labels", check_labels, (InputError,), seeds.labels, json_tokens),
        Target("trials", check_trials, (InputError,), seeds.trials, json_tokens),
        DATA_FILES,
        SAVED_FOLDERS,
        MESSAGES,
    )
}

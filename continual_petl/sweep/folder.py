"""The folder of a sweep: its initial settings (only the number of trials and the order of keys may change), and its results.

::

    sweeps/NAME/
      sweep.json       the sweep, with the number of trials of the last call
      swept.yaml       the stream
      study.jsonl      Optuna studies, with digests of the tasks' rows, and with settings, scores by epoch, seconds,
                       parameters and environment of every trial
      trials/          folders of running trials
      chosen.yaml      the stream with the chosen settings
      summary.json     the results
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, StoreError, counted
from continual_petl.store.files.atomic import make_folder, write_file, write_json
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.dump import dump_stream, without_unused_settings
from continual_petl.streams.stream_file.yaml_nodes import parse
from continual_petl.sweep.result import SweepResult
from continual_petl.sweep.settings import described
from continual_petl.sweep.spec import SweepSpec

SWEEP, SWEPT, CHOSEN, SUMMARY = "sweep.json", "swept.yaml", "chosen.yaml", "summary.json"
_MAY_CHANGE = {"trials"}
"""Settings that may differ from those the sweep was started with: with more trials, the earlier search is continued; with
fewer, only its first trials are used."""
_MAX_LISTED = 8


def open_folder(folder: Path, sweep: SweepSpec, spec: StreamSpec) -> None:
    """Write the settings of a new sweep, or, if the folder already holds a sweep, compare them with its original settings.

    Raises:
        InputError: if the sweep in the folder was started with different settings, which the message lists, or written by
            a version before Optuna's studies.
        StoreError: if the folder cannot be written or read.
    """
    text = dump_stream(without_unused_settings(spec.anchored()))
    plain = sweep.model_dump(mode="json")
    if (folder / "stream.yaml").exists():
        raise InputError(
            f"--run-dir {folder}: this is the folder of a run; give the sweep another folder, such as sweeps/{spec.name}"
        )
    if (folder / "trials.jsonl").exists():
        raise InputError(
            f"--run-dir {folder}: the sweep in this folder was written by an earlier version, and cannot be continued: give "
            "another --run-dir"
        )
    if not (folder / SWEEP).exists():
        make_folder(folder)
        # The sweep is written last: if it exists, the stream does too.
        write_file(folder / SWEPT, text.encode())
        write_json(folder / SWEEP, {"format_version": 1, "sweep": plain})
        return
    try:
        written = json.loads((folder / SWEEP).read_bytes())
        known = written["sweep"]
        before = parse((folder / SWEPT).read_text("utf-8")).tree
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{folder}: its {SWEEP} or {SWEPT} cannot be read ({error}): start in another folder"
        ) from None
    kept = {key: value for key, value in plain.items() if key not in _MAY_CHANGE}
    changed = [*_changes(("sweep",), {k: v for k, v in known.items() if k not in _MAY_CHANGE}, kept)]
    changed += _changes(("stream",), before, parse(text).tree)
    if changed:
        more = f", and {len(changed) - _MAX_LISTED} more" if len(changed) > _MAX_LISTED else ""
        raise InputError(
            f"--run-dir {folder}: this sweep was started with different settings: {'; '.join(changed[:_MAX_LISTED])}{more}. "
            "Its trials cannot be compared with new ones: give another --run-dir, or restore the old settings."
        )
    if known != plain:
        write_json(folder / SWEEP, {**written, "sweep": plain})


def _changes(path: tuple[str, ...], before: Any, now: Any) -> Iterator[str]:
    """Yield a description of each difference between two trees of plain data."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _changes((*path, str(key)), before.get(key), now.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes((*path, _named(old, number)), old, new)
    elif before != now:
        yield f"{'.'.join(path)} was {_shown(before)}, is {_shown(now)}"


def _named(entry: Any, number: int) -> str:
    return str(entry.get("name", number)) if isinstance(entry, dict) else str(number)


def _shown(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def write_result(result: SweepResult) -> None:
    """Write the results of a sweep, and the stream with the chosen settings if there are any."""
    write_json(result.folder / SUMMARY, result.to_json())
    lines = [
        f"# {choice.task}: {described(choice.settings)}; validation {choice.metric} {choice.score:.4f}\n"
        for choice in result.tasks.values()
        if choice.settings is not None and choice.score is not None
    ]
    if not lines:
        (result.folder / CHOSEN).unlink(missing_ok=True)
        return
    left = f" Unfinished: {counted(result.num_left, 'trial')} left." if result.num_left else ""
    head = f"# Chosen on validation by continual-petl sweep; see {SUMMARY}.{left}\n"
    lines += [f"# {name}: never swept; keeps the stream's own settings\n" for name in result.never_swept]
    write_file(result.folder / CHOSEN, (head + "".join(lines) + dump_stream(result.chosen)).encode())

"""Learn a later task from every starting point, and let the run choose one; each result is a line of the ledger."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L

from continual_petl.engine.commands import learn
from continual_petl.engine.run import Run
from continual_petl.engine.session import Session
from continual_petl.engine.start_from import decide_start, is_whole
from continual_petl.engine.task_run import TaskRun
from continual_petl.router.totals import totals_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.files.atomic import make_folder
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from experiments.studies.learning import QUIET
from experiments.transfer.streams import SEED, STREAMS, Size, entry_of, spec_of, stream_of

Tell = Callable[[str], None]
NEVER = 1000
"""Epochs between two validations: the last bank is kept, so no validation is needed."""


def parents_run(stream: str, count: int, data: Path, bank: dict[str, Any], folder: Path) -> Path:
    """Learn the first tasks of a stream, on all rows; return their run folder."""
    names = STREAMS[stream][:count]
    spec = spec_of(stream_of(stream, data, bank), [entry_of(name, data) for name in names])
    run = folder / f"{stream}-{bank['preset']}-{count}"
    if count > 1 and not run.exists():
        shutil.copytree(parents_run(stream, count - 1, data, bank, folder), run)
    _learned(TaskStream(spec), run)
    return run


def case(
    stream: str, number: int, size: Size, draw: int, data: Path, bank: dict[str, Any], folder: Path, tell: Tell
) -> dict[str, Any]:
    """Measure one later task: its test score from each starting point, and what ``start_from: auto`` chooses.

    Args:
        stream: one of `STREAMS`.
        number: position of the later task in the stream.
        size: the number of rows of the task.
        draw: number of the draw.
        data: the folder with the rows.
        bank: the bank of all tasks.
        folder: folder in which the runs with the earlier tasks are kept.
        tell: reports progress.
    """
    parents = STREAMS[stream][:number]
    earlier = parents_run(stream, number, data, bank, folder)
    with_start = partial(_with_start, stream, number, size, draw, data, bank)
    found: dict[str, Any] = {}
    starts: dict[str, Any] = {"fresh": None} | {name: name for name in parents}
    if len(parents) > 1:
        starts["average"] = list(parents)
        if size != "4000":  # fusion takes longest, and no target depends on it
            starts["fusion"] = "fusion"
    for name, start_from in starts.items():
        with tempfile.TemporaryDirectory() as scratch:
            run = _learned(with_start(start_from), Path(shutil.copytree(earlier, Path(scratch) / "run")))
            found[name] = _outcome(run.store.certificate(run.store.tasks[-1]), run)
        tell(f"{STREAMS[stream][number]}, {size} rows, draw {draw}, from {name}: {found[name]['test']}")
    return {"starts": found} | choice(stream, number, size, draw, data, bank, folder, tell)


def choice(
    stream: str, number: int, size: Size, draw: int, data: Path, bank: dict[str, Any], folder: Path, tell: Tell
) -> dict[str, Any]:
    """Measure only what ``start_from: auto`` chooses; the arguments are those of `case`."""
    with tempfile.TemporaryDirectory() as scratch:
        earlier = parents_run(stream, number, data, bank, folder)
        copied = Path(shutil.copytree(earlier, Path(scratch) / "run"))
        chosen = _choice(_with_start(stream, number, size, draw, data, bank, "auto"), copied)
    tell(f"{STREAMS[stream][number]}, {size} rows, draw {draw}: auto chooses {chosen['taken']}")
    return {"auto": chosen}


def _with_start(
    stream: str, number: int, size: Size, draw: int, data: Path, bank: dict[str, Any], start_from: Any
) -> TaskStream:
    parents = STREAMS[stream][:number]
    if start_from == "fusion":
        own: dict[str, Any] = {"preset": "fusion", "fuse": list(parents)}
    else:
        own = bank if start_from is None else bank | {"start_from": start_from}
    entry = entry_of(STREAMS[stream][number], data, size, draw) | {"bank": own}
    return TaskStream(spec_of(stream_of(stream, data, bank), [*(entry_of(name, data) for name in parents), entry]))


def sequential(stream: str, draw: int, data: Path, folder: Path) -> dict[str, Any]:
    """Learn a stream with one LoRA bank for all tasks; return the scores right after each task was learned and at the end.

    In the first draw, tasks are named as in the runs with the earlier tasks, so they have the same rows in the same order.
    """
    bank = {"preset": "lora", "scope": "shared"}
    tree = stream_of(stream, data, bank) | {"evaluate": "all"}
    names = STREAMS[stream]
    entries = [entry_of(name, data, draw=draw if draw > 1 else 0) for name in names]
    run = _learned(TaskStream(spec_of(tree, entries)), folder / f"{stream}-sequential-{draw}")
    rows = run.results.R
    return {
        "learned": {name: float(rows[number, number]) for number, name in enumerate(names)},
        "at the end": {name: float(rows[-1, number]) for number, name in enumerate(names)},
    }


def _learned(stream: TaskStream, folder: Path) -> Run:
    L.seed_everything(SEED, verbose=False)
    return learn(stream, folder, trainer=QUIET | {"check_val_every_n_epoch": NEVER}, progress=False)


def _outcome(certificate: Certificate, run: Run) -> dict[str, Any]:
    lines = run.store.results()
    line = next(line for line in lines if isinstance(line, FinishedLine) and line.task == certificate.task)
    average = certificate.start.taken if certificate.start is not None else None
    return {
        "validation": certificate.scores["validation"].scores.get(certificate.metric),
        "test": certificate.scores["test"].scores.get(certificate.metric),
        "seconds": round(line.seconds["train"], 1),
        **({} if average is None else {"weights": average.weights}),
    }


def _choice(stream: TaskStream, folder: Path) -> dict[str, Any]:
    """Return the start that ``auto`` would choose, the seconds that choosing took, and how many of these went into the
    routing statistics, which a commit needs anyway. The bank learned from this start would be identical, bit for bit, to the
    one learned when the start is named, so it is not learned again.
    """
    session = Session(stream.spec, Store(folder))
    L.seed_everything(SEED, verbose=False)
    run = TaskRun.begin(session, stream.spec.tasks[-1])
    make_folder(run.folder)
    began = time.perf_counter()
    run.rows_read(totals_of(session.store).layers)
    ranked = time.perf_counter()
    start = decide_start(run)
    assert start is not None
    ended = time.perf_counter()
    names = [" + ".join(parent.task for parent in candidate.parents) or "fresh" for candidate in start.candidates]
    return {
        "taken": names[start.chosen],
        "scores": {name: candidate.score for name, candidate in zip(names, start.candidates, strict=True)},
        "steps": start.num_steps,
        "rows": start.num_rows,
        "seconds": round(ended - began, 1),
        "sums": round(ranked - began, 1),
        "whole": is_whole(run),
    }

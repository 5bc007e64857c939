"""A writer that keeps changing a run, and readers of that run, each in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from continual_petl import Run, learn
from continual_petl.engine.commands import forget
from continual_petl.errors import InputError, StoreError
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream, task

TEXTS = ["w0 w1 w2", "w40 w50"]
WAYS = [{**TASKS[0], "training": {"epochs": epochs}} for epochs in (1, 2)]


def in_a_process(act: Callable[[], object], told: Path) -> int:
    """Start a process that calls ``act``, writes the result to ``told`` and exits with 0; return its id."""
    child = os.fork()
    if child:
        return child
    code = 9
    try:
        told.write_text(json.dumps(act()))
        code = 0
    finally:
        os._exit(code)


def versions(folder: Path, backbone: Path) -> None:
    """Learn the run; save the answers and scores of both versions of task one, either of which a reader may see."""
    known = []
    for number, way in enumerate(WAYS):
        run = learn(stream(backbone, [way], training=QUICK), folder.with_name(f"alone-{number}"))
        known.append([repr(run.predict(TEXTS, task="one")), run.to_json()["scores"]["one"]])
    folder.with_name("versions.json").write_text(json.dumps(known))
    learn(stream(backbone, [WAYS[0], TASKS[1]], training=QUICK), folder)


def write(folder: Path, backbone: Path, seconds: float) -> None:
    """Keep replacing task one and learning more tasks, and forget every second new task."""
    end, number = time.monotonic() + seconds, 0
    tasks = [TASKS[1]]
    while time.monotonic() < end:
        number += 1
        tasks.append(task(f"more{number}", num_rows=16))
        learn(stream(backbone, [WAYS[number % 2], *tasks], training=QUICK), folder, replace=["one"])
        if number % 2 == 0:
            forget(folder, tasks.pop()["name"])


def problem(run: Run, how: str, known: Any, number: int) -> str | None:
    """Verify the run, predict with it, or convert it to JSON; return what is inconsistent, if anything."""
    try:
        if how == "verify":
            return next((text for check in run.verify() for text in check.problems), None)
        if how == "predict":
            newest = run.store.tasks[-1]
            if number % 2 and newest.startswith("more"):
                try:
                    run.predict(TEXTS, task=newest)
                except (InputError, StoreError) as error:
                    return None if newest not in run.store.tasks else str(error)
            found = repr(run.predict(TEXTS, task="one"))
            return None if found in [version[0] for version in known] else f"answers {found}"
        said = run.to_json()
        if said["scores"]["one"] not in [version[1] for version in known]:
            return f"scores {said['scores']['one']}"
        tasks = said["results"]["tasks"]
        same = tasks == [row["task"] for row in said["growth"]] and set(tasks) == set(said["scores"])
        return None if same else f"tasks {tasks}"
    except (InputError, StoreError) as error:
        return f"{type(error).__name__}: {error}"


def read(folder: Path, how: str, seconds: float) -> tuple[int, list[str]]:
    """Read the run repeatedly; return how often, and what was wrong."""
    known = json.loads(folder.with_name("versions.json").read_text())
    wrong: list[str] = []
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        told = problem(Run(folder), how, known, count)
        wrong += [] if told is None else [told]
    return count, wrong

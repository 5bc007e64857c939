"""A reader of a run that is being changed sees the state before or after a change, never a mixture."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from continual_petl import Run, learn
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.engine.commands import forget
from continual_petl.errors import InputError, StoreError
from continual_petl.store.files import reading as reading_module
from tests.store import reading
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream

Folder = Callable[..., Path]
Step = Callable[[], object]
TEXTS = ["w0 w1 w2", "w40 w50"]
OTHER = {**TASKS[0], "training": {"epochs": 2}}


class States:
    """A run folder, and copies of it in which task one was replaced or forgotten, or task three was committed."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self.before, self.replaced, self.forgotten, self.joined = (folder / name for name in "abcd")
        learn(stream(backbone, TASKS[:2], training=QUICK), self.before)
        for other in (self.replaced, self.forgotten, self.joined):
            shutil.copytree(self.before, other)
        learn(stream(backbone, [OTHER, TASKS[1]], training=QUICK), self.replaced, replace=["one"])
        forget(self.forgotten, "one")
        learn(stream(backbone, TASKS, training=QUICK), self.joined)
        self.session = Run(self.before).session

    def steps(self, what: str, run: Path) -> list[Step]:
        """Return the steps with which a writer changes a run, in order."""
        after, banks = getattr(self, what), run / "banks"
        task = "three" if what == "joined" else "one"

        def put(source: Path, place: Path) -> None:
            place.parent.mkdir(exist_ok=True)
            beside = place.with_name(f".{place.name}.7.new")
            (shutil.copytree if source.is_dir() else shutil.copy)(source, beside)
            beside.rename(place)

        new = "one@2" if what == "replaced" else task
        there = lambda: put(after / "banks" / new, banks / new)  # noqa: E731
        lines = lambda: put(after / "ledger.jsonl", run / "ledger.jsonl")  # noqa: E731
        away = lambda: (banks / task).rename(banks / f".{task}.7.old.new")  # noqa: E731
        known: dict[str, list[Step]] = {
            "replaced": [there, lines, away],
            "forgotten": [lines, away],
            "joined": [there, lines],
        }
        return known[what]


@pytest.fixture(scope="module")
def states(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> States:
    return States(tmp_path_factory.mktemp("states"), backbone_folder())


def _load(run: Run) -> Any:
    return combined_digest(tensor_digests(run.store.load_bank("one", run.session.models.backbone("fp32")).tensors()))


def _predict(run: Run) -> Any:
    return repr(run.predict(TEXTS, task="one"))


def _verify(run: Run) -> Any:
    return sorted((check.task, check.problems) for check in run.verify())


def _report(run: Run) -> Any:
    return json.dumps(run.to_json(), sort_keys=True)


READS = {"load": _load, "predict": _predict, "verify": _verify, "report": _report}


def allowed(states: States, read: Callable[[Run], Any], what: str, folder: Path) -> list[Any]:
    """Return what a reader may see: the state before the change, and after each step."""
    shutil.copytree(states.before, folder)
    seen = [outcome(states, read, folder)]
    steps = states.steps(what, folder)
    for step in steps:
        step()
        seen.append(outcome(states, read, folder))
    return seen


def outcome(states: States, read: Callable[[Run], Any], folder: Path) -> Any:
    # A new session, since the store of the shared one belongs to another folder.
    run = Run(folder)
    run.session.models.backbones.update(states.session.models.backbones)
    run.session.models._tokenizer = states.session.models.tokenizer
    try:
        return read(run)
    except (InputError, StoreError) as error:
        gone = "task 'one' is not learned", "the task was never learned in this run, or was forgotten"
        return "not learned" if any(words in str(error) for words in gone) else str(error)


def interleaved(
    states: States,
    what: str,
    read: Callable[[Run], Any],
    at: int,
    folder: Path,
    patch: pytest.MonkeyPatch,
    pause: float,
) -> tuple[Any, bool]:
    """Return what a reader sees if all steps happen before it opens its ``at``-th file, and whether it opens that many files.

    With a pause between the steps, they run concurrently with the reader.
    """
    shutil.copytree(states.before, folder)
    real, opened, writers = reading_module._opened, [0], []

    def write() -> None:
        for number, step in enumerate(states.steps(what, folder)):
            time.sleep(pause if number else 0)
            step()

    def hooked(path: Path) -> BinaryIO:
        if folder in path.parents:
            opened[0] += 1
            if opened[0] == at:
                writers.append(threading.Thread(target=write))
                writers[0].start()
                if not pause:
                    writers[0].join()
                else:
                    time.sleep(pause / 2)
        return real(path)

    patch.setattr(reading_module, "_opened", hooked)
    try:
        return outcome(states, read, folder), bool(writers)
    finally:
        patch.undo()
        for writer in writers:
            writer.join()


def check(states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str, pause: float) -> int:
    """Repeat the read, with the run changed before the first, second, ... file is opened; return the number of files."""
    good, at = allowed(states, READS[how], what, tmp_path / "rest"), 0
    while True:
        at += 1
        found, came = interleaved(states, what, READS[how], at, tmp_path / str(at), monkeypatch, pause)
        assert found in good, f"{what} before file {at}"
        if not came:
            return at - 1


@pytest.mark.parametrize("how", ["load", "report"])
def test_reader_handles_replacement_between_two_files(
    states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert check(states, tmp_path, monkeypatch, "replaced", how, 0.0) > 1


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.03])
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("what", ["replaced", "forgotten", "joined"])
def test_reader_is_consistent_with_any_concurrent_write(
    states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str, pause: float
) -> None:
    assert check(states, tmp_path, monkeypatch, what, how, pause) > 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_readers_in_other_processes_see_a_consistent_run(tmp_path: Path, backbone_folder: Folder) -> None:
    folder, backbone = tmp_path / "run", backbone_folder()
    reading.versions(folder, backbone)
    acts: dict[str, Callable[[], object]] = {
        how: partial(reading.read, folder, how, 12.0) for how in ("verify", "predict", "report")
    }
    acts["write"] = partial(reading.write, folder, backbone, 12.0)
    children = {name: reading.in_a_process(act, tmp_path / name) for name, act in acts.items()}
    codes = {name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in children.items()}
    assert codes == dict.fromkeys(acts, 0)
    counts = {}
    for how in ("verify", "predict", "report"):
        counts[how], wrong = json.loads((tmp_path / how).read_text())
        assert wrong == []
    assert min(counts.values()) >= 1, counts
    print(counts)

"""After a signal in any phase, a run stops at the next safe point with the right exit code, and can be resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.cli.main import main
from continual_petl.engine import learn as learn_module
from continual_petl.engine.scoring import result_row
from continual_petl.engine.session import Session
from continual_petl.engine.signals import SIGNALS, listening
from continual_petl.engine.task import learn_task
from continual_petl.errors import Interrupted
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import bank_digests
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def tasks_of(backbone: Path) -> TaskStream:
    training = {"batch_size": 5, "accumulate": 2, "checkpoint_every": 1}
    return stream(backbone, [task("one", num_rows=20), task("two", num_rows=20)], training=training)


class Learned:
    def __init__(self, backbone: Path, folder: Path) -> None:
        self.tasks, self.folder = tasks_of(backbone), folder / "first"
        spec = self.tasks.spec
        learn(TaskStream(spec.model_copy(update={"tasks": spec.tasks[:1]})), self.folder)
        self.whole = bank_digests(learn(self.tasks, shutil.copytree(self.folder, folder / "whole")))


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    return Learned(backbone_folder(), tmp_path_factory.mktemp("learned"))


class In(StreamCallback):
    """Raise a signal in a hook, once, in the second task."""

    def __init__(self, hook: str, number: int) -> None:
        self._left, self._second, self._number = 1, False, number
        if hook:
            setattr(self, hook, self._strike)

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self._second = True

    def _strike(self, *args: Any, **kwargs: Any) -> None:
        if self._left and self._second:
            self._left -= 1
            signal.raise_signal(self._number)


PHASES: dict[str, tuple[Any, str, str]] = {
    "data": (Session, "prepare", "before task 'two' was learned, after its data was read"),
    "fit, set-up": (None, "on_fit_start", "task 'two'"),
    "fit, first batch": (None, "on_train_batch_start", "task 'two' was stopped; everything up to this step is saved"),
    "validation": (None, "on_validation_batch_start", "task 'two' was stopped"),
    "fit, end": (
        None,
        "on_train_end",
        "before the validation split of task 'two' was predicted; its progress is saved",
    ),
    "split": (learn_task, "outputs_of", "before the test split of task 'two' was predicted; its progress is saved"),
    "probe": (learn_task, "make_probe", "after task 'two' was committed, before its row was measured"),
    "commit": (learn_task, "commit_task", "after task 'two' was committed, before its row was measured"),
    "row": (result_row, "_measure", "while the row of task 'two' was being measured; the task is committed"),
    "verification": (None, "on_task_end", "after task 'two': all tasks are learned; the same command shows the result"),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "phase", [phase if phase == "commit" else pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES]
)
def test_signal_in_any_phase_stops_cleanly(
    learned: Learned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, number: int
) -> None:
    where, name, message = PHASES[phase]
    run = shutil.copytree(learned.folder, tmp_path / "run")
    with monkeypatch.context() as patch:
        if where is not None:
            real, left = getattr(where, name), [1]

            def struck(*args: Any, **kwargs: Any) -> Any:
                if left:
                    left.clear()
                    signal.raise_signal(number)
                return real(*args, **kwargs)

            patch.setattr(where, name, struck)
        with pytest.raises(Interrupted, match=message) as told:
            learn(learned.tasks, run, callbacks=[In("" if where else name, number)])
    assert told.value.signal_number == number
    assert all(check.ok for check in Run(run).verify())
    after = learn(learned.tasks, run)
    assert bank_digests(after) == learned.whole
    assert after.results.forgetting == 0.0
    assert [line.task for line in after.store.results() if isinstance(line, FinishedLine)] == ["one", "two"]


@pytest.mark.slow
def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as request:
            os.kill(os.getpid(), signal.SIGINT)
            assert request.signal_number is None
            assert list(request.handlers) == [signal.SIGTERM], "Lightning must not get a handler for SIGINT"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("begun", "where", "says"),
    [
        (False, "from_yaml", "; everything saved so far is kept: run the same command again to continue"),
        (False, "preflight", "; everything saved so far is kept"),
        (True, "preflight", "; everything saved so far is kept: run the same command again to continue"),
        (True, "verify", "after all tasks were learned and saved; the same command shows the result"),
    ],
)
def test_message_outside_of_training_says_what_is_saved(
    learned: Learned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    number: int,
    begun: bool,
    where: str,
    says: str,
) -> None:
    (tmp_path / "stream.yaml").write_text(dump_stream(learned.tasks.spec))
    if begun:
        shutil.copytree(learned.folder.parent / "whole" if where == "verify" else learned.folder, tmp_path / "run")
    owner = {"from_yaml": TaskStream, "preflight": learn_module, "verify": Run}[where]
    monkeypatch.setattr(owner, where, lambda *args, **kwargs: signal.raise_signal(number))
    assert main(["run", str(tmp_path / "stream.yaml"), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 128 + number
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.startswith(
        "continual-petl: stopped" if number == signal.SIGINT else "continual-petl: ended by SIGTERM"
    )


def test_second_sigterm_exits_at_once_with_its_own_code(learned: Learned, tmp_path: Path) -> None:
    class Twice(L.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="ended at once") as told:
        learn(learned.tasks, tmp_path / "run", callbacks=[Twice()])
    assert told.value.signal_number == signal.SIGTERM
    assert bank_digests(learn(learned.tasks, tmp_path / "run")) == learned.whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_exit_code_without_training(
    learned: Learned, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Run, "verify", lambda *args, **kwargs: signal.raise_signal(number))
    assert main(["verify", str(learned.folder)]) == code
    assert "the same command starts again from the beginning" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "stop"), [(signal.SIGTERM, Interrupted), (signal.SIGINT, KeyboardInterrupt)])
def test_error_raised_in_place_of_a_second_signal_is_not_reported(number: int, stop: type[BaseException]) -> None:
    def translated(*, second: bool) -> None:
        with listening():
            signal.raise_signal(number)
            try:
                if second:
                    signal.raise_signal(number)
            finally:
                raise ValueError("Error calling function")

    with pytest.raises(stop):
        translated(second=True)
    with pytest.raises(ValueError, match="Error calling function"):
        translated(second=False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_error_raised_in_place_of_a_signal_is_not_reported(
    learned: Learned,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
    error: type[BaseException],
) -> None:
    def translated(*args: Any, **kwargs: Any) -> None:
        # Pydantic does so if a signal arrives while its compiled code calls Python code.
        try:
            signal.raise_signal(number)
        except BaseException as stop:
            raise error("Error calling function") from stop

    monkeypatch.setattr(Run, "verify", translated)
    assert main(["verify", str(learned.folder)]) == code
    shown = capsys.readouterr().err
    assert "the same command starts again from the beginning" in shown
    assert "bug" not in shown


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_signals_at_random_times(learned: Learned, tmp_path: Path) -> None:
    """Twenty of each signal are sent to processes that run the command; after each, the same command resumes."""
    (tmp_path / "tasks.yaml").write_text(dump_stream(learned.tasks.spec))
    draw, codes = random.Random(4), Counter[tuple[str, int]]()
    run, seconds = tmp_path / "run", 0.0
    command = ["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(run), "--quiet", "--json"]
    for number in (signal.SIGTERM, signal.SIGINT):
        sent = 0
        while sent < 20:
            # Until the child has reset the handlers, it would handle a signal like pytest, not like the command.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            child = os.fork()
            if child == 0:
                _command(command, tmp_path / "err")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            started = time.monotonic()
            if seconds:
                time.sleep(draw.uniform(0, min(seconds, 1.0)))
                os.kill(child, number)
                sent += 1
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            seconds = seconds or time.monotonic() - started
            codes[signal.Signals(number).name, code] += 1
            # Before the command has started, a signal kills the process (-number).
            last_words = (tmp_path / "err").read_text()[-2000:] if (tmp_path / "err").exists() else ""
            assert code in (0, 128 + number, -number), f"exit code {code} after signal {number}: {last_words}"
            if code == 0:
                assert bank_digests(Run(run)) == learned.whole
                shutil.rmtree(run)
    print(dict(codes))
    assert main(command) == 0
    assert bank_digests(Run(run)) == learned.whole
    assert sum(count for (_, code), count in codes.items() if code >= 128) >= 20


def _command(command: list[str], said: Path) -> None:
    """Run a command and exit with its code, as Python would."""
    code = 9
    try:
        _be_quiet(said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = main(command)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on no exception may leave this function
    except KeyboardInterrupt:  # the command has not started yet
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()  # os._exit below prints no traceback
    finally:
        sys.stderr.flush()  # os._exit does not flush buffers, which may hold a traceback
        os._exit(code)


def _be_quiet(path: Path) -> None:
    # Restore the handlers of a new process; other tests, or libraries that they use, may have replaced them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in (1, 2):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)

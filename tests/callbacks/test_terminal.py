"""Output of a run in a terminal, a narrow terminal, a log file and a closed pipe, and as JSON."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from continual_petl import StoreError, learn
from continual_petl.callbacks import EventLines, LiveProgress, Progress, WatchedRun, WatchedTask, event_lines
from continual_petl.callbacks.live import newest_table
from continual_petl.callbacks.progress import epoch_of
from continual_petl.cli.main import main
from continual_petl.learner.learner import BatchLoss
from continual_petl.report.console import SafeConsole, can_draw
from continual_petl.store.ledger.lines import MeasuredScore
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.callbacks.recording import StopAt, tasks_of
from tests.processes import Forked

Folder = Callable[..., Path]
_COLOUR = r"\x1b\[[0-9;]*[39][0-9][;m]"
NAMES = ["a", "b", "[red]" + "x" * 90, "d"]


class Terminal(io.StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def watched(*notices: str, num_tasks: int = 4) -> WatchedRun:
    """Return a run without a folder."""
    store = SimpleNamespace(progress_folder=Path, tasks=[])
    return WatchedRun(store=cast(Any, store), stream=tuple(map(str, range(num_tasks))), notices=notices)


def cells(names: list[str]) -> tuple[MeasuredScore, ...]:
    """Return the cells of a row of R."""
    return tuple(
        MeasuredScore.model_construct(
            task=name, index=index, split="test", metric="accuracy", value=0.5, num_examples=4, status="measured"
        )
        for index, name in enumerate(names)
    )


def drawn(width: int, monkeypatch: pytest.MonkeyPatch, **variables: str) -> tuple[LiveProgress, Terminal]:
    """Take a live display through three of four tasks and into the last one."""
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    file, clock = Terminal(), iter(range(0, 10_000, 3))
    live = LiveProgress(Console(file=file, width=width, height=30), clock=lambda: float(next(clock)))
    trainer = cast(
        Any,
        SimpleNamespace(
            estimated_stepping_batches=40, global_step=0, current_epoch=0, max_epochs=2, accumulate_grad_batches=1
        ),
    )
    learner = cast(Any, SimpleNamespace(last_loss=BatchLoss(torch.tensor(0.25), 8.0)))
    live.on_run_start(watched("a notice with [brackets]"))
    for index, name in enumerate(NAMES):
        live.on_task_start(watched(), WatchedTask(name=name, index=index))
        live.on_train_start(trainer, cast(Any, None))
        for step in range(1, 11):
            trainer.global_step = step
            live.on_train_batch_end(trainer, learner, {}, None, step - 1)
        if index < 3:
            live.on_fit_end(trainer, cast(Any, None))
            seconds = {"train": 1.0, "verify": 0.1}
            live.on_task_end(
                watched(), WatchedTask(name=name, index=index, cells=cells(NAMES[: index + 1]), seconds=seconds)
            )
        trainer.global_step = 0
    return live, file


def shown(live: LiveProgress, width: int) -> list[str]:
    """Return the lines of a display."""
    buffer = io.StringIO()
    Console(file=buffer, width=width).print(live.renderable())
    return buffer.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_display_fits_any_terminal_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    live, _ = drawn(width, monkeypatch)
    lines = shown(live, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + 2 + 1 + 3
    assert lines[0].startswith("d, epoch 1 of 2")
    assert "3/4" in lines[1]
    assert "10/40" in lines[2]
    assert lines[4].startswith("a ")
    if width >= 80:
        assert re.match(r"a\s+0\.5000", lines[4])
        assert "[red]xxx" in "".join(lines), "names are not parsed as markup"
        assert lines[-1].count("0.5000") == 3


@pytest.mark.parametrize(("max_epochs", "words"), [(5, "epoch 3 of 5"), (-1, "epoch 3"), (None, "epoch 3")])
def test_number_of_epochs_is_shown_if_it_is_known(max_epochs: int | None, words: str) -> None:
    assert epoch_of(cast(Any, SimpleNamespace(current_epoch=2, max_epochs=max_epochs))) == words


def test_display_adapts_to_a_resized_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    live, _ = drawn(100, monkeypatch)
    live._console.width = 40
    assert max(map(len, shown(live, 40))) <= 40


def test_terminal_state_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    live, file = drawn(80, monkeypatch)
    assert "\x1b[?25l" in file.getvalue(), "the cursor is hidden while the display is drawn"
    live.on_run_end(watched(), None)
    assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")
    assert "task 4 of 4: d" in file.getvalue(), "printed lines stay above the display"


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_dumb_terminal_gets_plain_lines(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = drawn(80, monkeypatch, **variables)
    assert "\x1b" not in file.getvalue()
    assert "  learned: test accuracy 0.5000 on 4 rows" in file.getvalue()


def test_no_color_disables_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = drawn(80, monkeypatch, NO_COLOR="1")
    assert not re.search(_COLOUR, file.getvalue())
    _, file = drawn(80, monkeypatch, COLORTERM="truecolor", NO_COLOR="")
    assert re.search(_COLOUR, file.getvalue()), "without NO_COLOR, the pattern finds colours"


def test_log_file_gets_plain_lines_even_with_forced_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(variable, "1")
    assert not can_draw(Console(file=io.StringIO()))
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("TTY_COMPATIBLE")
    buffer = io.StringIO()
    progress = LiveProgress(Console(file=buffer, width=10))
    progress.on_task_start(watched(), WatchedTask(name="[red]" + "y" * 50, index=0))
    assert buffer.getvalue() == f"task 1 of 4: [red]{'y' * 50}\n", "a long line is not wrapped"


def test_verbose_shows_phase_times_and_the_row() -> None:
    buffer = io.StringIO()
    progress = Progress(Console(file=buffer), verbose=True)
    spent, num_checks = {"train": 1.0, "verify": 0.5}, {"probe": 1}
    learned = WatchedTask(name="b", index=1, cells=cells(["[a]", "b"]), seconds=spent, num_checks=num_checks)
    progress.on_task_end(watched(), learned)
    assert "    [a]: test accuracy 0.5000, measured\n" in buffer.getvalue()
    assert "  time: train 1.00 s, verify 0.50 s\n" in buffer.getvalue()


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["measured", "measured"], "; 2 of 2 earlier tasks were re-measured"),
        (["not measured", "certified"], "; 0 of 2 earlier tasks were re-measured, 1 certified"),
        (["not measured", "not measured"], "; 0 of 2 earlier tasks were re-measured"),
    ],
)
def test_learned_line_counts_remeasured_tasks(statuses: list[str], said: str) -> None:
    buffer = io.StringIO()
    row = [cell.model_copy(update={"status": status}) for cell, status in zip(cells(["a", "b"]), statuses, strict=True)]
    learned = WatchedTask(name="c", index=2, cells=(*row, *cells(["c"])))
    Progress(Console(file=buffer, width=200)).on_task_end(watched(), learned)
    assert buffer.getvalue() == f"  learned: test accuracy 0.5000 on 4 rows{said}\n"


class Closed(io.StringIO):
    """A pipe whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return True


def test_closed_pipe_stops_the_lines_but_not_the_run(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    callbacks = [LiveProgress(SafeConsole(file=Closed())), EventLines(Closed())]
    run = learn(tasks_of(backbone_folder(), "one", epochs=1), tmp_path / "run", callbacks=callbacks)
    assert run.store.tasks == ["one"]
    with pytest.raises(BrokenPipeError):
        SafeConsole(file=Closed()).print("a result that nobody reads is an error")


KEYS = {
    "run": {"notices"},
    "task": {"task", "number", "num_tasks", "notices"},
    "epoch": {"task", "epoch", "step", "loss", "scores"},
    "learned": {"task", "number", "num_tasks", "split", "metric", "value", "num_examples", "row"},
    "checked": {"task", "checks", "seconds"},
    "end": {"state", "num_tasks", "message"},
}


@pytest.mark.slow
def test_events_are_json_lines_with_documented_keys(backbone_folder: Folder, tmp_path: Path) -> None:
    file = io.StringIO()
    lines = EventLines(file)
    with pytest.raises(KeyboardInterrupt):
        learn(tasks_of(backbone_folder(), "one", "two"), tmp_path / "run", callbacks=[lines, StopAt(3)])
    learn(tasks_of(backbone_folder(), "one", "two"), tmp_path / "run", callbacks=[lines])
    said = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [each["event"] for each in said] == [
        "run", "task", "epoch", "end",
        "run", "task", "epoch", "learned", "checked", "task", "epoch", "epoch", "learned", "checked", "end",
    ]  # fmt: skip
    for each in said:
        assert set(each) == {"event", "time"} | KEYS[each["event"]]
    documented = event_lines.__doc__ or ""
    for name, keys in KEYS.items():
        assert all(f"``{key}``" in documented for key in keys), name
    assert [each["epoch"] for each in said if each["event"] == "epoch"] == [1, 2, 1, 2]
    assert [each["state"] for each in said if each["event"] == "end"] == ["stopped", "learned"]
    assert said[-3]["row"][0].keys() == {"task", "metric", "split", "value", "status"}
    assert [each["task"] for each in said[-3]["row"]] == ["one", "two"]


def test_end_event_is_sent_for_an_unreadable_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreadable(store: Store) -> list[str]:
        raise StoreError("damaged")

    monkeypatch.setattr(Store, "tasks", property(unreadable))
    file = io.StringIO()
    EventLines(file).on_run_end(WatchedRun(store=Store(tmp_path), stream=()), StoreError("what stopped it"))
    said = json.loads(file.getvalue())
    assert (said["state"], said["num_tasks"], said["message"]) == ("failed", None, "what stopped it")


def left(live: LiveProgress) -> list[str]:
    """Return the remaining time of all tasks, and of the steps of the newest one."""
    return [line.split()[-1] for line in shown(live, 100)[1:3]]


def test_remaining_time_is_estimated_from_what_this_process_has_done() -> None:
    clock, trainer = [0.0], cast(Any, SimpleNamespace(estimated_stepping_batches=100, global_step=20))
    live = LiveProgress(Console(file=io.StringIO(), width=100), clock=lambda: clock[0])

    live.on_run_start(watched())
    live.on_task_start(watched(), WatchedTask(name="a", index=1))
    live.on_train_start(trainer, cast(Any, None))
    assert left(live) == ["-:--:--", "-:--:--"], "this process has done no step yet"
    trainer.global_step, clock[0] = 60, 80.0
    live._stepped(trainer)
    assert left(live) == ["0:08:00", "0:01:20"], "80 seconds for 40 steps, and for 0.4 of 2.8 tasks"
    trainer.global_step, clock[0] = 100, 158.0
    live.on_fit_end(trainer, cast(Any, None))
    live.on_task_end(watched(), WatchedTask(name="a", index=1, cells=cells(["a"]), seconds={}))
    clock[0] = 160.0
    live.on_task_start(watched(), WatchedTask(name="b", index=2))
    assert left(live)[0] == "0:06:40", "160 seconds for 0.8 tasks; two are left"
    trainer.estimated_stepping_batches, trainer.global_step = float("inf"), 0
    live.on_train_start(trainer, cast(Any, None))
    trainer.global_step, clock[0] = 50, 240.0
    live.on_fit_end(trainer, cast(Any, None))
    assert left(live)[1].endswith("50/?"), "a fit of unknown length"


def test_many_tasks_show_the_newest_and_summarise_the_rest() -> None:
    rows = [(f"t{n}", {f"t{m}": None if m == 3 else m / 1000 for m in range(n + 1)}) for n in range(994, 1000)]
    buffer = io.StringIO()
    Console(file=buffer, width=60).print(newest_table(rows, 60))
    lines = buffer.getvalue().splitlines()
    assert lines[0].split() == ["after", "others", "t997", "t998", "t999"]
    mean = sum(m / 1000 for m in range(997) if m != 3) / 996
    assert lines[-1].split() == ["t999", f"{mean:.4f}", "0.9970", "0.9980", "0.9990"]
    assert lines[1].split() == ["t994", f"{sum(m / 1000 for m in range(995) if m != 3) / 994:.4f}"]


def _resize(descriptor: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_run_in_a_resized_pseudo_terminal(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks.yaml").write_text(dump_stream(tasks_of(backbone_folder(), "one", "two", epochs=8).spec))
    master, slave = pty.openpty()
    _resize(master, 40)
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    command = ["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(tmp_path / "r")]
    process = Forked(partial(main, command), terminal=slave)
    os.close(slave)
    said = b""
    resized = False
    with contextlib.suppress(OSError):  # how Linux reports the closed terminal
        while piece := os.read(master, 4096):
            said += piece
            if not resized and b"steps" in said:
                resized = True
                _resize(master, 70)
    assert process.wait() == 0, said.decode()
    text = said.decode()
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    # The time left is not known at first; on a busy machine, the first bars may be drawn once it is.
    assert re.search(r"steps .*(-:--:--|0:\d\d:\d\d)", text)
    assert "Result matrix R" in text
    before, _, _ = text.partition("tasks ")
    assert "task 1 of 2: one" in before
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    bars = [line for line in re.split(r"[\r\n]+", plain) if line.startswith(("tasks ", "steps "))]
    assert bars
    assert max(map(len, bars)) <= 70

"""``python -m tests.report.long_run RUN COUNT``: create a run of many tasks, to measure the cost of its report.

One task is learned; the others are copies of its bank (`tests.store.fabricated`). Each task has random times and a row of R
like those that `continual_petl.engine.scoring.result_row` writes with ``evaluate: auto``: the first rows measure all earlier
tasks, later rows certify a rotating sample of them, and the last row certifies all of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from continual_petl import learn
from continual_petl.engine.scoring.result_row import _CHECKED, MEASURE_ALL_UP_TO
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, Line, MeasuredScore, RowLine, Status
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import rotating
from tests.store.fabricated import multiply
from tests.streams_in_code import stream, task

PHASES = ("data", "train", "evaluate", "commit", "measure", "verify")


def long_run(folder: Path, backbone: Path, count: int) -> Path:
    """Create a run with the given number of tasks; return its folder."""
    learn(stream(backbone, [task("one")]), folder)
    multiply(folder, count)
    store = Store(folder)
    commits, seconds = store.commits(), random.Random(0)
    known = [line for line in store.results() if isinstance(line, RowLine) or line.task == "one"]
    store.ledger_file.unlink()
    store.append([*known, *(line for number in range(1, count) for line in _lines(store, commits, number, seconds))])
    return folder


def _lines(store: Store, commits: list[CommitLine], number: int, seconds: random.Random) -> list[Line]:
    """Return the lines that a run appends to ledger.jsonl after one task."""
    earlier = [commit.task for commit in commits[:number]]
    every = number < MEASURE_ALL_UP_TO or number == len(commits) - 1
    seen = set(earlier) if every else rotating(earlier, number, _CHECKED)
    how: Status = "measured" if number < MEASURE_ALL_UP_TO else "certified"
    own = commits[number]
    cells = [_cell(store, commit, how) for commit in commits[:number] if commit.task in seen]
    return [
        RowLine(after=own.task, index=own.index, cells=(*cells, _cell(store, own, "measured"))),
        FinishedLine(
            task=own.task,
            index=own.index,
            certificate=own.seal,
            seconds={phase: seconds.uniform(0.01, 2) for phase in PHASES},
            checks={"probe": len(cells)},
        ),
    ]


def _cell(store: Store, commit: CommitLine, how: Status) -> MeasuredScore:
    # All banks are copies of the first one and have its scores; only its certificate is read.
    certificate = store.certificate("one")
    scores = certificate.scores["test"]
    value = scores.scores[certificate.metric]
    return MeasuredScore(
        task=commit.task,
        index=commit.index,
        split="test",
        metric=certificate.metric,
        value=value,
        num_examples=scores.num_examples,
        status=how,
    )


def main(folder: str, count: str) -> None:
    """Create a tiny backbone and the run."""
    from tests.tiny import make_model, make_tokenizer

    with tempfile.TemporaryDirectory() as backbone:
        make_model("bert").save_pretrained(backbone)
        make_tokenizer("bert").save_pretrained(backbone)
        long_run(Path(folder), Path(backbone), int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Start-up time in fresh processes: ``--help``, and predicting one text with a store of many banks.

For comparison, loading backbone and tokenizer with transformers alone, in a fresh process, is timed too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from continual_petl.errors import InputError
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growing import many_tasks
from experiments.benchmarks.growth import fill, learn_many
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result

HELP, TRANSFORMERS, PREDICT = "--help", "transformers alone", "predict one text"
MOST_HELP, MOST_PREDICT = 0.5, 1.2
_LOAD = """
import sys
from transformers import AutoModel, AutoTokenizer
AutoModel.from_pretrained(sys.argv[1])
AutoTokenizer.from_pretrained(sys.argv[1])
"""


def measure(bench: Bench) -> Measured:
    """Create the store, then start one process after another."""
    num_banks = 3 if bench.options.quick else 100
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    run = bench.scratch / "run"
    learn_many(run, many_tasks(bench.shape.source, 1), bench.tell)
    fill(run, num_banks)
    middle = f"t{num_banks // 2:04}"
    ours = [sys.executable, "-m", "continual_petl"]
    commands = {
        HELP: [*ours, "--help"],
        TRANSFORMERS: [sys.executable, "-c", _LOAD, str(bench.shape.folder)],
        PREDICT: [*ours, "predict", str(run), "--task", middle, "the text that is asked about"],
    }
    candidates = [Candidate(name, _process(command, bench.scratch)) for name, command in commands.items()]
    return Measured("seconds of a process", bench.alternate(candidates), {"banks": num_banks})


def _process(command: Sequence[str], folder: Path) -> Callable[[], float]:
    """Return a block that runs a process to completion."""
    # As in normal use: byte code is cached, and the Hub is not queried.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"HF_HUB_OFFLINE": "1"}

    def block() -> float:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        taken = time.perf_counter() - began
        if done.returncode:
            raise InputError(f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-300:]}")
        return taken

    return block


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    medians = result.medians
    rows = [[name, number(value), percent(spread(result.samples[name]))] for name, value in medians.items()]
    times = medians[PREDICT] / medians[TRANSFORMERS]
    lines = [
        f"* {HELP} takes {number(medians[HELP])} s; the target is under {MOST_HELP} s: {_said(medians[HELP] < MOST_HELP)}.",
        f"* {PREDICT} from a store of {result.facts['banks']} banks takes {factor(times)} the time that transformers needs "
        f"to load backbone and tokenizer; the target is under {factor(MOST_PREDICT)}: {_said(times < MOST_PREDICT)}.",
    ]
    return "\n".join([grid(["", "seconds", "spread"], rows), "", *lines])


def _said(met: bool) -> str:
    return "met" if met else "missed"

"""The cache of states below the lowest modified layer: epochs with and without it, measured alternately.

The measurements are those of `experiments.benchmarks.prefix`.
"""

from __future__ import annotations

from typing import Any

from experiments.benchmarks.alternate import Samples, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.prefix import measure as measure_epochs
from experiments.benchmarks.prefix import options_of
from experiments.benchmarks.real_task import give_tokenizer, needs_rows
from experiments.benchmarks.result import Result

TARGET = 1.5


def measure(bench: Bench) -> Measured:
    """Learn the task alternately with and without cached states.

    Raises:
        InputError: if there are no rows.
    """
    options, layers = bench.options, bench.shape.num_layers
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    asked = ["--backbone", bench.shape.source, "--layers", f"{layers // 2}-{layers - 1}"]
    asked += ["--epochs", str(options.epochs), "--repetitions", str(options.repetitions)]
    asked += ["--batch-size", str(options.batch), "--length", str(options.length), "--threads", str(options.threads)]
    asked += ["--bottleneck", str(options.bottleneck)]
    asked += ["--quick"] if options.data is None and options.quick else ["--data", str(needs_rows(options))]
    asked += ["--rows", str(options.rows)] if options.rows is not None else []
    found: dict[str, Any] = measure_epochs(options_of(asked))
    return Measured("seconds of an epoch", *_samples(found))


def _samples(found: dict[str, Any]) -> tuple[Samples, dict[str, Any]]:
    samples: Samples = {}
    accuracy = {}
    for way, runs in found["samples"].items():
        samples[f"cache {way}, first epoch"] = [run["seconds"][0] for run in runs]
        samples[f"cache {way}, later epochs"] = [seconds for run in runs for seconds in run["seconds"][1:]]
        accuracy[f"cache {way}"] = [run["accuracy"] for run in runs]
    return samples, {"accuracy": accuracy}


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    medians = result.medians
    rows = [[name, number(value), percent(spread(result.samples[name]))] for name, value in medians.items()]
    first, later, without = (
        medians[f"cache {name}"] for name in ("on, first epoch", "on, later epochs", "off, later epochs")
    )
    said = "met" if first / later >= TARGET else "missed"
    on, off = (result.facts["accuracy"][f"cache {way}"] for way in ("on", "off"))
    lines = [
        f"* Later epochs are {factor(first / later)} as fast as the first; the target is {TARGET} x: {said}.",
        f"* They are {factor(without / later)} as fast as without the cache.",
        f"* Test accuracy {'is the same in every run' if on == off else f'differs: {on} with the cache, {off} without'}.",
    ]
    return "\n".join([grid(["", "seconds", "spread"], rows), "", *lines])

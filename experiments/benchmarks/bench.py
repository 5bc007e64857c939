"""Measure a table from its options: prepare backbone and peers, measure, and write the two files."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks.alternate import Candidate, Samples, alternate, medians
from experiments.benchmarks.machine import commit, describe, versions
from experiments.benchmarks.markdown import head
from experiments.benchmarks.options import Options
from experiments.benchmarks.peers.client import Peer
from experiments.benchmarks.peers.clock import use_clock
from experiments.benchmarks.result import Result
from experiments.benchmarks.shapes import Shape, make_shape

TABLES = (
    "step", "breakdown", "inference", "mixed", "same_rows", "growth", "course", "prefix", "end_to_end", "memory", "start",
    "routing", "serve", "decoder", "large",
)  # fmt: skip
MODULES = {"transformers": "plain", "peft": "with_peft", "adapters": "with_adapters"}


@dataclass(frozen=True)
class Measured:
    """The result of a table module's ``measure``."""

    unit: str
    samples: Samples
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """The argument of a table module's ``measure``."""

    options: Options
    shape: Shape
    scratch: Path
    """A folder for temporary files."""
    peers: dict[str, Peer]
    """The workers by name; always includes transformers itself, in our environment."""
    tell: Callable[[str], None]

    def alternate(self, candidates: list[Candidate]) -> Samples:
        """Measure candidates side by side, according to the options.

        The samples so far are in ``TABLE.samples.json`` in the output folder until all are measured.
        """
        options = self.options
        file = options.out / f"{options.file_name}.samples.json"
        options.out.mkdir(parents=True, exist_ok=True)
        samples = alternate(
            candidates,
            repetitions=options.repetitions,
            warmup=options.warmup,
            tell=self.tell,
            keep=lambda samples: file.write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8"),
        )
        file.unlink()
        return samples


def say(line: str) -> None:
    """Report progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def run(options: Options, tell: Callable[[str], None] = say, workers: dict[str, Peer] | None = None) -> Result:
    """Measure a table and write it to ``options.out``.

    Args:
        options: the table to measure, and how.
        tell: called with progress messages.
        workers: running workers of the peers; None starts a worker for each peer in the options and stops it at the end.
    """
    module = import_module(f"experiments.benchmarks.tables.{options.table}")
    torch.set_num_threads(options.threads)
    use_clock(options.clock)
    began, machine = datetime.now(UTC), describe(torch.device(options.device))
    with _bench(options, tell, workers) as bench:
        measured: Measured = module.measure(bench)
        software = {"ours": versions()} | {name: peer.ask("versions") for name, peer in bench.peers.items()}
    revision, changed = commit()
    result = Result(
        table=options.table,
        command=options.command,
        commit=revision,
        changed=changed,
        began=began.strftime("%Y-%m-%d %H:%M"),
        machine=machine,
        versions=software,
        settings=options.settings(),
        unit=measured.unit,
        samples=measured.samples,
        medians=medians(measured.samples),
        facts=measured.facts,
    )
    for file in result.write(options.out, render(result)):
        tell(f"wrote {file}")
    return result


def render(result: Result) -> str:
    """Return a result as Markdown."""
    module = import_module(f"experiments.benchmarks.tables.{result.table}")
    body: str = module.body(result)
    return f"{head(result)}\n{body}\n"


@contextmanager
def _bench(options: Options, tell: Callable[[str], None], workers: dict[str, Peer] | None) -> Iterator[Bench]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if workers is None:
            workers = {name: stack.enter_context(peer) for name, peer in start_workers(options).items()}
        yield Bench(options, make_shape(options.shape, scratch), scratch, workers, tell)


def start_workers(options: Options) -> dict[str, Peer]:
    """Start the workers of the peers in the options, and the worker of transformers in our environment."""
    pythons = {"transformers": sys.executable} | {name: options.pythons[name] for name in options.peers}
    return {
        name: Peer(name, python, MODULES[name], threads=options.threads, clock=options.clock)
        for name, python in pythons.items()
    }

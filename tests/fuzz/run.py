"""``python -m tests.fuzz.run TARGET --count 10000 --seed 0``: try many inputs; the exit code is 1 if anything is found.

After the seeds and the corpus, one input in ten is noise and, if the target has a grammar, two in ten come from it; the rest
are mutations. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutate, noise
from tests.fuzz.store_targets import STORE_TARGETS
from tests.fuzz.target import Finding, Target, attempt
from tests.fuzz.targets import TARGETS

_MEMORY = 6 * 2**30
"""Limit on the address space that the inputs may add to that of the process, to protect the machine; far above the memory
that counts as a finding."""


def inputs(target: Target, count: int, draw: Random, extra: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yield the seeds, then generated inputs, ``count`` in total."""
    pool = [*target.seeds, *extra]
    yield from pool[:count]
    for _ in range(count - len(pool)):
        chance = draw.random()
        if chance < 0.1:
            yield noise(draw)
        elif chance < 0.3 and target.generate is not None:
            yield target.generate(draw)
        elif chance < 0.4 and target.generate is not None:
            yield mutate(target.generate(draw), pool, target.tokens, draw)
        else:
            yield mutate(draw.choice(pool), pool, target.tokens, draw)


def shrink(target: Target, finding: Finding, tries: int = 400) -> Finding:
    """Remove parts of an input as long as the rest still triggers the same error."""
    if finding.what.startswith(("took", "still")):
        return finding
    size = len(finding.data) // 2
    while size and tries > 0:
        for begin in range(0, len(finding.data), size):
            smaller = finding.data[:begin] + finding.data[begin + size :]
            tries -= 1
            if (found := attempt(target, smaller)) is not None and found.what == finding.what:
                finding = found
                break
        else:
            size //= 2
    return finding


def main(argv: Sequence[str] | None = None) -> int:
    """Run one target and print a summary as JSON; return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS | STORE_TARGETS))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--name", help="of data-files: the name of every file, such as rows.csv, to try one format alone"
    )
    parser.add_argument("--corpus", type=Path, help="a folder with more inputs to start from")
    parser.add_argument("--found", type=Path, help="a folder for the findings, one file each")
    arguments = parser.parse_args(argv)
    target = (TARGETS | STORE_TARGETS)[arguments.target]
    # Made before the limit: some targets learn a small run for them.
    _ = target.seeds, target.tokens
    with _limited_memory():
        return _run(target, arguments)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limit what the process may add to its address space; a test process may have used more than the limit already."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (num_pages * resource.getpagesize() + _MEMORY, before[1]))
    try:
        yield
    finally:
        # A test that calls `main` must not limit the tests after it in the same process.
        resource.setrlimit(resource.RLIMIT_AS, before)


def _run(target: Target, arguments: argparse.Namespace) -> int:
    """Run one target with parsed arguments; see `main`."""
    name = b"" if arguments.name is None else arguments.name.encode() + b"\n"
    seeds = [seed for seed in target.seeds if seed.startswith(name)] or target.seeds
    target = replace(target, make_seeds=lambda: seeds)
    extra = [path.read_bytes() for path in sorted(arguments.corpus.iterdir())] if arguments.corpus else []
    found: dict[str, Finding] = {}
    begin, num_inputs = time.perf_counter(), 0
    for data in inputs(target, arguments.count, Random(arguments.seed), extra):
        num_inputs += 1
        if name:
            data = name + data.partition(b"\n")[2]
        finding = attempt(target, data)
        if finding is not None and finding.what not in found:
            found[finding.what] = shrink(target, finding)
            print(f"{finding.what}\n    {found[finding.what].data[:300]!r}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - begin
    if arguments.found:
        arguments.found.mkdir(parents=True, exist_ok=True)
        for finding in found.values():
            (arguments.found / hashlib.sha256(finding.data).hexdigest()[:12]).write_bytes(finding.data)
    summary = {"target": target.name, "inputs": num_inputs, "seconds": round(seconds, 1), "findings": sorted(found)}
    print(json.dumps(summary))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

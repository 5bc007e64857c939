"""Reading a million rows into two columns of Python texts, compared with `datasets`: seconds and peak memory.

``python -m experiments.benchmarks.reading [--rows 1000000] [--repeats 5] [--out FILE.json]`` writes one file of each format
and reads it with each library in turns, each time in a new process with an empty cache. Imports are not part of the time.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks.machine import describe, write_measured

FORMATS = {"csv": "csv", "jsonl": "json", "parquet": "parquet"}
"""The name that `datasets` has for each format."""
LIBRARIES = ("continual_petl", "datasets")


def write(folder: Path, num_rows: int) -> None:
    """Write the same rows in each format: a text of twelve words, one of ten labels, an integer and a decimal."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(0)
    rows = [
        {
            "text": " ".join(f"word{draw.randrange(5000)}" for _ in range(12)) + "," * (number % 3 == 0),
            "label": f"class{number % 10}",
            "id": number,
            "score": number / 7,
        }
        for number in range(num_rows)
    ]
    with open(folder / "rows.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")


def read(library: str, path: Path) -> dict[str, float]:
    """Return the seconds and the peak memory in MB of reading a file in this process."""
    import datasets
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401 (otherwise only one library would have imported it)

    from continual_petl.streams.reader.wanted import Wanted
    from continual_petl.streams.schema.limits_spec import DEFAULTS
    from continual_petl.streams.sources.local_files import read_table

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        columns: Any
        if library == "datasets":
            kind = FORMATS[path.suffix[1:]]
            columns = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=cache)
        else:
            columns = read_table("t", [str(path)], Wanted({"text", "label"}), DEFAULTS)
        cells = [[*columns["text"][:]], [*columns["label"][:]]]
        seconds = time.perf_counter() - start
    assert len(cells[0]) == len(cells[1])
    status = Path("/proc/self/status").read_text("ascii")  # getrusage would count the process that started this one
    return {"seconds": seconds, "peak_mb": int(status.split("VmHWM:")[1].split()[0]) / 1024}


def main(arguments: list[str]) -> None:
    """Read all files in turns, and print or write the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.reading", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.read:
        print(json.dumps(read(given.read[0], Path(given.read[1]))))
        return
    machine = describe(torch.device("cpu"))
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        suffix: {library: [] for library in LIBRARIES} for suffix in FORMATS
    }
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows)
        for turn in range(given.repeats):
            for suffix, own in found.items():
                for library, samples in own.items():
                    command = [sys.executable, "-m", "experiments.benchmarks.reading", "--read", library]
                    done = subprocess.run([*command, f"{folder}/rows.{suffix}"], check=True, stdout=subprocess.PIPE)
                    samples.append(json.loads(done.stdout))
                    print(f"{turn}: {suffix}, {library}: {samples[-1]}", file=sys.stderr, flush=True)
    medians = {
        suffix: {
            library: {what: statistics.median(sample[what] for sample in samples) for what in samples[0]}
            for library, samples in own.items()
        }
        for suffix, own in found.items()
    }
    as_given = f"python -m experiments.benchmarks.reading --rows {given.rows} --repeats {given.repeats}"
    write_measured({"samples": found, "medians": medians}, as_given, machine, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])

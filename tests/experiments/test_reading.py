"""The benchmark of reading: both libraries read the same rows, in every format."""

from __future__ import annotations

from pathlib import Path

from experiments.benchmarks.reading import FORMATS, LIBRARIES, read, write


def test_both_libraries_read_every_format(tmp_path: Path) -> None:
    write(tmp_path, 1200)
    for suffix in FORMATS:
        found = [read(library, tmp_path / f"rows.{suffix}") for library in LIBRARIES]
        assert all(sample["seconds"] > 0 for sample in found)

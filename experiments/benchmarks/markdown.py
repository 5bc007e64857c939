"""Building blocks of all tables, and the only place where numbers are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continual_petl.errors import InputError
from experiments.benchmarks.result import Result


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column holds text, the other columns hold numbers.

    Example:
        >>> print(grid(["", "ms"], [["ours", "3.1"]]))
        |  | ms |
        |---|---:|
        | ours | 3.1 |
    """
    lines = [list(header), ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(
        "|" + "|".join(cells) + "|" if number == 1 else "| " + " | ".join(cells) + " |"
        for number, cells in enumerate(lines)
    )


def replace_section(path: Path, begin: str, end: str, section: str) -> None:
    """Write a file again with another section between two markers.

    Raises:
        InputError: if the file lacks one of the markers.
    """
    before, first, rest = path.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise InputError(f"{path.name}: it needs the lines {begin} and {end}; the tables are written between them.")
    path.write_text(f"{before}{begin}\n{section}\n{end}{after}", encoding="utf-8")


def number(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits.

    Example:
        >>> number(0.012345), number(1234.5), number(0.0)
        ('0.0123', '1230', '0')
    """
    text = f"{float(f'{value:.{digits}g}'):f}".rstrip("0").rstrip(".")
    return text or "0"


def percent(share: float) -> str:
    """Format a share in percent.

    Example:
        >>> percent(0.654)
        '65.4 %'
    """
    return f"{100 * share:.1f} %"


def factor(value: float) -> str:
    """Format a ratio.

    Example:
        >>> factor(1.839)
        '1.84 x'
    """
    return f"{value:.2f} x"


def head(result: Result) -> str:
    """Return the lines that describe how a table was measured, and on which machine."""
    machine, settings = result.machine, result.settings
    units = f" ({', '.join(machine.units)})" if machine.units else ""
    device = "" if machine.device == "cpu" else f"; {machine.device}"
    software = "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in sorted(found.items()))
        for name, found in result.versions.items()
    )
    changed = " with changes" if result.changed else ""
    # Not used for the table of decoders, whose body states their sizes.
    sizes = f"{settings['shape']}, batch {settings['batch']} x {settings['length']}"
    clock = "" if settings["clock"] == "wall" else " Seconds are processor time, not wall-clock time."
    return "\n".join(
        [
            f"# {result.table}" if result.table == "decoder" else f"# {result.table}: {sizes}",
            "",
            f"    {result.command}",
            "",
            f"{result.began}, commit {result.commit[:12]}{changed}. {machine.processor}{units}, {machine.cores} cores, "
            f"{machine.threads} threads, {machine.memory / 2**30:.0f} GiB{device}; load averages before the start: "
            f"{', '.join(number(value) for value in machine.load_before)}. Medians of {settings['repetitions']} "
            f"repetitions after {settings['warmup']} rounds of warm-up, with alternating candidates.{clock} {software}.",
            "",
        ]
    )

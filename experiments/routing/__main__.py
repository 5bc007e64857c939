"""The command: ``python -m experiments.routing --data FOLDER [--only PART ...] [--runs FOLDER] [--oos FILE]
[--out FOLDER]``.

Learns three streams, measures how rows are routed to their task, and writes raw results and the page. ``pages`` regenerates
the page. With ``--runs``, the run folders are kept, and tasks that they already contain are not learned again.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from continual_petl.errors import InputError
from experiments.benchmarks.machine import commit
from experiments.routing.measure import MEASURES
from experiments.routing.page import page
from experiments.routing.read import TaskRows
from experiments.routing.result import HERE, PARTS, Part, Result, made, read_results
from experiments.routing.streams import CLASSIC, LONG, TEXTS, Scale
from experiments.studies.trial import data_digest


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m experiments.routing", description=__doc__, allow_abbrev=False)
    parser.add_argument("pages", nargs="?", choices=["pages"], help="regenerate the page from the raw results")
    parser.add_argument("--data", type=Path, help="folder with one subfolder of rows per task")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure only these streams")
    parser.add_argument("--runs", type=Path, help="folder in which the run folders are kept")
    parser.add_argument("--oos", type=Path, help="file with one text per line that belongs to no class of CLINC150")
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for page and results; default: experiments/routing"
    )
    given = parser.parse_args(arguments)
    if given.pages is None and given.data is None:
        parser.error("--data is missing: give the folder that has one subfolder of rows per task, or use pages")
    return given


def measure(
    data: Path,
    out: Path,
    scale: Scale,
    parts: list[Part],
    runs: Path | None = None,
    oos: Path | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Measure some streams and write their results and the page."""
    at, texts = commit(), [] if oos is None else _texts(oos)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if runs is None else runs
        known: dict[str, TaskRows] = {}
        for part in parts:
            began = datetime.now(UTC)
            found = MEASURES[part](data, folder, scale, tell, known, texts)
            result = made(
                part,
                found,
                at=at,
                began=began,
                settings=_settings(scale),
                data=_digests(part, data),
                command=_command(parts, oos),
                out_of_scope=None if oos is None or part != "classes" else _described(oos, texts),
            )
            result.write(out / "results")
            write_page(out)


def write_page(out: Path) -> dict[Part, Result]:
    """Write the page for the results in a folder."""
    results = read_results(out / "results")
    (out / "README.md").write_text(page(results), encoding="utf-8")
    return results


def _settings(scale: Scale) -> dict[str, object]:
    return asdict(scale) | {"backbone": scale.backbone if scale.backbone == "minilm" else "other"}


def _digests(part: Part, data: Path) -> dict[str, str]:
    names = {"long": LONG, "classes": ("clinc150", *TEXTS), "joint": ("clinc150",)}.get(part, CLASSIC)
    return {name: data_digest(data, name) for name in names}


def _texts(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--oos: {file} cannot be read as a text file in UTF-8: {error}") from None


def _described(file: Path, texts: list[str]) -> dict[str, object]:
    return {"rows": len(texts), "digest": hashlib.sha256(file.read_bytes()).hexdigest()[:16]}


def _command(parts: list[Part], oos: Path | None) -> str:
    only = [] if set(parts) == set(PARTS) else ["--only", *parts]
    return " ".join(["python -m experiments.routing --data FOLDER", *only, *(() if oos is None else ("--oos FILE",))])


def main(arguments: list[str]) -> int:
    """Run the command; return 2 if the input is invalid."""
    given = parse(arguments)
    try:
        if given.pages:
            write_page(given.out)
        else:
            tell = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
            measure(given.data, given.out, Scale(), given.only, given.runs, given.oos, tell)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Write the report of one run, or of several side by side: a folder that works without server or network.

The output depends on the facts alone: equal facts give equal bytes. Every file is replaced in one step, the page last, so a
reader sees either the old page or the new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from continual_petl._version import VERSION
from continual_petl.report.figures.style import plotly_js
from continual_petl.report.page import compared_runs, render
from continual_petl.report.page.details import first_line, script_of
from continual_petl.report.page.parts import Section
from continual_petl.report.page.sections import TOGETHER, sections
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.files.atomic import make_folder, write_file
from continual_petl.store.files.lock import is_alive
from continual_petl.store.files.reading import refuse_links_inside

PAGE, STAMP, PLOTLY, TASKS = "index.html", "stamp", "plotly.min.js", "tasks"
_NO_STAMP = "0" * 16
_UNFINISHED = re.compile(rf"\.(?:{'|'.join(map(re.escape, (PAGE, STAMP, PLOTLY)))}|\d{{6}}\.js)\.(\d+)\.new")


def write_report(folder: Path, facts: RunFacts, *, live: bool = False) -> Path:
    """Write the report of a run; task details that are still up to date are not rewritten.

    Args:
        folder: the output folder; created if it does not exist.
        facts: the facts about the run.
        live: whether the page checks for a newer one, as it does while it is served.

    Returns:
        The page.

    Raises:
        StoreError: if a file cannot be written, or a link leads out of the run; the old page is then kept.
    """
    refuse_links_inside(facts.folder, folder / TASKS)
    with _none_if_failing(folder):
        return _write_report(folder, facts, live=live)


def _write_report(folder: Path, facts: RunFacts, *, live: bool) -> Path:
    make_folder(folder / TASKS)
    kept, together = set(), TOGETHER if facts.is_long else 1
    for start in range(0, len(facts.tasks), together):
        path, tasks = folder / TASKS / f"{start:06}.js", facts.tasks[start : start + together]
        kept.add(path)
        if not _begins_with(path, first_line(tasks, start, drawn_by())):
            write_file(path, script_of(tasks, start, drawn_by(), packed=facts.is_long).encode())
    page = _write_page(folder, facts.name, sections(facts), [facts], live=live)
    _remove_unfinished(folder / TASKS)
    for path in set((folder / TASKS).iterdir()) - kept:
        if re.fullmatch(r"\d{6}\.js", path.name):  # from a run that had more tasks
            path.unlink(missing_ok=True)
    return page


def write_comparison(
    folder: Path, runs: Sequence[RunFacts], *, live: bool = False, more: Sequence[Section] = ()
) -> Path:
    """Write a page that compares several runs; see `write_report`.

    Args:
        folder: the output folder.
        runs: the facts about each run.
        live: whether the page checks for a newer one.
        more: sections that follow the first one.
    """
    for facts in runs:
        refuse_links_inside(facts.folder, folder)
    names = compared_runs.named(runs)
    first, *others = compared_runs.sections(names)
    parts = [first, *more, *others]
    title = " vs. ".join(name for name, _ in names) if len(names) <= 3 else f"{len(names)} runs side by side"
    with _none_if_failing(folder):
        make_folder(folder)
        return _write_page(folder, title, parts, runs, live=live)


@contextmanager
def _none_if_failing(folder: Path) -> Iterator[None]:
    """Remove a folder that did not exist before, with its files, if the block fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(new[-1], ignore_errors=True)
        raise


@cache
def drawn_by() -> str:
    """Return a version of the drawing code: the digest of its sources, and plotly's version."""
    digest = hashlib.sha256(f"{VERSION} {version('plotly')}".encode())
    for path in _sources(files("continual_petl.report")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(folder: Traversable) -> list[Traversable]:
    inside = sorted(folder.iterdir(), key=lambda path: path.name)
    nested = [source for path in inside if path.is_dir() for source in _sources(path)]
    return [path for path in inside if path.name.endswith((".py", ".j2", ".css", ".js"))] + nested


def _remove_unfinished(folder: Path) -> None:
    """Remove half-written files of killed processes, but not of live ones, which may be writing to the folder right now."""
    for path in folder.iterdir():
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None and not is_alive(int(match[1])):
            path.unlink(missing_ok=True)


def _begins_with(path: Path, line: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(line)) == line.encode()
    except OSError:
        return False


def _write_page(folder: Path, title: str, parts: Sequence[Section], runs: Sequence[RunFacts], *, live: bool) -> Path:
    _remove_unfinished(folder)
    script, plotly = folder / PLOTLY, plotly_js().encode()
    if not script.is_file() or script.read_bytes() != plotly:
        write_file(script, plotly)
    read_at, folders = max(facts.read_at for facts in runs), ", ".join(os.fspath(facts.folder) for facts in runs)
    page = render.page(title, parts, read_at, folders, stamp=_NO_STAMP, live=live)
    stamp = hashlib.sha256(page.encode()).hexdigest()[:16]
    # Replace only the first occurrence: the only text of the run before it is the title, whose quotation marks are escaped.
    page = page.replace(f'data-stamp="{_NO_STAMP}"', f'data-stamp="{stamp}"', 1)
    write_file(folder / PAGE, page.encode())
    write_file(folder / STAMP, stamp.encode())
    return folder / PAGE

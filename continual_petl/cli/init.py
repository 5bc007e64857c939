"""``continual-petl init``: look at data, and write a stream file that runs."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from continual_petl.cli._console import out, print_json
from continual_petl.cli.limits import given_limits
from continual_petl.errors import InputError, printable
from continual_petl.store.atomic import write_file
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.data_spec import is_url
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.starting.choose import choose
from continual_petl.streams.starting.draft import about_numbers, draft
from continual_petl.streams.starting.guess import guess
from continual_petl.streams.starting.look import look
from continual_petl.streams.starting.profile import profile
from continual_petl.streams.stream_file.yaml_file import load_stream


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code: 1 if the file was written, but rows of the data cannot be used as they are."""
    file = Path(arguments.output)
    for data in arguments.data:
        suffix = Path(data).suffix
        known = suffix in (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".gz")
        if known and not is_url(data) and not Path(data).exists():
            raise InputError(
                f"{data}: there is no such file in {Path.cwd()}; a name that ends in {suffix} is no Hub name either"
            )
    _check_file(file, force=arguments.force)
    if arguments.rows < 1:
        raise InputError(f"--rows: got {arguments.rows}; allowed are whole numbers from 1")
    limits, tasks = given_limits(arguments), []
    for data in arguments.data:
        seen = look(data, limits, arguments.rows)
        tasks.append((seen, guess(data, profile(seen.table))))
    backbone = choose({seen.data: found.kind for seen, found in tasks}, arguments.backbone)
    tasks = [(s, replace(g, kind=backbone.writes if g.kind == "seq2seq" else g.kind)) for s, g in tasks]
    text = draft(str(file), arguments.name or file.stem, tasks, str(file.parent), backbone=backbone)
    spec = _written(file, text)
    problems = _problems(spec)
    if arguments.json:
        made = [{"name": t.name, "kind": t.kind, "why": g.why} for t, (_, g) in zip(spec.tasks, tasks, strict=True)]
        print_json({"file": str(file), "backbone": backbone.name, "tasks": made, "problems": problems})
        return 1 if problems else 0
    said = [f"{s.data}: {g.words}, because {g.why} in {s.rows}" for s, g in tasks]
    said += [f"{s.data}: {remark}" for s, g in tasks if (remark := about_numbers(s, g)) is not None]
    said.append(f"backbone {backbone.name}: {backbone.why}")
    said += [f"to mend before it runs: {problem}" for problem in problems]
    said.append(f"wrote {file}; next: continual-petl run {file} --dry-run")
    for line in said:
        out().print(printable(line), markup=False, soft_wrap=True)
    return 1 if problems else 0


def _check_file(file: Path, *, force: bool) -> None:
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"--output {file}: a stream file ends in .yaml; give it such a name")
    if not file.parent.is_dir():
        raise InputError(f"--output {file}: there is no folder {file.parent}; create it, or write elsewhere")
    if file.is_dir() or (file.exists() and not force):
        raise InputError(f"--output: {file} is there already; give another name, or --force to write over it")


def _written(file: Path, text: str) -> StreamSpec:
    """Write the file, once what it says was read back without a mistake; return what it says."""
    beside = file.with_name(f".{file.stem}.{os.getpid()}.yaml")  # in its folder, from which paths count
    try:
        write_file(beside, text.encode())
        spec = load_stream(beside)
    finally:
        beside.unlink(missing_ok=True)
    write_file(file, text.encode())
    return spec


def _problems(spec: StreamSpec) -> list[str]:
    """Return what a run would refuse of the rows."""
    problems = []
    for task in spec.tasks:
        try:
            check_data(spec, task)
        except InputError as error:
            problems.append(str(error))
    return problems

"""Inspect data files and write a first stream file.

DATA is a .csv, .tsv, .json, .jsonl or .parquet file (text formats also as .gz), a folder with train, validation
and test files, or the name of a data set on the Hub (nyu-mll/glue:sst2 with its configuration). Each becomes one
task; its kind and columns are guessed from its rows, and comments in the file say why. Exit code 1 if some rows need to
be corrected first.

examples:
  continual-petl init trec.csv stsb.csv
  continual-petl init data/agnews data/dbpedia --output news.yaml
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import add_json, add_limits, given_limits
from continual_petl.errors import InputError, quoted

if TYPE_CHECKING:
    from continual_petl.banks.config.spec import BankSpec
    from continual_petl.streams.scaffold.choose_backbone import Chosen
    from continual_petl.streams.scaffold.guess import Guess
    from continual_petl.streams.scaffold.inspect_data import InspectedData
    from continual_petl.streams.schema.stream_spec import StreamSpec

PLACE = 110


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("data", metavar="DATA", nargs="+", help="a file, a folder, or a data set on the Hub")
    text = "the file to write (default: stream.yaml)"
    command.add_argument("--output", metavar="FILE", default="stream.yaml", help=text)
    command.add_argument("--name", metavar="NAME", help="name of the stream (default: the name of the file)")
    text = "the pre-trained model (default: minilm if it supports every kind found, otherwise one that does)"
    command.add_argument("--backbone", metavar="NAME", help=text)
    command.add_argument("--force", action="store_true", help="overwrite an existing file")
    text = "number of rows of each DATA from which kind and columns are guessed (default: 10000)"
    command.add_argument("--rows", metavar="N", type=int, default=10_000, help=text)
    add_json(command)
    add_limits(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code: 1 if the file was written, but some rows of the data cannot be used."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.kind_registry import kind_of
    from continual_petl.streams.reader.records import reader_of
    from continual_petl.streams.scaffold.choose_backbone import choose_backbone
    from continual_petl.streams.schema.data_spec import is_url, local_path
    from continual_petl.streams.sources.local_files import matching
    from continual_petl.streams.stream_file.file_types import refuse_other_type

    file = Path(arguments.output)
    for data in arguments.data:
        refuse_other_type(local_path(data), "data", takes=("rows", "data"))
        if reader_of(data) is not None and not is_url(data) and not matching(local_path(data)):
            raise InputError(
                f"{data}: there is no such file in {Path.cwd()}; check the path (a name ending in "
                f"{Path(data).suffix} is not looked up on the Hub)"
            )
    _check_file(file, force=arguments.force)
    if arguments.rows < 1:
        raise InputError(f"--rows: got {arguments.rows}; must be at least 1")
    from continual_petl.streams.scaffold.draft import draft  # heavy: takes seconds to import
    from continual_petl.streams.scaffold.guess import guess
    from continual_petl.streams.scaffold.header import header_remark
    from continual_petl.streams.scaffold.inspect_data import inspect_data
    from continual_petl.streams.scaffold.profile import profile

    limits, tasks = given_limits(arguments), []
    for data in arguments.data:
        seen = inspect_data(data, limits, arguments.rows)
        tasks.append((seen, guess(data, profile(seen.table))))
    backbone = choose_backbone({seen.data: found.kind for seen, found in tasks}, arguments.backbone)
    tasks = [(s, replace(g, kind=backbone.writes if kind_of(g).generates else g.kind)) for s, g in tasks]
    text = draft(str(file), arguments.name or file.stem, tasks, str(file.parent), backbone=backbone)
    spec = _written(file, text)
    problems, remarks = _read(spec, backbone.name)
    unavailable = _unavailable(backbone.name)
    remarks += unavailable
    tables = [(seen.data, seen.table) for seen, _ in tasks if seen.reader == "csv"]
    remarks += [remark for data, table in tables if (remark := header_remark(data, table)) is not None]
    if arguments.json:
        tasks_made, more = _to_json(spec, tasks), {"problems": problems, "remarks": remarks}
        print_json({"file": str(file), "backbone": backbone.name, "tasks": tasks_made, **more})
    else:
        then = "once its backbone can be loaded" if unavailable else "next"
        say(
            *_in_words(spec, tasks, backbone),
            *remarks,
            *(f"fix before running: {problem}" for problem in problems),
            f"wrote {file}; {then}: continual-petl run {quoted(file)} --dry-run",
        )
    return 1 if problems else 0


def _to_json(spec: StreamSpec, tasks: Sequence[tuple[InspectedData, Guess]]) -> list[dict[str, object]]:
    """Return what was found, task by task."""
    from continual_petl.exchange.formats import refused_by_bank

    return [
        {
            **{"name": t.name, "kind": t.kind, "why": g.why, "pairing": g.pairing, "texts_not_read": g.texts_left},
            "exports_refused": refused_by_bank(spec.resolved_bank(t)),
        }
        for t, (_, g) in zip(spec.tasks, tasks, strict=True)
    ]


def _in_words(spec: StreamSpec, tasks: Sequence[tuple[InspectedData, Guess]], backbone: Chosen) -> list[str]:
    """Return what was found, and why, one line for each finding."""
    from continual_petl.streams.scaffold.draft import about_numbers

    return [
        *(f"{seen.data}: {found.words}, because {found.why} in {seen.rows}" for seen, found in tasks),
        *(f"{seen.data}: {found.pairing}" for seen, found in tasks if found.pairing),
        *(f"{seen.data}: {remark}" for seen, found in tasks if (remark := about_numbers(seen, found)) is not None),
        f"backbone {backbone.name}: {backbone.why}",
        *(_about_exports(task.name, spec.resolved_bank(task)) for task in spec.tasks),
    ]


def _about_exports(task: str, bank: BankSpec) -> str:
    from continual_petl.exchange.formats import FORMATS, in_words, refused_by_bank

    refused = refused_by_bank(bank)
    if len(refused) < len(FORMATS):  # the others depend on the backbone, which is not loaded here
        return f"task {task!r}: --dry-run says in which formats it can be exported"
    return f"task {task!r} can be exported {in_words(refused)}"


def _check_file(file: Path, *, force: bool) -> None:
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"--output {file}: the name of a stream file has to end in .yaml; give another name")
    if not file.parent.is_dir():
        raise InputError(f"--output {file}: there is no folder {file.parent}; create it, or write elsewhere")
    if file.is_dir() or (file.exists() and not force):
        raise InputError(f"--output: {file} already exists; give another name, or --force to overwrite it")


def _written(file: Path, text: str) -> StreamSpec:
    """Write the file once its content loads without errors; return the loaded stream."""
    from continual_petl.store.files.atomic import append_bytes, replacing
    from continual_petl.streams.stream_file.yaml_file import load_stream

    with replacing(file) as beside:  # in the same folder, as paths are relative to it
        append_bytes(beside, text.encode())
        return load_stream(beside)


def _read(spec: StreamSpec, backbone: str) -> tuple[list[str], list[str]]:
    """Return the problems that a run would find in the rows, and remarks on the columns."""
    from continual_petl.streams.preparation.prepare import column_remarks  # heavy

    problems: list[str] = []
    remarks: list[str] = []
    tokenizer = None
    if any(task.reads_chats for task in spec.tasks):
        if os.path.isdir(os.path.expanduser(backbone)):
            from continual_petl.backbones.tokenizer import load_tokenizer

            try:
                tokenizer = load_tokenizer(os.path.expanduser(backbone))
            except InputError as error:
                problems.append(str(error))
        else:
            remarks.append("--dry-run shows the first conversation, rendered with the backbone's chat template")
    for task in spec.tasks:
        try:
            remarks += column_remarks(spec, task, tokenizer)
        except InputError as error:
            problems.append(str(error))
    return problems, remarks


def _unavailable(backbone: str) -> list[str]:
    """Return why the backbone cannot be loaded; only checked if access to the Hub is disabled, so that no request is made."""
    from huggingface_hub import constants

    from continual_petl.backbones.available import check_available

    if constants.HF_HUB_OFFLINE:
        try:
            check_available(backbone, None)
        except InputError as error:
            return [str(error)]
    return []

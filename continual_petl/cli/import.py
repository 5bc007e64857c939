"""``continual-petl import``: add an adapter from another library to a run, as a task."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl._process import heavy_imports
from continual_petl.cli._console import out, print_json
from continual_petl.cli.shared_options import check_given
from continual_petl.errors import InputError
from continual_petl.store.open_run import open_store
from continual_petl.streams.stream_file.file_types import refuse_other_type


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    check_given(arguments.task, "import")
    open_store(arguments.run)  # before torch is imported
    refuse_other_type(arguments.folder, "the folder of an adapter", takes=["adapter"])
    if not Path(arguments.folder).is_dir():
        raise InputError(f"{arguments.folder}: there is no such folder; give the folder that save_pretrained wrote")
    with heavy_imports():
        from continual_petl.engine.commands import import_adapter

    run = import_adapter(
        arguments.run,
        arguments.folder,
        arguments.task,
        data=arguments.data,
        kind=arguments.kind,
        labels=None if arguments.labels is None else [*map(str.strip, arguments.labels.split(","))],
        pooling=arguments.pooling,
        base=arguments.base,
        remote_code=arguments.remote_code,
        wait=arguments.wait,
    )
    certificate = run.store.certificate(arguments.task)
    score = None if certificate.score is None else round(certificate.score, 4)
    if arguments.json:
        origin = None if certificate.origin is None else certificate.origin.model_dump(mode="json")
        content = {
            "task": certificate.task,
            "kind": certificate.kind,
            "labels": certificate.labels,
            "metric": certificate.metric,
        }
        print_json({**content, "score": certificate.score, "measured": certificate.is_measured, "origin": origin})
    else:
        scored = f"{certificate.metric} {score} on its {certificate.counted_split} rows"
        what = scored if certificate.is_measured else "not measured; give rows with --data to measure it"
        said = f"imported task {certificate.task} ({certificate.kind}) from {certificate.started_from}: {what}"
        out().print(said, markup=False, soft_wrap=True)
    return 0

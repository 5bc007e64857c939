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
    manifest = run.store.manifest(arguments.task)
    score = None if manifest.score is None else round(manifest.score, 4)
    if arguments.json:
        origin = None if manifest.origin is None else manifest.origin.model_dump(mode="json")
        content = {"task": manifest.task, "kind": manifest.kind, "labels": manifest.labels, "metric": manifest.metric}
        print_json({**content, "score": manifest.score, "measured": manifest.is_measured, "origin": origin})
    else:
        scored = f"{manifest.metric} {score} on its {manifest.counted_split} rows"
        what = scored if manifest.is_measured else "not measured; give rows with --data to measure it"
        said = f"imported task {manifest.task} ({manifest.kind}) from {manifest.started_from}: {what}"
        out().print(said, markup=False, soft_wrap=True)
    return 0

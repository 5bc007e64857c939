"""Add an adapter from another library to a run, as a task.

Nothing is trained. Before the bank is committed, its outputs are compared with what the other library would
compute. An adapter that a bank cannot express exactly is refused, with the reason. Nothing in the folder is executed.

examples:
  continual-petl import runs/mine adapters/trec trec
  continual-petl import runs/mine adapters/trec trec --labels ABBR,DESC,ENTY,HUM,LOC,NUM --data data/trec
"""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task, add_wait, check_given
from continual_petl.errors import InputError

PLACE = 250


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    command.add_argument("folder", metavar="FOLDER", help="the adapter's folder, written by peft or adapters")
    add_task(command, "name of the new task")
    text = "rows to measure scores on, as under data in a stream file (default: scores are not measured)"
    command.add_argument("--data", metavar="DATA", help=text)
    command.add_argument("--kind", metavar="KIND", help="kind of the task (default: from the adapter)")
    text = "names of the head's outputs, in order (default: from the adapter)"
    command.add_argument("--labels", metavar="A,B,...", help=text)
    text = "how token states are pooled before a head in head.safetensors (default: from the adapter or the stream)"
    command.add_argument("--pooling", choices=("first", "mean", "last", "pooler"), help=text)
    text = "the adapter's base model, if it is the run's backbone under another name"
    command.add_argument("--base", metavar="NAME", help=text)
    add_remote_code(command)
    add_wait(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl._process import heavy_imports
    from continual_petl.cli._console import print_json, say
    from continual_petl.store.open_run import open_store
    from continual_petl.streams.stream_file.file_types import refuse_other_type

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
        outcome = scored if certificate.is_measured else "not measured; give rows with --data to measure it"
        said = f"imported task {certificate.task} ({certificate.kind}) from {certificate.started_from}: {outcome}"
        say(said)
    return 0

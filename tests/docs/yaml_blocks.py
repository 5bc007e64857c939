"""Check a YAML block with the package's own loaders: a whole stream, keys of a stream, tasks, a sweep, or named banks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from continual_petl.banks.config.choice import BankChoice
from continual_petl.errors import StreamFileError
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from continual_petl.sweep.settings import load_sweep
from tests.docs.blocks import Block

_TASK = {"name": "shown", "kind": "classification", "data": "data/shown"}
_STREAM = {"name": "shown", "backbone": "minilm", "tasks": [_TASK]}


def check_yaml(block: Block, folder: Path) -> None:
    """Check a YAML block; a whole stream, task or sweep is also written to a file in the page's folder.

    The block's title is the name of the file. Without a title, a stream is written to ``stream.yaml``, a task to a file named
    after it, and a sweep to ``sweep.yaml``.
    """
    try:
        tree = yaml.safe_load(block.text)
    except yaml.YAMLError as error:
        raise block.broken(f"is not valid YAML: {error}") from None
    try:
        if isinstance(tree, dict) and {"name", "backbone", "tasks"} <= set(tree):
            load_stream(_written(block, folder / (block.title or "stream.yaml")))
        elif isinstance(tree, dict) and {"name", "kind", "data"} <= set(tree) <= set(TaskSpec.model_fields):
            load_task(_written(block, folder / (block.title or f"{tree['name']}.yaml")))
        elif isinstance(tree, dict) and "space" in tree:
            load_sweep(_written(block, folder / (block.title or "sweep.yaml")))
        elif block.title is not None:
            raise block.broken("a block with a title must be a whole stream, a whole task or a sweep")
        else:
            _check_part(block, tree, folder)
    except (StreamFileError, ValueError) as error:
        raise block.broken(str(error)) from None


def _check_part(block: Block, tree: Any, folder: Path) -> None:
    if isinstance(tree, list):
        _load(_STREAM | {"tasks": tree}, folder)
    elif isinstance(tree, dict) and tree and set(tree) <= set(StreamSpec.model_fields):
        _load(_STREAM | tree, folder)
    elif isinstance(tree, dict) and tree and set(tree) <= set(TaskSpec.model_fields):
        _load(_STREAM | {"tasks": [_TASK | tree]}, folder)
    elif isinstance(tree, dict) and tree and all(_is_bank(value) for value in tree.values()):
        for value in tree.values():
            BankChoice.model_validate(value).resolve()
    else:
        raise block.broken(
            "is not a stream, keys of a stream or task, a list of tasks, or a mapping from names to banks"
        )


def _is_bank(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and bool({"preset", "modifications"} & set(value)))


def _load(tree: dict[str, Any], folder: Path) -> None:
    file = folder / ".part.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    load_stream(file)
    file.unlink()


def _written(block: Block, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text, encoding="utf-8")
    return file

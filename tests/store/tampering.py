"""A small run, and ways to change its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from continual_petl import Run, learn
from continual_petl.store.certificate.certificate import read_certificate, write_certificate
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.folder.results_file import TaskLine, append_results, read_results
from continual_petl.store.store import Store
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = [task(name, num_rows=16) for name in ("one", "two", "three")]
QUICK = {"epochs": 1}


def learn_one_more(backbone: Path, folder: Path, *, replace: Sequence[str] = ()) -> Run:
    tasks = stream(backbone, [*TASKS, task("four", num_rows=16)], training=QUICK)
    return learn(tasks, folder, replace=replace)


def problems(folder: Path) -> dict[str, str]:
    return {check.task: " ".join(check.problems) for check in Run(folder).verify() if not check.ok}


def bank_files(folder: Path, *names: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in names
        for path in (folder / "banks" / name).iterdir()
    }


def interrupt() -> None:
    raise KeyboardInterrupt


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def nudge(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[0].add_(1e-7)


def edit(path: Path, *, sealed: bool, **values: Any) -> None:
    """Change a certificate; with ``sealed``, also update its seal wherever it is recorded, as a knowledgeable attacker
    would.
    """
    if sealed:
        certificate = read_certificate(path).model_copy(update=values)
        write_certificate(path, certificate)
        name_certificates(path.parents[2], {certificate.task: read_certificate(path).seal})
    else:
        path.write_bytes(json_bytes(json.loads(path.read_text()) | values))


def edit_stream(folder: Path, old: str, new: str) -> None:
    """Change a run's stream.yaml and seal it again, as a knowledgeable attacker would."""
    text = (folder / "stream.yaml").read_text()
    assert old in text
    Store(folder).write_stream(text[: text.index("# SHA-256")].replace(old, new))


def name_certificates(folder: Path, seals: Mapping[str, str]) -> None:
    """Rewrite results.jsonl with the given seals of the tasks' certificates."""
    lines = [
        line.model_copy(update={"certificate": seals.get(line.task, line.certificate)})
        if isinstance(line, TaskLine)
        else line
        for line in read_results(folder / "results.jsonl")
    ]
    (folder / "results.jsonl").unlink(missing_ok=True)
    append_results(folder / "results.jsonl", lines)

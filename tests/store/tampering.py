"""A small run, and ways to change its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from continual_petl import Run, learn
from continual_petl.digests import file_digest
from continual_petl.store.certificate.certificate import read_certificate, write_certificate
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.ledger.ledger_file import NAME, Mark, read_ledger, sealed_lines
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, Line
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


def edit(path: Path, *, sealed: bool, onwards: bool = False, **values: Any) -> None:
    """Change a certificate; with ``sealed``, also update its seal wherever the ledger records it, as a knowledgeable
    attacker would; with ``onwards``, also the certificates that follow in the chain.
    """
    if sealed:
        write_certificate(path, read_certificate(path).model_copy(update=values))
        reseal(path, onwards=onwards)
    else:
        path.write_bytes(json_bytes(json.loads(path.read_text()) | values))


def reseal(path: Path, *, onwards: bool) -> None:
    """Give a certificate that was changed its place in the ledger; with ``onwards``, those that follow name it."""
    folder, seals = path.parents[2], dict[str | None, str]()

    def renewed(line: Line) -> Line:
        if isinstance(line, FinishedLine):
            return line.model_copy(update={"certificate": seals.get(line.certificate, line.certificate)})
        if not isinstance(line, CommitLine):
            return line
        file = folder / "banks" / line.folder / "bank.json"
        if file != path:
            if not (onwards and line.predecessor in seals):
                return line
            update = {"predecessor": seals[line.predecessor]}
            write_certificate(file, read_certificate(file).model_copy(update=update))
        content = json.loads(file.read_bytes())
        seals[line.seal] = content["seal"]
        repeated = ("index", "predecessor", "seal", "kind", "metric", "errors", "parameters", "digest")
        same = {name: content[name] for name in repeated if name in content}
        return line.model_copy(update={**same, "file": file_digest(file)})

    rewrite(folder, [renewed(line) for line in lines_of(folder)])


def edit_stream(folder: Path, old: str, new: str) -> None:
    """Change a run's stream.yaml and seal it again, as a knowledgeable attacker would."""
    text = (folder / "stream.yaml").read_text()
    assert old in text
    Store(folder).write_stream(text[: text.index("# SHA-256")].replace(old, new))


def lines_of(folder: Path) -> list[Line]:
    """Return the lines of a run's ledger."""
    return [sealed.parsed() for sealed in read_ledger(folder / NAME)]


def rewrite(folder: Path, lines: Sequence[Line]) -> None:
    """Write a ledger with these lines, each properly sealed."""
    (folder / NAME).write_bytes(sealed_lines(lines, Mark())[0])

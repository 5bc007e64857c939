"""A run folder as older releases wrote it, made from one of today's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from continual_petl import Run
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.store.certificate.manifest import HISTORY, Manifest
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import SEAL, seal_of
from continual_petl.store.folder.results_file import TaskLine
from continual_petl.store.folder.stream_seal import sealed_stream
from continual_petl.store.store import Store
from continual_petl.store.verify.probe_file import DECODED
from tests.store.tampering import name_certificates

JOINED = {"files", "parent"}
JOINED_EARLY = {"class_weights", "generation", "max_target_length"}
OPTIONS = {"depth", "input_norm", "reparametrise", "hidden", "implementation", "density", "penalty"}


def as_format_1(folder: Path, *, first: bool) -> None:
    """Rewrite a whole run folder in format 1; ``first`` as its first certificates were."""
    run = Run(folder)
    tasks, lines = run.store.tasks, run.store.results()
    seal = None
    for task in tasks:
        path = run.store.bank_folder(task)
        _older_probe(path / "probe.safetensors")
        (path / HISTORY).unlink(missing_ok=True)
        raw = run.store.manifest(task).model_dump(mode="json")
        if first:
            raw["preparation"] = run.session.models.inputs.first_digest()
        seal = _write(path, raw, seal, first=first)
    rows = []
    for line in lines:
        if isinstance(line, TaskLine):
            rows.append({"type": "task", "task": line.task, "seconds": line.seconds})
        else:
            cells = [cell.model_dump(exclude={"index"}) for cell in line.cells]
            rows += [{"type": "cell", "after": line.after, **cell} for cell in cells]
    (folder / "results.jsonl").write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    pin = json.loads((folder / "backbone.json").read_text())
    kept = {key: pin[key] for key in ("name", "revision", "digest", "family", "num_parameters")}
    (folder / "backbone.json").write_bytes(json_bytes(kept | ({"num_bytes": 1} if first else {})))


def without_histories(folder: Path) -> None:
    """Rewrite the certificates of a run folder as those of the first release of format 2, which kept no histories."""
    store, before = Store(folder), None
    for manifest in [store.manifest(task) for task in store.tasks]:
        path = store.bank_folder(manifest.task)
        (path / HISTORY).unlink()
        raw = manifest.model_dump(mode="json") | {"predecessor": before}
        del raw["files"][HISTORY]
        before = seal_of(raw)
        (path / "bank.json").write_bytes(json_bytes({**raw, SEAL: before}))
    name_certificates(folder, dict.fromkeys(store.tasks))


def without_defaults(file: Path) -> None:
    """Rewrite the stream file of a run or a sweep as releases without the key ``defaults`` wrote it."""
    text = file.read_text()
    assert "\ndefaults: 1\n" in text
    lines = [line for line in text.splitlines(keepends=True) if line != "defaults: 1\n"]
    if lines[-1].startswith("# SHA-256"):
        file.write_bytes(sealed_stream("".join(lines[:-1])))
    else:
        file.write_text("".join(lines))


def _write(path: Path, raw: dict[str, Any], predecessor: str | None, *, first: bool) -> str:
    content = {key: value for key, value in raw.items() if key not in JOINED}
    content |= {"format_version": 1, "predecessor": predecessor}
    content["probe"] = combined_digest(tensor_digests(load_file(path / "probe.safetensors")))
    if first:
        content = {key: value for key, value in content.items() if key not in JOINED_EARLY}
        content["tokenizer"] = content.pop("preparation")
        for modification in content["bank"]["modifications"]:
            for option in OPTIONS & modification.keys():
                del modification[option]
        content["bank"].pop("start_from", None)
        names = {name: re.sub(r"(layer_\d+)\.(self|ffn)\.", r"\1.", name) for name in content["tensors"]}
        content["tensors"] = {names[name]: entry for name, entry in content["tensors"].items()}
        tensors = load_file(path / "bank.safetensors")
        save_file({names[name]: tensor for name, tensor in tensors.items()}, path / "bank.safetensors")
        content["digest"] = combined_digest({name: entry["digest"] for name, entry in content["tensors"].items()})
    seal = seal_of(content)
    (path / "bank.json").write_bytes(json_bytes({**content, SEAL: seal}))
    assert Manifest.model_fields.keys() >= JOINED | JOINED_EARLY
    return seal


def _older_probe(path: Path) -> None:
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name not in (DECODED, "ends")}, path)

"""The readers of a run folder as fuzz targets: raw bytes instead of a file, and edits that are sealed again.

Edits (see `tests.fuzz.store_place`) are followed by a new seal, as a skilled attacker would add, so that they reach the
schema and everything after it: the loader, the chain and the backbone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save

from continual_petl import Run
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate.pinned_backbone import check_files, check_pinned
from continual_petl.store.files.atomic import json_bytes, line_bytes
from continual_petl.store.files.reading import parse_json
from continual_petl.store.files.sealed import SEAL, seal_of
from continual_petl.store.store import Store
from tests.fuzz.adapter_target import ADAPTER_TARGET
from tests.fuzz.dictionary import ODD_NUMBERS, json_tokens
from tests.fuzz.hub_target import HUB_TARGET
from tests.fuzz.request_target import REQUEST_TARGET
from tests.fuzz.router_targets import ROUTER_TARGETS
from tests.fuzz.states_target import STATES_TARGET
from tests.fuzz.store_place import BANK, FILES, PROBE, VALUES, Place, edited_by, paths_of, the_place
from tests.fuzz.target import Target
from tests.house import ROOT

STORES = ROOT / "tests" / "golden" / "stores" / "written"


def _raw(name: str) -> Callable[[bytes], None]:
    """Return a check that overwrites a file of the run with the bytes, and then reads the run as users do."""

    def check(data: bytes) -> None:
        place = the_place()
        path = place.put(FILES.get(name, BANK), data)
        try:
            _look(place, name)
        finally:
            place.restore(path.relative_to(place.run).as_posix())

    return check


def _look(place: Place, name: str) -> None:
    store = Run(place.run, session=place.session).store
    match name:
        case "certificate" | "bank":
            store.certificate("one")
            if name == "bank":
                store.tensors("one")
            _load(place)
        case "ledger":
            store.results()
            _ = store.chain()
            _ = Run(place.run, session=place.session).results.to_json()
        case "pin":
            pinned = store.pinned()
            assert pinned is not None
            backbone = place.session.models.backbone("fp32")
            check_files(store.pin_file, pinned, backbone.name, None, None)
            check_pinned(store.pin_file, pinned, backbone)
            _ = Run(place.run, session=place.session).growth
        case _:
            raise AssertionError(name)


_OLD = {"results": "results.jsonl", "tombstone": "tombstones/000010.json"}
"""Files of a run that was written before there were ledgers, in which the target overwrites one."""


@cache
def _old_place() -> Path:
    return Path(shutil.copytree(STORES / "encoder", Path(tempfile.mkdtemp(prefix="fuzz-old-")) / "run"))


def _read_old(name: str, content: bytes) -> None:
    """Overwrite a file of an old run with the bytes, and read the run."""
    path, whole = _old_place() / _OLD[name], (STORES / "encoder" / _OLD[name]).read_bytes()
    path.write_bytes(content)
    try:
        store = Store(_old_place())
        store.results()
        assert store.tasks
        assert [entry.index for entry in store.chain()] == list(range(len(store.chain())))
    finally:
        path.write_bytes(whole)


def _sealed_old(name: str) -> Callable[[bytes], None]:
    """Return a check that edits a file of an old run, seals it again, and then reads the run."""

    def check(data: bytes) -> None:
        old = (STORES / "encoder" / _OLD[name]).read_bytes()
        if name == "tombstone":
            edited = edited_by(parse_json(old, ""), data)
            if not isinstance(edited, dict):
                raise InputError("not an object")
            _read_old(name, json_bytes({**edited, SEAL: seal_of(edited)}))
            return
        lines = edited_by([parse_json(line, "") for line in old.splitlines()], data)
        if not isinstance(lines, list):
            raise InputError("not lines")
        content, before = b"", None
        for line in lines:
            body = {k: v for k, v in line.items() if k != SEAL} if isinstance(line, dict) else {"line": line}
            before = combined_digest({"before": before, "line": body})
            content += line_bytes({**body, SEAL: before})
        _read_old(name, content)

    return check


def _load(place: Place) -> None:
    """Verify task one, convert the run to JSON, and load the task's bank; verify may find problems, but must not raise."""
    run = Run(place.run, session=place.session)
    for check in run.verify("one"):
        assert check.ok or all(check.problems)
    run.to_json()
    run.store.load_bank("one", place.session.models.backbone("fp32"))


def _sealed(name: str) -> Callable[[bytes], None]:
    """Return a check that edits a file, seals it again, and then reads the run."""

    def check(data: bytes) -> None:
        place = the_place()
        old, path = place.files[FILES[name]], FILES[name]
        if name == "ledger":
            lines = [parse_json(line, "")["line"] for line in old.splitlines()]
            edited: Any = edited_by(lines, data)
            if not isinstance(edited, list):
                raise InputError("not lines")
            content, before = b"", "0" * 64
            for line in edited:
                body = json.dumps({"before": before, "line": line}).encode()[:-1]
                before = hashlib.sha256(body).hexdigest()
                content += body + b', "seal": "' + before.encode() + b'"}\n'
        else:
            edited = edited_by(parse_json(old, ""), data)
            if not isinstance(edited, dict):
                raise InputError("not an object")
            content = json_bytes({**edited, SEAL: seal_of(edited)})
        place.put(path, content)
        try:
            _look(place, name)
        finally:
            place.restore(path)

    return check


def _bank(data: bytes) -> None:
    """Edit the tensors of a bank and its probe, and update the certificate and all digests, as a skilled attacker would.

    The edited value has the keys ``bank`` and ``probe``, with each tensor as ``[dtype, shape, fill]``, and ``certificate``.
    """
    place = the_place()
    whole = {
        name: {key: [str(t.dtype)[6:], list(t.shape), None] for key, t in load_file(place.run / file).items()}
        for name, file in (("bank", BANK), ("probe", PROBE))
    }
    kept = {name: load_file(place.run / file) for name, file in (("bank", BANK), ("probe", PROBE))}
    edited = edited_by({**whole, "certificate": json.loads(place.files[FILES["certificate"]])}, data)
    try:
        made = {name: _tensors(edited[name], kept[name]) for name in ("bank", "probe")}
        certificate = dict(edited["certificate"])
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
        raise InputError("no tensors") from error
    digests = {name: tensor_digests(tensors) for name, tensors in made.items()}
    contents = {f"{name}.safetensors": save(tensors) for name, tensors in made.items()}
    certificate |= {
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        "digest": combined_digest(digests["bank"]),
        "probe": combined_digest(digests["probe"]),
    }
    if draw_entries := made["bank"]:
        certificate["tensors"] = {
            name: {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "digest": digests["bank"][name]}
            for name, t in draw_entries.items()
        }
    place.put(FILES["certificate"], json_bytes({**certificate, SEAL: seal_of(certificate)}))
    place.put(BANK, contents["bank.safetensors"])
    place.put(PROBE, contents["probe.safetensors"])
    try:
        _load(place)
    finally:
        place.restore(FILES["certificate"], BANK, PROBE)


def _tensors(described: dict[str, list[Any]], kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {}
    for name, (dtype, shape, fill) in described.items():
        if fill is None and name in kept and list(kept[name].shape) == shape:
            made[name] = kept[name].to(getattr(torch, dtype))
        else:
            if torch.Size(shape).numel() > 2**16:
                raise ValueError(shape)
            made[name] = torch.full(shape, fill or 0, dtype=getattr(torch, dtype))
        name.encode()
    return made


def _edits(file: str) -> Callable[[Random], bytes]:
    def generate(draw: Random) -> bytes:
        paths = _all_paths(file)
        lines = []
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            path = draw.choice(paths)
            if draw.random() < 0.1:
                path = (*path[:-1], draw.choice(["../x", "a", "seal", "\ud800", "", "__class__"]))
            value = draw.choice(VALUES) if draw.random() < 0.8 else draw.randrange(-300, 300)
            lines.append(json.dumps([list(path), value, *([0] if draw.random() < 0.2 else [])]))
        return "\n".join(lines).encode()

    return generate


@cache
def _all_paths(file: str) -> list[tuple[Any, ...]]:
    place = the_place()
    if file in _OLD:
        old = (STORES / "encoder" / _OLD[file]).read_bytes()
        value: Any = json.loads(old) if file == "tombstone" else [json.loads(line) for line in old.splitlines()]
    elif file == "ledger":
        value = [json.loads(line)["line"] for line in place.files[FILES[file]].splitlines()]
    elif file == "bank":
        tensors = {
            name: {key: [str(t.dtype)[6:], list(t.shape), None] for key, t in load_file(place.run / path).items()}
            for name, path in (("bank", BANK), ("probe", PROBE))
        }
        value = {**tensors, "certificate": json.loads(place.files[FILES["certificate"]])}
    else:
        value = json.loads(place.files[FILES[file]])
    return [path for path in paths_of(value) if path]


def _edit_seeds() -> list[bytes]:
    return [b'[["labels"], null]', b'[["index"], 7, 0]']


def _edit_tokens() -> list[bytes]:
    return [b"\n", b'[["', b'"], ', b"]", b", 0]", *(n.encode() for n in ODD_NUMBERS), *json_tokens()]


def _seeds(name: str) -> Callable[[], list[bytes]]:
    return lambda: [the_place().files[FILES.get(name, BANK)]]


def _old_seeds(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(STORES / "encoder" / _OLD[name]).read_bytes()]


STORE_TARGETS = {
    target.name: target
    for target in (
        *(
            Target(f"store-{name}", _raw(name), (InputError, StoreError), _seeds(name), json_tokens)
            for name in (*FILES, "bank")
        ),
        *(
            Target(f"sealed-{name}", _sealed(name), (InputError, StoreError), _edit_seeds, _edit_tokens, _edits(name))
            for name in FILES
        ),
        *(
            Target(f"store-{name}", partial(_read_old, name), (StoreError,), _old_seeds(name), json_tokens)
            for name in _OLD
        ),
        *(
            Target(
                f"sealed-{name}", _sealed_old(name), (InputError, StoreError), _edit_seeds, _edit_tokens, _edits(name)
            )
            for name in _OLD
        ),
        Target("sealed-bank", _bank, (InputError, StoreError), _edit_seeds, _edit_tokens, _edits("bank")),
        STATES_TARGET,
        REQUEST_TARGET,
        HUB_TARGET,
        ADAPTER_TARGET,
        *ROUTER_TARGETS,
    )
}

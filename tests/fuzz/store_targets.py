"""The readers of a run folder as fuzz targets: raw bytes instead of a file, and edits that are sealed again.

Edits (see `tests.fuzz.store_place`) are followed by a new seal, as a skilled attacker would add, so that they reach the
schema and everything after it: the loader, the chain and the backbone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save

from continual_petl import Run
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate.chain import broken
from continual_petl.store.certificate.pinned_backbone import check_files, check_pinned
from continual_petl.store.files.atomic import json_bytes, line_bytes
from continual_petl.store.files.reading import parse_json
from continual_petl.store.files.sealed import SEAL, seal_of
from continual_petl.store.folder.index import index_file
from continual_petl.store.folder.results_file import _seal, read_results
from continual_petl.store.store import Store
from tests.fuzz.adapter_target import ADAPTER_TARGET
from tests.fuzz.dictionary import ODD_NUMBERS, json_tokens
from tests.fuzz.hub_target import HUB_TARGET
from tests.fuzz.request_target import REQUEST_TARGET
from tests.fuzz.router_targets import ROUTER_TARGETS
from tests.fuzz.signature_target import SIGNATURE_TARGET
from tests.fuzz.states_target import STATES_TARGET
from tests.fuzz.store_place import BANK, FILES, PROBE, VALUES, Place, edited_by, paths_of, the_place
from tests.fuzz.target import Target


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
            store.link("one")
            if name == "bank":
                store.tensors("one")
            _load(place)
        case "results":
            read_results(store.results_file)
            _ = Run(place.run, session=place.session).results.to_json()
        case "pin":
            pinned = store.pinned()
            assert pinned is not None
            backbone = place.session.models.backbone("fp32")
            check_files(store.pin_file, pinned, backbone.name, None, None)
            check_pinned(store.pin_file, pinned, backbone)
            _ = Run(place.run, session=place.session).growth
        case _:
            broken(store.chain())


def _index(data: bytes) -> None:
    """Overwrite the index with the bytes; check that the store still lists what the certificates say."""
    place = the_place()
    index_file(place.run).write_bytes(data)
    try:
        assert Store(place.run).chain() == Store(place.run, indexed=False).chain()
    finally:
        index_file(place.run).unlink()


def _index_seeds() -> list[bytes]:
    place = the_place()
    store = Store(place.run, indexed=False)
    store.note(store.tasks[0])
    return [index_file(place.run).read_bytes()]


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
        if name == "results":
            lines = [parse_json(line, "") for line in old.splitlines()]
            edited: Any = edited_by(lines, data)
            if not isinstance(edited, list):
                raise InputError("not lines")
            content, before = b"", None
            for line in edited:
                body = {k: v for k, v in line.items() if k != SEAL} if isinstance(line, dict) else {"line": line}
                before = _seal(body, before)
                content += line_bytes({**body, SEAL: before})
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
    if file == "results":
        value: Any = [json.loads(line) for line in place.files[FILES[file]].splitlines()]
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
        Target("store-index", _index, (), _index_seeds, json_tokens),
        Target("sealed-bank", _bank, (InputError, StoreError), _edit_seeds, _edit_tokens, _edits("bank")),
        STATES_TARGET,
        SIGNATURE_TARGET,
        REQUEST_TARGET,
        HUB_TARGET,
        ADAPTER_TARGET,
        *ROUTER_TARGETS,
    )
}

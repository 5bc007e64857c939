"""Addresses, file lists and model cards of the Hub as a fuzz target: only a run's files are accepted, at paths inside it."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from continual_petl.errors import InputError, StoreError
from continual_petl.exchange.model_card import BEGIN, END, new_card, updated_card
from continual_petl.hub.address import Address
from continual_petl.hub.uploaded_files import MAX_BYTES, check_listed, limit_of
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target

_NAMES = {
    *("stream.yaml", "backbone.json", "ledger.jsonl", "signature.json", "bank.json", "bank.safetensors"),
    *("probe.safetensors", "history.json", "router.safetensors"),
}
_SEED = {
    "address": "hf://user/run@v1",
    "files": {"stream.yaml": 10, "banks/one/bank.json": 20, "tombstones/000001.json": 3, "README.md": 4},
    "card": f"---\nlicense: mit\n---\n{BEGIN}\nold\n{END}\nmine",
}


def _check(data: bytes) -> None:
    """Read an address, a file list and a card; check that accepted paths have a known name and stay inside the folder."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = {"address": data.decode("utf-8", "replace"), "card": data.decode("utf-8", "replace")}
    if not isinstance(content, dict):
        content = {"address": str(content)}
    card = str(content.get("card", ""))
    new = updated_card(card, new_card(None, "peft", (), "t", "new"))
    assert (new is None) or (f"{BEGIN}\nnew\n{END}" in new and new.startswith(card[: card.find(BEGIN)]))
    files = content.get("files")
    sizes = (
        {str(path): size for path, size in files.items() if isinstance(size, int)} if isinstance(files, dict) else {}
    )
    address = Address.of(str(content.get("address", "")))
    assert Address.of(str(address)) == address
    assert address.repo.count("/") == 1
    kept = check_listed(sizes, "here")
    assert sum(sizes[path] for path in kept) <= MAX_BYTES
    for path in kept:
        place = PurePosixPath(path)
        assert not place.is_absolute()
        assert ".." not in place.parts
        assert place.name in _NAMES or place.parent == PurePosixPath("tombstones")
        assert sizes[path] <= (limit_of(path) or 0)


HUB_TARGET = Target(
    "hub", _check, (InputError, StoreError), lambda: [json.dumps(_SEED).encode(), b"hf://user/run"], json_tokens
)

"""signature.json of a run as a fuzz target: raw bytes, and content with a matching seal."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import SEAL, seal_of
from continual_petl.store.signature import FILE, _is_signed, _read
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
_SEED = {"format_version": 1, "index": 3, "entry": "0" * 64, "signature": "1" * 128, "public_key": "2" * 64}


def _check(data: bytes) -> None:
    """Read the bytes as they are and with a matching seal; check that neither counts as signed."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    variants = [data]
    if isinstance(content, dict):
        with suppress(ValueError):  # NaN and the like, which no store writes
            variants.append(json_bytes(content | {SEAL: seal_of(content)}))
    failures = []
    for variant in variants:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / FILE).write_bytes(variant)
            try:
                assert not _is_signed(_read(Path(folder) / FILE), _KEY)
            except StoreError as error:
                failures.append(error)
    if len(failures) == len(variants):
        raise failures[0]


SIGNATURE_TARGET = Target("signature", _check, (StoreError,), lambda: [json_bytes(_SEED)], json_tokens)

"""The signature of a run: the seal of the newest line of its ledger, signed with an Ed25519 key (RFC 8032).

The seal of a line depends on every byte before it, so a rewritten ledger, even a consistent one, lacks the signed seal. The
seal of the newest entry alone would not do: nothing shows which entry a dropped one named as its predecessor. Lines that were
added after signing are not covered. The private key is read when a run is signed and is never stored in it.
"""

from __future__ import annotations

from getpass import getpass
from pathlib import Path
from sys import stdin
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.files.reading import read_file
from continual_petl.store.ledger.lines import SignatureLine
from continual_petl.store.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

CHECK = "(signature)"
"""The name of the check of a signature."""
_MAX_KEY_BYTES = 10_000


def sign(store: Store, key: Path) -> SignatureLine:
    """Sign everything that a run's ledger says; the newest signature counts.

    Args:
        store: the run; its lock is held.
        key: a private Ed25519 key as a PEM file, outside the run folder. If it is encrypted, the user is asked for the
            password.

    Raises:
        InputError: if the key cannot be used, or nothing has been learned yet.
        StoreError: if an entry of the chain is missing or damaged.
    """
    store.check_complete()
    newest = store.head()
    if newest is None:
        raise InputError(f"{store.folder}: nothing has been learned yet, so there is nothing to sign")
    if key.resolve().is_relative_to(store.folder.resolve()):
        raise InputError(
            f"--key {key}: it is inside the run folder, and everyone who gets the run would get it too: move it elsewhere"
        )
    private = _private_key(key)
    raw = private.public_key().public_bytes_raw()
    store.append(())  # lines that follow from the folder
    ledger = store.state().entries.mark.seal
    signature = SignatureLine(
        index=newest.index,
        entry=newest.seal,
        ledger=ledger,
        signature=private.sign(_message(newest.index, newest.seal, ledger)).hex(),
        public_key=raw.hex(),
    )
    store.append([signature])
    return signature


def check_signature(store: Store, public_key: Path) -> TaskCheck:
    """Check a run's signature against a public key that was obtained from another source.

    Args:
        store: the run.
        public_key: an Ed25519 public key as a PEM file.

    Raises:
        InputError: if the key cannot be used.
    """
    key = _public_key(public_key)
    try:
        found = store.state().entries
    except StoreError as error:
        return _check(str(error))
    signature, newest = found.signature, found.head
    if signature is None:
        return _check(f"{store.folder}: the run is not signed: `continual-petl sign` signs it")
    if not _is_signed(signature, key):
        return _check(
            f"{store.ledger_file}: entry {signature.index} was not signed with the private key of {public_key}: the "
            f"signature was made with another key (it names {signature.public_key[:16]}), or was changed."
        )
    if signature.ledger is None and found.mark.number:
        return _check(
            f"{store.ledger_file}: the run was signed before it had a ledger, and that signature does not cover the ledger: "
            "sign the run again (`continual-petl sign`)."
        )
    place = f"{store.ledger_file}: the signed entry, number {signature.index} with seal {signature.entry[:12]},"
    rewritten = "the chain was rewritten after it was signed. Restore the run from a copy."
    if newest is None or (signature.index, signature.entry) not in {(entry.index, entry.seal) for entry in found.chain}:
        return _check(f"{place} is not in the chain: {rewritten}")
    if signature.ledger not in (None, found.signed_after):
        return _check(f"{place} follows other lines than those that were signed: {rewritten}")
    later = newest.index - signature.index
    return _check(
        how=f"signed: the chain up to entry {signature.index}" + (f"; {later} later, not signed" if later else "")
    )


def _check(problem: str | None = None, how: str = "") -> TaskCheck:
    findings = () if problem is None else (Finding(message=problem),)
    return TaskCheck(task=CHECK, findings=findings, how=how, largest_difference=float("nan"), seconds=0.0)


def _message(index: int, seal: str, ledger: str | None) -> bytes:
    """Return the bytes to sign; their fixed wording ensures that a signature is valid for nothing else."""
    lines = "" if ledger is None else f", ledger {ledger}"
    return f"continual-petl run, chain entry {index}, seal {seal}{lines}".encode()


def _is_signed(signature: SignatureLine, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(signature.signature), _message(signature.index, signature.entry, signature.ledger))
    except InvalidSignature:
        return False
    return True


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    load, content = _loader("load_pem_private_key"), _key_file(path, "--key")
    try:
        try:
            key = load(content, None)
        except TypeError:  # it is encrypted
            if not stdin.isatty():
                raise ValueError("it is encrypted, and there is no terminal to ask for its password") from None
            key = load(content, getpass(f"password of {path}: ").encode())
    except ValueError as error:
        raise _unusable("--key", path, "private", error) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable("--key", path, "private", type(key).__name__)
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    load, content = _loader("load_pem_public_key"), _key_file(path, "--public-key")
    try:
        key = load(content)
    except ValueError as error:
        raise _unusable("--public-key", path, "public", error) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _unusable("--public-key", path, "public", type(key).__name__)
    return key


def _loader(name: str) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise InputError(
            "signatures need the package cryptography, which is not installed: pip install 'continual-petl[sign]'"
        ) from error
    return getattr(serialization, name)


def _key_file(path: Path, option: str) -> bytes:
    try:
        return read_file(path, _MAX_KEY_BYTES)
    except (OSError, StoreError) as error:
        raise InputError(f"{option} {path}: it cannot be read: {error}") from error


def _unusable(option: str, path: Path, kind: str, why: object) -> InputError:
    make = (
        "openssl genpkey -algorithm ed25519 -out key.pem"
        if kind == "private"
        else "openssl pkey -in key.pem -pubout -out public.pem"
    )
    return InputError(f"{option} {path}: it is not a {kind} Ed25519 key in PEM format ({why}); `{make}` writes one")

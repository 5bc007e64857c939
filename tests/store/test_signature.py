"""Signatures reveal a rewritten chain, another key and every damaged byte; keys inside the run folder are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.digests import file_digest
from continual_petl.errors import InputError
from continual_petl.store.certificate.certificate import read_certificate, write_certificate
from continual_petl.store.ledger.lines import CommitLine, SignatureLine
from continual_petl.store.signature import CHECK, check_signature, sign
from continual_petl.store.store import Store
from tests.learned import LearnedRuns
from tests.store.tampering import edit, lines_of, problems, rewrite
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def write_keys(folder: Path, name: str = "key", password: str | None = None) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    lock = PLAIN if password is None else serialization.BestAvailableEncryption(password.encode())
    private, public = folder / f"{name}.pem", folder / f"{name}-public.pem"
    private.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, lock))
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run with two tasks; tests copy it."""
    return learned_runs(stream(backbone_folder(), [task("one", num_rows=16), task("two", num_rows=16)]))


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path)


def problem(folder: Path, public: Path) -> str:
    check = check_signature(Store(folder), public)
    assert not check.ok
    return check.problems[0]


def test_signed_run_is_verified_on_the_command_line(
    folder: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = map(str, keys)
    assert main(["verify", str(folder), "--public-key", public]) == 1
    assert "the run is not signed: `continual-petl sign` signs it" in " ".join(capsys.readouterr().out.split())
    assert main(["sign", str(folder), "--key", private, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    head = Store(folder).head()
    assert head is not None
    assert (made["index"], made["entry"]) == (head.index, head.seal)
    assert main(["verify", str(folder), "--public-key", public, "--json"]) == 0
    *tasks, signature = json.loads(capsys.readouterr().out)
    assert [check["task"] for check in tasks] == ["one", "two"]
    assert (signature["task"], signature["how"]) == (CHECK, "signed: the chain up to entry 1")
    # Without a public key, the signature is not checked.
    assert main(["verify", str(folder)]) == 0


def test_rewritten_chain_is_noticed(folder: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    sign(Store(folder), private)
    certificate = Store(folder).certificate("two")
    scores = {"test": certificate.scores["test"].model_copy(update={"scores": {"accuracy": 1.0}})}
    edit(folder / "banks" / "two" / "bank.json", sealed=True, scores={**certificate.scores, **scores})
    assert "is not in the chain: the chain was rewritten after it was signed" in problem(folder, public)


def test_forger_cannot_sign_with_another_key(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    other, _ = write_keys(tmp_path, "other")
    sign(Store(folder), other)
    assert "was not signed with the private key of" in problem(folder, keys[1])


def test_later_entries_are_reported_as_not_signed(
    backbone_folder: Folder, folder: Path, keys: tuple[Path, Path]
) -> None:
    sign(Store(folder), keys[0])
    tasks = [task(name, num_rows=16) for name in ("one", "two", "three")]
    learn(stream(backbone_folder(), tasks), folder)
    check = check_signature(Store(folder), keys[1])
    assert check.ok
    assert check.how == "signed: the chain up to entry 1; 1 later, not signed"
    sign(Store(folder), keys[0])
    assert check_signature(Store(folder), keys[1]).how == "signed: the chain up to entry 2"


def test_every_damaged_byte_is_noticed(folder: Path, keys: tuple[Path, Path]) -> None:
    start = (folder / "ledger.jsonl").stat().st_size
    sign(Store(folder), keys[0])
    content = (folder / "ledger.jsonl").read_bytes()
    for place in range(start, len(content), 7):
        (folder / "ledger.jsonl").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert problem(folder, keys[1])


def test_forged_signature_is_noticed(folder: Path, keys: tuple[Path, Path]) -> None:
    """A knowledgeable attacker seals the ledger again."""
    sign(Store(folder), keys[0])
    *lines, signature = lines_of(folder)
    assert isinstance(signature, SignatureLine)
    for changed in ({"index": 0}, {"entry": "0" * 64}, {"signature": "0" * 128}):
        rewrite(folder, [*lines, signature.model_copy(update=changed)])
        assert "was not signed with the private key of" in problem(folder, keys[1])
    rewrite(folder, lines)
    assert "the run is not signed" in problem(folder, keys[1])


def test_key_inside_the_run_is_refused(folder: Path, keys: tuple[Path, Path]) -> None:
    inside = Path(shutil.copy(keys[0], folder / "key.pem"))
    with pytest.raises(InputError, match="it is inside the run folder"):
        sign(Store(folder), inside)
    inside.unlink()
    assert Store(folder).signature() is None


def test_encrypted_key_asks_for_its_password(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = write_keys(tmp_path, "locked", password="secret")
    with pytest.raises(InputError, match="there is no terminal to ask for its password"):
        sign(Store(folder), private)
    monkeypatch.setattr("continual_petl.store.signature.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    for password, right in (("wrong", False), ("secret", True)):
        monkeypatch.setattr("continual_petl.store.signature.getpass", lambda prompt, given=password: given)
        if right:
            sign(Store(folder), private)
            assert check_signature(Store(folder), public).ok
        else:
            with pytest.raises(InputError, match="is not a private Ed25519 key"):
                sign(Store(folder), private)


def test_other_files_are_not_keys(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    other = tmp_path / "x25519.pem"
    other.write_bytes(X25519PrivateKey.generate().private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
    huge = tmp_path / "huge.pem"
    huge.write_bytes(b"-" * 20_000)
    for file in (public, other, huge, tmp_path / "none.pem", folder.parent):
        with pytest.raises(InputError, match=r"--key .*(not a private Ed25519 key|cannot be read)"):
            sign(Store(folder), file)
    with pytest.raises(InputError, match="not a public Ed25519 key"):
        check_signature(Store(folder), private)


def test_run_without_tasks_cannot_be_signed(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing has been learned yet"):
        sign(Store(tmp_path / "empty"), keys[0])


def test_run_keeps_working_with_a_signature(backbone_folder: Folder, folder: Path, keys: tuple[Path, Path]) -> None:
    sign(Store(folder), keys[0])
    assert all(check.ok for check in Run(folder).verify(data=True))
    assert main(["report", str(folder), "--output", str(folder.parent / "report")]) == 0


def test_earlier_entry_that_was_rewritten_is_noticed(folder: Path, keys: tuple[Path, Path]) -> None:
    """The attacker changes an earlier bank and lets the ledger name it, so that all signed seals stay in the chain."""
    sign(Store(folder), keys[0])
    path = folder / "banks" / "one" / "bank.json"
    write_certificate(path, read_certificate(path).model_copy(update={"notices": ("changed",)}))
    first, *others = lines_of(folder)
    assert isinstance(first, CommitLine)
    forged = first.model_copy(update={"seal": read_certificate(path).seal, "file": file_digest(path)})
    renamed = [
        line.model_copy(update={"predecessor": forged.seal}) if isinstance(line, CommitLine) else line
        for line in others
    ]
    rewrite(folder, [forged, *renamed])
    assert "the chain was rewritten after it was signed" in problem(folder, keys[1])
    assert "task 'two': its certificate, entry 1 of the chain, is not the one that ledger.jsonl names" in str(
        problems(folder)
    )


def test_scores_in_the_ledger_are_signed(folder: Path, keys: tuple[Path, Path]) -> None:
    sign(Store(folder), keys[0])
    first, *others = lines_of(folder)
    rewrite(folder, [first.model_copy(update={"score": 0.999}), *others])
    assert "the chain was rewritten after it was signed" in problem(folder, keys[1])


@pytest.mark.parametrize(
    "false", [{"score": 0.999}, {"metric": "f1"}, {"parameters": {"bank": 1}}, {"digest": "0" * 64}, {"shared": True}]
)
def test_a_line_that_says_something_else_than_its_certificate_is_noticed(folder: Path, false: dict[str, Any]) -> None:
    """Also without a signature, and although all lines are sealed again."""
    first, *others = lines_of(folder)
    rewrite(folder, [first.model_copy(update=false), *others])
    checks = {check.task: check for check in Run(folder).verify()}
    assert not checks["one"].ok
    assert "its certificate, entry 0 of the chain, is not the one that ledger.jsonl names" in str(checks["one"])
    assert checks["two"].ok


def test_signature_from_before_there_were_ledgers_does_not_cover_one(folder: Path, keys: tuple[Path, Path]) -> None:
    """It names an entry only, and the ledger may say anything about those that were dropped before it."""
    sign(Store(folder), keys[0])
    *lines, made = lines_of(folder)
    assert isinstance(made, SignatureLine)
    key = serialization.load_pem_private_key(keys[0].read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    message = f"continual-petl run, chain entry {made.index}, seal {made.entry}".encode()
    rewrite(folder, [*lines, made.model_copy(update={"ledger": None, "signature": key.sign(message).hex()})])
    assert "that signature does not cover the ledger: sign the run again" in problem(folder, keys[1])
    sign(Store(folder), keys[0])
    assert check_signature(Store(folder), keys[1]).ok

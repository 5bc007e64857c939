"""Run folders and options of commands: a path is the one that is written, whatever its name holds."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from continual_petl import learn
from continual_petl.cli.main import main
from tests.streams_in_code import stream, task

NAMES = [
    "[1]",
    "*",
    "?",
    "a::b",
    "$HOME",
    "${NONE}",
    "~",
    "{}",
    "%20#",
    " a b ",
    "e\u0301",
    "é",
    "x.",
    "..x",
    "'\"",
    "a;b&c",
]


@pytest.fixture(scope="module")
def learned(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("path options") / "run"
    learn(
        stream(backbone_folder(), [task("yesno", num_rows=16, bank={"preset": "lora"})], training={"epochs": 1}), folder
    )
    return folder


def keys(folder: Path, name: str) -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name} key.pem", folder / f"{name} public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    private.chmod(0o600)
    return private.name, public.name


@pytest.mark.parametrize("name", NAMES)
def test_every_command_uses_the_path_that_is_written(
    learned: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    here = Path.cwd()
    shutil.copytree(learned, here / name)
    for other in ("1", "a", "home"):  # what the name would match as a pattern, or expanded
        (here / other).mkdir()
    rows, out = f"{name}.csv", f"{name} out.csv"
    Path(rows).write_text("text\nw1 w2\n", encoding="utf-8")
    private, public = keys(here, name)

    def done(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 0, (words, capsys.readouterr().err)
        return capsys.readouterr().out

    assert json.loads(done("list", name, "--json"))[0]["task"] == "yesno"
    done("show", name, "yesno")
    done("predict", name, "--task", "yesno", "--input", rows, "--output", out)
    with Path(out).open(newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == ["w1 w2"]
    done("report", name, "--output", f"{name} report")
    done("export", name, "yesno", "--format", "peft", "--to", f"{name} exported")
    done("sign", name, "--key", private)
    done("verify", name, "--digests", "--public-key", public)
    written = {"", " out.csv", " report", " exported", " key.pem", " public.pem", ".csv"}
    assert {path.name for path in here.iterdir()} == {f"{name}{end}" for end in written} | {"1", "a", "home"}
    assert all(not [*(here / other).iterdir()] for other in ("1", "a", "home"))
    assert not (tmp_path / "home").exists()

"""``doctor`` reports the environment without personal data, and continues after a broken package."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli import doctor_checks
from continual_petl.cli.main import main


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_doctor_prints_everything_for_a_bug_report(capsys: Any, tmp_path: Path) -> None:
    assert main(["doctor", "--run-dir", str(tmp_path / "not" / "yet")]) == 0
    shown = capsys.readouterr().out
    for fragment in (
        "continual-petl ",
        "python ",
        "torch ",
        "lightning",
        "precision: auto",
        "attention: auto",
        "why ",
        "free ",
    ):
        assert fragment in shown
    for fragment in ("offline: only cached files", "numbers are", "threads of torch", "cores "):
        assert fragment in shown
    assert not {"┃", "│"} & set(shown)


def test_sentences_are_wrapped_and_paths_are_not(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sentence = "/data/" + "projects-of-2024/" * 9 + "an end", "a few words, and then some more, " * 9
    monkeypatch.setitem(doctor_checks.CHECKS, "machine", lambda: {"path": path, "why": sentence})
    assert main(["doctor", "--run-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"{path}\n" in shown
    assert sentence not in shown
    assert " ".join(shown.split()).count(" ".join(sentence.split())) == 1


def test_doctor_prints_json(capsys: Any, tmp_path: Path) -> None:
    assert main(["doctor", "--json", "--run-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"packages", "machine", "devices", "W&B", "Hub", "settings", "disk"}
    assert found["devices"]["precision: auto"] in ("fp32", "bf16")


def test_no_key_user_host_or_home_is_printed(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "t" * 30)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    monkeypatch.setattr("socket.gethostname", lambda: "her-laptop")

    def broken() -> dict[str, Any]:
        raise OSError(f"{home}/x of somebody on her-laptop")

    monkeypatch.setitem(doctor_checks.CHECKS, "machine", broken)
    assert main(["doctor", "--run-dir", str(home / "runs")]) == 1
    shown = capsys.readouterr().out
    assert "OSError: ~/x of USER on HOST" in shown
    assert "~/runs" in shown
    for secret in ("k" * 40, "t" * 30, "home-of-somebody", "her-laptop"):
        assert secret not in shown
    assert "sent" in shown


def test_broken_package_is_reported_with_the_rest(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_wandb(name: str, *more: Any) -> Any:
        if name == "wandb":
            raise SystemExit("wandb is\nbroken")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", no_wandb)
    assert main(["doctor", "--run-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "SystemExit: wandb is broken" in shown
    assert "free " in shown


def test_missing_packages_and_unwritable_folders_are_problems(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert main(["doctor", "--run-dir", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "not installed: no-such-package" in found["packages"]["problem"]
    assert "is not writable" in found["disk"]["problem"]


def test_wandb_key_is_found_in_its_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_MODE", "online")
    assert doctor_checks.tracking()["numbers are"].startswith("not kept: there is no key"), (
        "W&B would ask for a key, which fails in a script"
    )
    monkeypatch.delenv("WANDB_MODE")
    assert doctor_checks.tracking()["numbers are"].startswith("kept on disk")
    (tmp_path / "netrc").write_text("machine api.forge.coreweave.com login user password xyz\n")
    assert doctor_checks.tracking()["numbers are"] == "sent", "a run accepts this host too"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password xyz\n")
    assert doctor_checks.tracking()["numbers are"] == "sent"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert doctor_checks.tracking()["numbers are"] == "kept on disk"


def test_hub_is_contacted_unless_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def refused(*_: object) -> Any:
        raise ConnectionRefusedError("no")

    monkeypatch.setattr("socket.create_connection", refused)
    assert "not reached: ConnectionRefusedError" in doctor_checks.hub()["mode"]

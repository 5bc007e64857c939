"""``doctor`` reports the environment without personal data, and continues after a broken package."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli import doctor_checks
from continual_petl.cli.main import main


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
    for fragment in ("threads of torch", "cores "):
        assert fragment in shown
    assert not {"┃", "│"} & set(shown)


def test_doctor_prints_json(capsys: Any, tmp_path: Path) -> None:
    assert main(["doctor", "--json", "--run-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"packages", "machine", "devices", "settings", "disk"}
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


def test_broken_package_is_reported_with_the_rest(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_torch(name: str, *more: Any) -> Any:
        if name == "torch":
            raise SystemExit("torch is\nbroken")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    assert main(["doctor", "--run-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "SystemExit: torch is broken" in shown
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

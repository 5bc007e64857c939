"""``export`` writes files to the requested folder, or reports why it cannot; nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.bench import Bench


def test_bank_that_cannot_be_exported_is_refused(bench: Bench, capsys: Any) -> None:
    capsys.readouterr()
    assert bench.main("export", "FOLDER/run", "single", "--format", "merged", "--to", "FOLDER/out") == 2
    assert "bottleneck cannot be merged into weights" in capsys.readouterr().err
    assert not (bench.folder / "out").exists()


@pytest.mark.parametrize(("format", "json_too"), [("merged", False), ("peft", True)])
def test_export_writes_a_folder_and_says_where(bench: Bench, capsys: Any, format: str, json_too: bool) -> None:
    text = bench.stream.replace("preset: houlsby, bottleneck: 4", "preset: layernorm")
    text = text.replace("pooling: mean", "pooling: pooler")
    (bench.folder / "again.yaml").write_text(text.partition("  - name: other")[0])
    assert bench.main("run", "FOLDER/again.yaml", "--run-dir", "FOLDER/norms", "--quiet") == 0
    capsys.readouterr()
    words = ["export", "FOLDER/norms", "single", "--format", format, "--to", "FOLDER/deep/out"]
    assert bench.main(*words, *(["--json"] if json_too else [])) == 0
    said, folder = capsys.readouterr().out, bench.folder / "deep" / "out"
    if json_too:
        found = json.loads(said)
        assert found["folder"] == str(folder)
        assert found["files"] == sorted(path.name for path in folder.iterdir())
        assert found["files"] == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    else:
        assert said.startswith(f"exported task single to {folder}; its outputs match those of the bank within 1e-5")


@pytest.mark.parametrize(
    ("task", "to", "message"),
    [
        ("other", "FOLDER/out", "single"),
        ("single", "FOLDER/data", "already exists"),
        ("single", "FOLDER/run/x", "inside"),
    ],
)
def test_bad_requests_are_refused(bench: Bench, capsys: Any, task: str, to: str, message: str) -> None:
    capsys.readouterr()
    assert bench.main("export", "FOLDER/run", task, "--format", "merged", "--to", to) == 2
    assert message in capsys.readouterr().err

"""``import`` turns an exported adapter into a task, or reports why it cannot."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.bench import Bench


def test_exported_adapter_is_imported_as_another_task(bench: Bench, capsys: Any) -> None:
    text = bench.stream.replace("preset: houlsby, bottleneck: 4", "preset: layernorm")
    text = text.replace("pooling: mean", "pooling: pooler")
    (bench.folder / "imports.yaml").write_text(text.partition("  - name: other")[0])
    assert bench.main("run", "FOLDER/imports.yaml", "--run-dir", "FOLDER/imports", "--quiet") == 0
    words = ["export", "FOLDER/imports", "single", "--format", "peft", "--to", "FOLDER/adapter"]
    assert bench.main(*words) == 0
    capsys.readouterr()
    assert bench.main("import", "FOLDER/imports", "FOLDER/adapter", "--task", "back") == 0
    said = capsys.readouterr().out
    assert said.startswith("imported task back (classification) from an adapter of peft (LN_TUNING): not measured")
    assert bench.main("import", "FOLDER/imports", "FOLDER/adapter", "--task", "more", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["score"], found["measured"]) == ("more", None, False)
    assert bench.main("list", "FOLDER/imports") == 0
    assert bench.main("show", "FOLDER/imports", "back") == 0
    assert "not measured: imported without rows" in capsys.readouterr().out
    assert bench.main("verify", "FOLDER/imports") == 0
    assert bench.main("reevaluate", "FOLDER/imports") == 0
    assert bench.main("report", "FOLDER/imports") == 0
    assert bench.main("diff", "FOLDER/imports", "FOLDER/imports") == 0
    capsys.readouterr()
    assert bench.main("import", "FOLDER/imports", "FOLDER/adapter", "--task", "back") == 2
    assert "already has a task 'back'" in capsys.readouterr().err


def test_folder_without_an_adapter_is_refused(bench: Bench, capsys: Any) -> None:
    capsys.readouterr()
    assert bench.main("import", "FOLDER/run", "FOLDER/data", "--task", "x") == 2
    assert "has no adapter_config.json" in capsys.readouterr().err

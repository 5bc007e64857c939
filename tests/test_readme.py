"""The README works: its Python blocks run, its YAML is a valid stream, its commands and names exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.presets import FUSION, PRESETS
from continual_petl.cli.main import main
from continual_petl.cli.parser import build_parser
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.small import small
from tests.streams_in_code import write_rows

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in one language."""
    return [text for name, text in BLOCKS if name == language]


def test_usage_comes_before_results() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    usage = ["Install", "A first stream", "Predict", "Verify", "Learn a new task without the old data"]
    assert headings[: len(usage)] == usage
    assert headings.index("Results") > headings.index("From Python")


def test_make_demo_and_make_test_come_first() -> None:
    assert [line.split("#")[0].strip() for line in BLOCKS[0][1].strip().splitlines()] == ["make demo", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_stream_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "stream.yaml").write_text(blocks("yaml")[0])
    spec = load_stream(tmp_path / "stream.yaml")
    assert [task.name for task in spec.tasks] == ["topics", "duplicates"]


def test_bank_example_is_valid() -> None:
    assert BankChoice.model_validate(yaml.safe_load(blocks("yaml")[1])["bank"]).resolve().layers == "6-11"


def test_every_preset_is_in_the_table_of_methods() -> None:
    table = (ROOT / "docs" / "methods.md").read_text("utf-8").split("| preset |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {*PRESETS, FUSION}
    number = len({*PRESETS, FUSION})
    assert f"There are {number} presets" in (ROOT / "README.md").read_text("utf-8")
    assert f"| {number} presets," in (ROOT / "docs" / "compared.md").read_text("utf-8")


def test_every_command_parses() -> None:
    lines = [line.split(" #")[0].split(">")[0].strip() for text in blocks("bash") for line in text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("continual-petl ")]
    assert {command[0] for command in commands} == {
        *("init", "run", "learn", "verify", "reevaluate", "forget", "predict", "ablate", "sweep"),
        *("report", "list", "doctor", "streams", "schema", "serve", "push"),
    }
    for command in commands:
        build_parser().parse_known_args(command)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_python_blocks_run(
    backbone_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data" / "topics", "topics")
    write_rows(tmp_path / "data" / "trec", "trec")
    spec = yaml.safe_load(blocks("yaml")[0])
    # The tiny backbone has hidden size 16.
    spec |= {"backbone": str(backbone_folder()), "tasks": spec["tasks"][:1], "bank": small("houlsby")}
    Path("stream.yaml").write_text(yaml.safe_dump(spec))
    for text in blocks("python"):
        exec(compile(text, "README.md", "exec"), {})
    assert main(["verify", "runs/from-python"]) == 0

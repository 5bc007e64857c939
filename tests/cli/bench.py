"""A stream file with its data, and a run that has learned the first of its two tasks, for testing invalid input."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from continual_petl.cli.main import main
from tests.streams_in_code import classification_rows

STREAM = """\
name: files
seed: 1
backbone: {name: BACKBONE, pooling: mean}
bank: {preset: houlsby, bottleneck: 4}
training: {epochs: 1, batch_size: 8, learning_rate: 0.02, precision: fp32}
tasks:
  - {name: single, kind: classification, data: data/single, routing: off}
  - name: other
    kind: classification
    data: data/other
"""
DATA = "data: data/other"
SPLITS = ("train", "validation", "test")


def json_lines(rows: Sequence[object]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def csv_lines(*lines: str) -> str:
    """Return csv text with the columns text and label."""
    return "".join(f"{line}\n" for line in ("text,label", *lines))


ROWS = classification_rows("other", 24)
NO_FILES: dict[str, str | bytes | None] = {f"data/other/{split}.jsonl": None for split in SPLITS}


@dataclass(frozen=True)
class Case:
    """One mistake: what is changed, and what the message must say."""

    name: str
    says: Sequence[str]
    """Fragments of the message; FOLDER is replaced by the bench's folder."""
    edits: Sequence[tuple[str, str]] = ()
    """Replacements in the stream file."""
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Other files: their content, or None to remove one."""
    options: Sequence[str] = ()
    """Words that are appended to `command`."""
    command: Sequence[str] = ("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--quiet")


class Bench:
    """A folder with stream.yaml, data and a run."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self.folder = folder
        for name in ("single", "other"):
            rows = classification_rows(name, 24)
            (folder / "data" / name).mkdir(parents=True)
            for split, part in zip(SPLITS, (rows[:16], rows[16:20], rows[20:]), strict=True):
                (folder / "data" / name / f"{split}.jsonl").write_text(json_lines(part))
        self.stream = STREAM.replace("BACKBONE", str(backbone))
        (folder / "stream.yaml").write_text(self.stream)

    def copy(self, folder: Path) -> Bench:
        """Return a separate bench for one case."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        other = object.__new__(Bench)
        other.folder, other.stream = folder, self.stream
        return other

    def apply(self, case: Case) -> None:
        """Make the changes of a case."""
        text = self.stream
        for old, new in case.edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new.replace("FOLDER", str(self.folder)))
        (self.folder / "stream.yaml").write_text(text)
        for name, content in case.files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content.encode() if isinstance(content, str) else content)

    def main(self, *words: str) -> int:
        """Run a command."""
        return main([word.replace("FOLDER", str(self.folder)) for word in words])

    def learned(self) -> dict[str, str]:
        """Return the digest of every file of the run."""
        run = self.folder / "run"
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def refuses(self, case: Case, capsys: pytest.CaptureFixture[str]) -> str:
        """Run a case, check that it is refused with the expected message and leaves the run unchanged; return the message."""
        self.apply(case)
        before = self.learned()
        assert {"banks/single/bank.json", "banks/single/bank.safetensors", "ledger.jsonl"} <= before.keys()
        capsys.readouterr()
        code = self.main(*case.command, *case.options)
        shown = capsys.readouterr().err
        assert self.learned() == before
        assert code == 2, shown
        assert "Traceback" not in shown
        for word in ("pydantic", "Input should", "https://errors", "[type="):
            assert word not in shown
        for fragment in case.says:
            assert fragment.replace("FOLDER", str(self.folder)) in shown, shown
        return shown

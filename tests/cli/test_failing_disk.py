"""A command that cannot write says so in one paragraph, and leaves everything as it was, or completely done."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors import SafetensorError

from continual_petl import Run
from continual_petl.exchange.peft import adapter as write_adapter
from tests.cli.bench import Bench
from tests.cli.failing_calls import ERRORS, FailingCalls, tree_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

COMMANDS = {
    "forget": "forget FOLDER/run single --yes",
    "init": "init FOLDER/data/single --output FOLDER/new.yaml --backbone BACKBONE",
    "report": "report FOLDER/run",
    "export-merged": "export FOLDER/norms single --format merged --to FOLDER/out/merged",
    "export-peft": "export FOLDER/norms single --format peft --to FOLDER/out/peft",
    "import": "import FOLDER/norms FOLDER/adapter more --data FOLDER/data/single",
    "predict": "predict FOLDER/run --task single --input FOLDER/data/single/test.jsonl --output FOLDER/answers.csv",
    "reevaluate": "reevaluate FOLDER/run",
    "sign": "sign FOLDER/run --key FOLDER/key.pem",
    "ablate": "ablate FOLDER/run single --output FOLDER/ablated.json",
    "sweep": "sweep FOLDER/stream.yaml FOLDER/sweep.yaml --run-dir FOLDER/swept --task single --quiet",
}
FEW = 4
"""Number of failing calls of each command in the default suite, evenly spaced."""
Tree = dict[str, bytes | None]


@dataclass(frozen=True)
class Place:
    """A folder with all that the commands need, in its initial state."""

    bench: Bench
    backbone: Path
    start: Path

    def begin(self) -> Tree:
        """Restore the initial state, and return it."""
        shutil.rmtree(self.bench.folder)
        shutil.copytree(self.start, self.bench.folder)
        return tree_of(self.bench.folder)

    def main(self, name: str) -> int:
        """Run a command."""
        return self.bench.main(*COMMANDS[name].replace("BACKBONE", str(self.backbone)).split())


@pytest.fixture(scope="module")
def place(
    learned_bench: Bench, backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Place:
    """Return the folder."""
    folder = tmp_path_factory.mktemp("failing")
    bench = learned_bench.copy(folder / "bench")
    text = bench.stream.replace("preset: houlsby, bottleneck: 4", "preset: layernorm")
    text = text.replace("pooling: mean", "pooling: pooler")
    (bench.folder / "again.yaml").write_text(text.partition("  - name: other")[0])
    (bench.folder / "sweep.yaml").write_text("space:\n  bank.bottleneck: [2]\nseeds: 1\nprune: none\n")
    key = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (bench.folder / "key.pem").write_bytes(key)
    assert bench.main("run", "FOLDER/again.yaml", "--run-dir", "FOLDER/norms", "--quiet") == 0
    assert bench.main("export", "FOLDER/norms", "single", "--format", "peft", "--to", "FOLDER/adapter") == 0
    shutil.copytree(bench.folder, folder / "start")
    return Place(bench, backbone_folder(), folder / "start")


def _wrong(place: Place, name: str, whole: Tree, at: int, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Yield what is wrong after one call of a command has failed."""
    before, number = place.begin(), ERRORS[at % len(ERRORS)]
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        disk = FailingCalls(place.bench.folder, at, number).put_in(patch)
        code = place.main(name)
    shown, found = capsys.readouterr().err, tree_of(place.bench.folder)
    where = f"{name}, call {at}, {disk.calls[at]}, {errno.errorcode[number]}: "
    if code == 0:
        if found.keys() != whole.keys():
            yield where + f"succeeded, but differs in {sorted(found.keys() ^ whole.keys())}"
        return
    if name == "sweep":  # its folder has the trials so far: the same command continues
        assert place.main(name) == 0
        found = tree_of(place.bench.folder)
        if found.keys() != whole.keys():
            yield where + f"then differs in {sorted(found.keys() ^ whole.keys())}"
    elif found != before and found.keys() != whole.keys():
        changed = [each for each in found.keys() & before.keys() if found[each] != before[each]]
        yield where + f"left {sorted(found.keys() ^ before.keys())}, changed {changed}"
    lines = [line for line in shown.splitlines() if "Warning" not in line]
    if code not in (1, 2) or len(lines) != 1 or "bug" in shown or str(place.bench.folder) not in shown:
        yield where + f"exit code {code}, {shown[-600:]}"


def _wrong_of(place: Place, name: str, few: int | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    place.begin()
    with pytest.MonkeyPatch.context() as patch:
        disk = FailingCalls(place.bench.folder).put_in(patch)
        assert place.main(name) == 0
    whole, total = tree_of(place.bench.folder), len(disk.calls)
    calls = range(total) if few is None else sorted({n * (total - 1) // (few - 1) for n in range(few)})
    return [text for at in calls for text in _wrong(place, name, whole, at, capsys)]


@pytest.mark.parametrize("name", COMMANDS)
def test_failing_calls_leave_everything_as_it_was(place: Place, capsys: pytest.CaptureFixture[str], name: str) -> None:
    wrong = _wrong_of(place, name, FEW, capsys)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_failing_call_leaves_everything_as_it_was(
    place: Place, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    wrong = _wrong_of(place, name, 12 if name == "sweep" else None, capsys)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_can_be_written(place: Place, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Read-only from the beginning: nothing changes, and the message says why."""
    before = place.begin()
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        FailingCalls(place.bench.folder, 0, errno.EROFS, later=True).put_in(patch)
        code = place.main(name)
    shown = capsys.readouterr().err
    assert code in (1, 2), shown
    assert "Read-only file system" in shown
    assert str(place.bench.folder) in shown
    assert "bug" not in shown
    assert tree_of(place.bench.folder) == before


def test_forgotten_task_whose_files_remain_is_reported(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin()
    run, rename = place.bench.folder / "run", os.rename

    def refused(source: Any, target: Any, **more: Any) -> None:
        if os.fspath(source).endswith("banks/single"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(source))
        rename(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        capsys.readouterr()
        assert place.main("forget") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"{run}: task 'single' is forgotten, and no bank predicts its rows any more, but not all of its files" in said
    )
    assert "Permission denied" in said
    assert "The next command that writes to the run deletes them." in said
    assert (run / "banks" / "single").is_dir()
    assert Run(run).store.tasks == []
    assert place.main("forget") == 0
    assert not (run / "banks" / "single").exists()


def test_full_disk_that_compiled_code_meets_is_reported(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.begin()

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(write_adapter, "write_peft", full)
    capsys.readouterr()
    assert place.main("export-peft") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(
        f"continual-petl: {place.bench.folder}/out/peft: could not be written: Error while serializing"
    )
    assert "No space left on device (os error 28). Nothing was written." in said
    assert tree_of(place.bench.folder) == before

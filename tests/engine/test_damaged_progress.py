"""Damaged progress is reported and never used."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import learn
from continual_petl.cli.main import main
from continual_petl.engine.task.checkpoint import BEST, LAST
from continual_petl.errors import Interrupted, StoreError
from continual_petl.store.folder.progress import read_plan, seal_file
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt, tasks_of

Folder = Callable[..., Path]
FILES = (LAST, BEST, "plan.json")
ONE = Path(".progress") / "one"


class HalfLearned:
    def __init__(self, backbone: Path, folder: Path) -> None:
        self.tasks: TaskStream = tasks_of(backbone)
        self.whole = bank_digests(learn(self.tasks, folder / "whole"))
        self.folder = folder / "half"
        with pytest.raises(Interrupted):
            learn(self.tasks, self.folder, callbacks=[SignalAt(7)])


@pytest.fixture(scope="module")
def half(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> HalfLearned:
    return HalfLearned(backbone_folder(), tmp_path_factory.mktemp("half"))


def flip(path: Path, draw: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}, byte {place}, bit {bit}"


@pytest.mark.parametrize("flips", [range(3), pytest.param(range(3, 60), marks=pytest.mark.slow)])
def test_flipped_bit_is_reported_or_harmless(half: HalfLearned, tmp_path: Path, flips: range) -> None:
    wrong, num_told = [], 0
    for seed in flips:
        run, draw = shutil.copytree(half.folder, tmp_path / str(seed)), random.Random(seed)
        name = FILES[seed % 3]
        what = flip(run / ONE / name, draw)
        try:
            if bank_digests(learn(half.tasks, run)) != half.whole:
                wrong.append(f"{what}: another bank")
        except StoreError as error:
            num_told += 1
            if name not in str(error) or "Delete the folder" not in str(error) or not (run / ONE / LAST).exists():
                wrong.append(f"{what}: {error}")
    print(f"{num_told} of {len(flips)} flips were reported")
    assert wrong == []
    assert num_told > len(flips) // 2


@pytest.mark.parametrize("content", ["[]", '{"decides": {"a": NaN}, "seal": ""}', "[" * 100_000])
def test_invalid_plan_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(StoreError, match=r"plan\.json, saved halfway through training, is damaged"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, "no " + BEST])
def test_suggested_fix_works(half: HalfLearned, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(half.folder, tmp_path / "run")
    if name.startswith("no "):
        (run / ONE / BEST).unlink()
    else:
        path = run / ONE / name
        path.write_bytes(path.read_bytes()[:-9])
    (tmp_path / "tasks.yaml").write_text(dump_stream(half.tasks.spec))
    command = ["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(run), "--quiet"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert f"task 'one': {run / ONE / name.removeprefix('no ')}, saved halfway through training, is " in told
    shutil.rmtree(run / ONE)
    assert bank_digests(learn(half.tasks, run)) == half.whole


@pytest.mark.slow
def test_best_bank_without_a_checkpoint_is_rebuilt(half: HalfLearned, tmp_path: Path) -> None:
    run = shutil.copytree(half.folder, tmp_path / "run")
    (run / ONE / LAST).unlink()
    (run / ONE / BEST).write_bytes(b"of another epoch")
    assert bank_digests(learn(half.tasks, run)) == half.whole


class Harmful:
    """Runs a command when it is unpickled, as a malicious checkpoint would."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("echo executed > executed",)


def forgeries(real: dict[str, Any]) -> dict[str, object]:
    """Return forged checkpoints by a description of the forgery; training must not resume from any of them."""
    found: dict[str, object] = {"harmful": {"epoch": Harmful()}, "a list": [1], "another mapping": {"a": 1}}
    for name in real:
        found[f"without {name}"] = {key: value for key, value in real.items() if key != name}
        found[f"text as {name}"] = real | {name: "x"}
        found[f"null as {name}"] = real | {name: None}
        if isinstance(real[name], dict):
            found[f"text inside {name}"] = real | {name: dict.fromkeys(real[name], "x")}
        if isinstance(real[name], list):
            found[f"text inside {name}"] = real | {name: ["x"]}
            found[f"nothing inside {name}"] = real | {name: [{}]}
    return found


@pytest.mark.parametrize(
    "part",
    ["harmful", "without loops", "text inside loops", "text inside callbacks", "nothing inside optimizer_states"],
)
def test_a_forged_checkpoint_is_refused(
    half: HalfLearned, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(half, tmp_path, [part], monkeypatch)


@pytest.mark.slow
def test_every_forged_checkpoint_is_refused(half: HalfLearned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(half, tmp_path, None, monkeypatch)


def refused(half: HalfLearned, tmp_path: Path, parts: Sequence[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = forgeries(torch.load(half.folder / ONE / LAST, weights_only=True))
    for number, part in enumerate(found if parts is None else parts):
        run = shutil.copytree(half.folder, tmp_path / str(number))
        torch.save(found[part], run / ONE / LAST)
        seal_file(run / ONE / LAST)
        with pytest.raises(
            StoreError, match=r"last\.ckpt, saved halfway through training, is damaged .*Delete the folder"
        ):
            learn(half.tasks, run)
    assert not (tmp_path / "executed").exists()

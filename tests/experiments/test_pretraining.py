"""The small BART of the studies is pre-trained reproducibly on texts only; commands that need it say how to create it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from experiments.he2022 import pretraining
from experiments.he2022.pretraining import MASK, batches, infill, pretrain, texts
from experiments.studies import __main__ as command
from experiments.studies.made_up import make_up
from experiments.studies.tiny import make_tiny_seq2seq
from experiments.studies.trial import TASKS, backbone_digest


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(5, 99), max_size=64), st.integers(0, 2**32))
def test_infilling_keeps_what_it_does_not_mask_in_order(tokens: list[int], seed: int) -> None:
    noisy = infill(tokens, random.Random(seed))
    kept = [token for token in noisy if token != MASK]
    rest = iter(tokens)
    assert all(token in rest for token in kept)
    assert len(tokens) - len(kept) <= round(pretraining.MASKED * len(tokens))


def test_some_texts_stay_whole_and_some_are_masked() -> None:
    encoded = [list(range(5, 5 + length)) for length in range(20, 120)]
    pairs = [pair for _, batch in zip(range(8), batches(encoded, random.Random(0)), strict=False) for pair in batch]
    whole = sum(noisy == target for noisy, target in pairs)
    assert 0 < whole < len(pairs)
    assert max(len(target) for _, target in pairs) == pretraining.LONGEST


@pytest.mark.slow
def test_the_same_texts_make_the_same_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "TOKENS", 128)
    data = make_up(tmp_path / "data")
    assert len(list(texts(data))) > 500
    first, again = (pretrain(data, tmp_path / name, steps=2, log=2) for name in ("one", "two"))
    assert first == again == json.loads((tmp_path / "one" / "pretraining.json").read_text())
    assert first["digest"] == backbone_digest(tmp_path / "two")
    assert first["digest"] != pretrain(data, tmp_path / "three", steps=2, seed=1, log=2)["digest"]


def test_missing_task_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data: .* has no folder agnews with train.jsonl"):
        list(texts(tmp_path))


def test_rows_without_texts_are_reported(tmp_path: Path) -> None:
    for task in TASKS:
        (tmp_path / task).mkdir()
        (tmp_path / task / "train.jsonl").write_text('{"label": 1}\n')
    with pytest.raises(InputError, match="has fewer than two texts to learn from"):
        pretrain(tmp_path, tmp_path / "bart", steps=1)


def test_a_study_that_needs_a_backbone_says_how_it_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["he2022/generation", "--data", str(make_up(tmp_path / "data")), "--out", str(tmp_path / "out")]
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert (
        "study he2022/generation runs on bart-small, which has to be created first: python -m experiments.he2022.p"
        in said
    )
    assert command.main([*arguments, "--backbone", f"bart-small={tmp_path}"]) == 2
    assert "holds no backbone (no config.json)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_backbone_without_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--backbone", "bart-small"])
    assert "--backbone: got 'bart-small'; write NAME=FOLDER" in capsys.readouterr().err


def test_the_command_is_kept_without_the_folder_of_a_backbone() -> None:
    _, request = command.parse(["--data", "/a", "--backbone", "bart-small=/b"])
    assert request.backbones == {"bart-small": "/b"}
    assert request.command == "python -m experiments.studies --data FOLDER --jobs 1 --backbone bart-small=FOLDER"


def test_another_backbone_of_the_same_name_has_another_digest(tmp_path: Path) -> None:
    folder = make_tiny_seq2seq(tmp_path / "bart")
    before = backbone_digest(folder)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")
    assert backbone_digest(folder) != before

"""A states file returns what was written, and is used only if it is complete and its binding matches."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from continual_petl.errors import StoreError
from continual_petl.store.files.states_file import StatesFile

LENGTHS = np.array([3, 1, 4, 2])


def states(dtype: torch.dtype = torch.float32) -> Tensor:
    """Return states of four rows, padded to five tokens with NaN, which must never be read back."""
    made = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    for row, length in enumerate(LENGTHS):
        made[row, length:] = torch.nan
    return made


def file(folder: Path, dtype: torch.dtype = torch.float32, bound: str = "these") -> StatesFile:
    return StatesFile(folder / "train.states", LENGTHS, 6, dtype, bound)


def written(folder: Path, dtype: torch.dtype = torch.float32) -> StatesFile:
    made = file(folder, dtype)

    def make(write: Any) -> None:
        write(np.array([2, 0]), states(dtype)[[2, 0]])
        write(np.array([3, 1]), states(dtype)[[3, 1]])

    made.fill(make)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_read_exactly_in_any_order_with_zero_padding(tmp_path: Path, dtype: torch.dtype) -> None:
    made = written(tmp_path, dtype)
    again = file(tmp_path, dtype)
    assert again.open()
    for reader in (made, again):
        read = reader.read(np.array([1, 2]), 4)
        expected = states(dtype)[[1, 2], :4].nan_to_num(0.0)
        assert read.dtype == dtype
        assert torch.equal(read, expected)
    assert (tmp_path / "train.states").stat().st_size == made.num_bytes == 10 * 6 * dtype.itemsize


def test_modifying_a_batch_does_not_change_the_file(tmp_path: Path) -> None:
    made = written(tmp_path)
    before = (tmp_path / "train.states").read_bytes()
    made.read(np.array([0]), 3).zero_()
    assert (tmp_path / "train.states").read_bytes() == before
    assert made.read(np.array([0]), 3).any()


def other_binding(folder: Path) -> None:
    card = json.loads((folder / "train.json").read_bytes())
    (folder / "train.json").write_text(json.dumps(card | {"bound": "those"}))


def flipped_bit(folder: Path) -> None:
    content = bytearray((folder / "train.states").read_bytes())
    content[17] ^= 1
    (folder / "train.states").write_bytes(content)


def linked(folder: Path) -> None:
    (folder / "train.states").rename(folder / "elsewhere")
    (folder / "train.states").symlink_to(folder / "elsewhere")


def piped(folder: Path) -> None:
    (folder / "train.json").unlink()
    os.mkfifo(folder / "train.json")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "no card": lambda folder: (folder / "train.json").unlink(),
    "no file": lambda folder: (folder / "train.states").unlink(),
    "cut": lambda folder: os.truncate(folder / "train.states", 100),
    "longer": lambda folder: os.truncate(folder / "train.states", 10**6),
    "empty": lambda folder: os.truncate(folder / "train.states", 0),
    "another binding": other_binding,
    "a flipped bit": flipped_bit,
    "a link": linked,
    "card: not JSON": lambda folder: (folder / "train.json").write_bytes(b"\xff{"),
    "card: a list": lambda folder: (folder / "train.json").write_text("[1]"),
    "card: deep": lambda folder: (folder / "train.json").write_text("[" * 3000),
    "card: huge": lambda folder: os.truncate(folder / "train.json", 10**9),
    "card: a pipe": piped,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_invalid_file_is_removed_and_can_be_rebuilt(tmp_path: Path, damage: str) -> None:
    written(tmp_path).close()
    DAMAGE[damage](tmp_path)
    assert not file(tmp_path).open()
    assert not (tmp_path / "train.states").exists()
    assert not (tmp_path / "train.json").exists()
    written(tmp_path)
    assert file(tmp_path).open()


def test_file_with_another_binding_is_refused(tmp_path: Path) -> None:
    written(tmp_path).close()
    assert not file(tmp_path, bound="those").open()


def test_half_written_file_is_removed(tmp_path: Path) -> None:
    half = tmp_path / ".train.states.4711.new"
    half.write_bytes(b"half")
    other = tmp_path / ".validation.states.4711.new"
    other.write_bytes(b"half")
    assert not file(tmp_path).open()
    assert not half.exists()
    assert other.exists()


def test_full_disk_leaves_no_file_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def full(descriptor: int, content: Any, place: int) -> int:
        if place > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content[:7], place)  # writes less than requested, as pwrite may

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"No space left on device.*prefix_cache: off"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, place: real(file, content[:7], place))
    assert torch.equal(written(tmp_path).read(np.arange(4), 4), states()[:, :4].nan_to_num(0.0))


def test_missing_or_wrong_rows_are_an_error(tmp_path: Path) -> None:
    for make, told in (
        (lambda write: write(np.array([0]), states()[:1]), "3 rows were never written"),
        (lambda write: write(np.array([2]), states()[:1, :3]), "row 2: got states"),
        (lambda write: write(np.array([0]), states().bfloat16()[:1]), "row 0: got states"),
        (lambda write: write(np.array([0]), states()[:1, :, :5]), "row 0: got states"),
    ):
        with pytest.raises(ValueError, match=told):
            file(tmp_path).fill(make)
        assert list(tmp_path.iterdir()) == []


def test_rows_out_of_range_are_refused(tmp_path: Path) -> None:
    made = written(tmp_path)
    for wrong in ([4], [-1]):
        with pytest.raises(ValueError, match="not all of them are among the split's 4 rows"):
            made.read(np.array(wrong), 5)
    with pytest.raises(ValueError, match="row 2 has 4 tokens, which is more than 3"):
        made.read(np.array([2]), 3)

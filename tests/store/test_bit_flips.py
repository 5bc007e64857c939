"""One flipped bit, anywhere in a run folder or in the backbone's files, is reported with the file name."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.engine.commands import forget
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream

Folder = Callable[..., Path]
OF_RUN = (
    *("banks/two/bank.safetensors", "banks/two/bank.json", "banks/two/probe.safetensors", "banks/two/history.json"),
    *("ledger.jsonl", "backbone.json"),
)
OF_BACKBONE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

# transformers' warnings about damaged files do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


class Place:
    """A run with two tasks and a tombstone, on its own copy of the backbone."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self.backbone = shutil.copytree(backbone, folder / "backbone")
        self.run = folder / "run"
        learn(stream(self.backbone, TASKS, training=QUICK), self.run)
        self.session: Session = forget(self.run, "three").session
        assert not self.told(OF_RUN[0])

    def path(self, file: str) -> Path:
        return (self.backbone if file in OF_BACKBONE else self.run) / file

    def told(self, file: str) -> list[str]:
        """Return the problems that verify reports; reload the backbone if the file describes it or belongs to it."""
        session = self.session if file in OF_RUN and file != "backbone.json" else None
        try:
            return [text for check in Run(self.run, session=session).verify() for text in check.problems]
        except (InputError, StoreError) as error:
            return [str(error)]


@pytest.fixture(scope="module")
def place(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("flips"), backbone_folder())


def slipped(place: Place, flips: Iterator[tuple[str, int]]) -> list[str]:
    """Return the flips that are not reported with the file's name, or that raise an unexpected error."""
    wrong = []
    for file, bit in flips:
        path, where = place.path(file), f"{file}, byte {bit // 8}, bit {bit % 8}"
        whole = path.read_bytes()
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            told = " ".join(place.told(file))
            # A message about a tensor need not name the file, since a bank and the backbone each have one file of tensors.
            if not re.search(rf"\b{re.escape(path.name)}\b|task 'two': tensor|tensors? differs?; the first is", told):
                wrong.append(f"{where}: {told or 'accepted'}")
        except Exception as error:
            wrong.append(f"{where}: {type(error).__name__}: {error}")
        finally:
            path.write_bytes(whole)
    assert not place.told("config.json"), "the original files are not restored"
    return wrong


def drawn(place: Place, files: tuple[str, ...], count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield random bits, equally many per file; in safetensors files, half of them are in the header."""
    draw = random.Random(seed)
    for number in range(count):
        file = files[number % len(files)]
        content = place.path(file).read_bytes()
        size = len(content)
        if file.endswith(".safetensors") and draw.random() < 0.5:
            size = 8 + int.from_bytes(content[:8], "little")
        yield file, draw.randrange(8 * size)


def test_flipped_bit_in_a_run_is_detected(place: Place) -> None:
    assert slipped(place, drawn(place, OF_RUN, 24, seed=0)) == []


def test_flipped_bit_in_a_backbone_is_detected(place: Place) -> None:
    assert slipped(place, drawn(place, OF_BACKBONE, 8, seed=0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_hundred_flipped_bits_in_a_run_are_detected(place: Place, seed: int) -> None:
    assert slipped(place, drawn(place, OF_RUN, 120, seed)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_eighty_flipped_bits_in_a_backbone_are_detected(place: Place, seed: int) -> None:
    assert slipped(place, drawn(place, OF_BACKBONE, 80, seed)) == []


@pytest.mark.slow
def test_every_byte_at_the_end_of_the_results_is_protected(place: Place) -> None:
    draw, size = random.Random(0), place.path("ledger.jsonl").stat().st_size
    places = [("ledger.jsonl", 8 * byte + draw.randrange(8)) for byte in range(size - 100, size)]
    assert slipped(place, iter(places)) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", [*OF_RUN[:3:2], "model.safetensors"])
def test_every_byte_at_the_start_of_a_header_is_protected(place: Place, file: str) -> None:
    draw = random.Random(0)
    assert slipped(place, ((file, 8 * byte + draw.randrange(8)) for byte in range(200))) == []

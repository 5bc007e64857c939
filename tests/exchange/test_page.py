"""The tables in docs/how-to/export.md are correct for every preset, family and pooling."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from continual_petl.banks.config.presets import PRESETS
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.adapter import adapterhub_adapter
from continual_petl.exchange.classes import _IMAGES, _TEXT, _TOKENS
from tests.docs.blocks import ROOT
from tests.exchange.subjects import Folder, subject_of


def rows_of(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, each as a list of cells."""
    text = Path(ROOT / "docs/how-to/export.md").read_text("utf-8").split(f"## {heading}\n")[1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]][: len(lines)]


def test_every_preset_is_merged_as_the_table_says() -> None:
    said = {name: row[1] for row in rows_of("Which banks")[:14] for name in re.findall(r"`(\w+)`", row[0])}
    assert said.keys() == PRESETS.keys()
    for name, cell in said.items():
        assert (cell == "yes") == all(m.config.mergeable for m in PRESETS[name].modifications), name


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_exported_for_adapters_as_the_table_says(backbone_folder: Folder, preset: str) -> None:
    said = {name: row[3] for row in rows_of("Which banks")[:14] for name in re.findall(r"`(\w+)`", row[0])}
    subject = subject_of(backbone_folder("bert"), "classification", preset)
    with nullcontext() if said[preset].startswith("`") else pytest.raises(InputError, match="format: got 'adapters'"):
        adapterhub_adapter(subject, "x")


def test_every_pooling_of_every_family_is_in_the_table() -> None:
    texts, tokens, images = rows_of("Which heads")
    found = {
        (family, pooling)
        for line in (*texts[1].split("<br>"), images[1])
        for pooling in re.findall(r"`(\w+)`", line)
        for family in line.split(": ")[1].split(", ")
    }
    known = {(family, pooling) for table in (_TEXT, _IMAGES) for family, places in table.items() for pooling in places}
    assert found == known
    assert set(tokens[1].split(", ")) == _TOKENS.keys()

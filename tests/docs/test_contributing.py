"""CONTRIBUTING matches the code: its layout is the one that tests enforce, and the files it names exist."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.house import FLOOR_OF, INSIDE

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOUSE, *MAPS = (block.text for block in blocks_of("CONTRIBUTING.md", TEXT) if block.language == "text")


def rooms(line: str) -> list[str]:
    """Return the packages that a line of the map names."""
    names = re.findall(r"(?:continual_petl/)(\w+)|^(streams|callbacks)/", line)
    return [a or b for a, b in names]


def test_layout_map_lists_every_package_top_level_first() -> None:
    lines = [rooms(line) for line in HOUSE.splitlines()]
    found = [room for line in lines for room in line]
    files = {
        "__main__",
        "digests",
        "errors",
        "seeding",
        "spelling",
        "_strict_model",
        "_process",
        "_lazy",
        "_notebook",
        "_version",
    }
    assert set(found) == set(FLOOR_OF) - files
    assert all(FLOOR_OF[one] <= FLOOR_OF[other] for one, other in pairwise(found))


@pytest.mark.parametrize(("room", "drawn"), list(zip(INSIDE, MAPS, strict=True)), ids=list(INSIDE))
def test_layout_map_inside_a_package_matches_the_code(room: str, drawn: str) -> None:
    floor = {part: number for number, floor in enumerate(INSIDE[room]) for part in floor}
    found = [part for line in drawn.splitlines() for part in re.split(r"\s{2,}", line)[0].split(", ")]
    assert set(found) == set(floor) - {"stream"}
    assert all(floor[one] <= floor[other] for one, other in pairwise(found))


def test_named_files_and_folders_exist() -> None:
    named = set(re.findall(r"`((?:continual_petl|streams|callbacks|tests|docs)/[\w./-]*)`", TEXT))
    links = {link.partition("#")[0] for link in re.findall(r"\]\((docs/[^)]*)\)", TEXT)}
    assert len(named) > 10
    assert [name for name in sorted(named | links) if not (ROOT / name).exists()] == []

"""The banks, probes, data, scores and answers in tests/golden/same_bits.json are found again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.same_bits import FILE, ROOT, differences, environment, printed

EVERYWHERE = ("data", "tensors")
"""What does not depend on the rounding of a processor."""


@pytest.mark.slow
def test_everything_is_found_again() -> None:
    known: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    found = printed(ROOT)
    if known["environment"] == environment():
        assert differences(found, known["found"]) == []
    same = {name: {key: entry.get(key) for key in EVERYWHERE} for name, entry in known["found"].items()}
    assert {name: {key: entry.get(key) for key in EVERYWHERE} for name, entry in found.items()} == same


def test_differences_are_named_with_both_values() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["/a/c: 2 and 3", "/d: None and 4"]

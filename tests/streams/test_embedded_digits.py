"""The split of an embedded image depends only on its pixels, and is the same in every task."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from sklearn.datasets import load_digits

from continual_petl.errors import InputError
from continual_petl.streams import embedded
from continual_petl.streams.embedded import digits

LABELS = {
    "digits": set("0123456789"),
    "digits-low": set("01234"),
    "digits-high": set("56789"),
    "digits-parity": {"even", "odd"},
}


@pytest.mark.parametrize("name", embedded.image_names())
def test_rows_are_plain_and_every_label_is_in_every_split(name: str) -> None:
    rows: dict[str, Any] = embedded.load(name)
    assert list(rows) == ["train", "validation", "test"]
    for split in rows.values():
        assert {row["label"] for row in split} == LABELS[name]
        values = {value for row in split for line in row["image"] for value in line}
        assert {0, 255} <= values <= set(range(256))
        assert {(len(row["image"]), len(row["image"][0])) for row in split} == {(8, 8)}
    assert json.loads(json.dumps(rows)) == rows


def test_every_digit_is_in_exactly_one_split() -> None:
    whole = embedded.load("digits")
    assert sum(map(len, whole.values())) == len(load_digits().target)
    assert [round(len(rows) / 1797, 2) for rows in whole.values()] == [0.62, 0.15, 0.23]
    seen: dict[str, str] = {}
    for name in embedded.image_names():
        for split, rows in embedded.load(name).items():
            assert all(seen.setdefault(str(row["image"]), split) == split for row in rows)


def test_the_rows_are_the_same_everywhere() -> None:
    found = hashlib.sha256(json.dumps(embedded.load("digits")).encode()).hexdigest()
    assert found == "18640520cd41a246bdfa58b6cde3d6955f419057ba8f6e950d1fbbb7dc713799"


def test_the_order_of_the_source_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    before, source = digits.build("digits"), load_digits()
    order = random.Random(0).sample(range(1797), 1797)
    shuffled = SimpleNamespace(images=source.images[order], target=source.target[order])
    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(load_digits=lambda: shuffled))
    monkeypatch.setattr(digits, "_digits", digits._digits.__wrapped__)
    assert digits.build("digits") == before


def test_callers_get_their_own_copy_of_rows() -> None:
    first: Any = embedded.load("digits-low")["train"][0]
    first["image"][0][0] = 99
    again: Any = embedded.load("digits-low")["train"][0]
    assert again["image"][0][0] != 99


def test_missing_scikit_learn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(digits, "_digits", digits._digits.__wrapped__)
    with pytest.raises(InputError, match=r"scikit-learn, which is not installed: pip install continual-petl\[image\]"):
        digits.build("digits")
